"""Decides on changes of topics, together with their dependents: companions, subscriptions, schedules.

Pure. A decision is one entry of the metadata log, so it takes effect as a whole or not at all. Every decision raises
RequestError if the image does not allow the change.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from uuid import UUID

from conveyor.cluster.changes import (
    Change,
    PartitionChanged,
    ScheduleRemoved,
    SubscriptionRemoved,
    TopicRemoved,
    fold,
    partition_changed,
    topic_put,
)
from conveyor.cluster.controller.eligible_replicas import ended_eligibility
from conveyor.cluster.image import COMPANIONS, INBOX, ClusterImage, TopicImage, companion, is_companion
from conveyor.cluster.internal_topics import mended_config
from conveyor.cluster.topic_change import more_partitions
from conveyor.cluster.topic_creation import (
    TopicRequest,
    check_name,
    check_partition_count,
    companion_partition,
    has_delay,
    plan_companion,
    plan_topic,
)
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.ids import LeaderEpoch, NodeId, TopicId
from conveyor.settings.tree import Settings

NewId = Callable[[], UUID]
EpochsSeen = Mapping[tuple[TopicId, int], LeaderEpoch]
"""Leader epochs by topic id and partition."""


def existing_topic(image: ClusterImage, name: str) -> TopicImage:
    """Return the topic of this name. Raises RequestError (UNKNOWN_TOPIC)."""
    topic = image.topics.get(name)
    if topic is None:
        raise unknown_topic(name)
    return topic


def unknown_topic(name: str) -> RequestError:
    """Return the error for a topic that does not exist."""
    return RequestError(ErrorKind.UNKNOWN_TOPIC, f"topic '{name}' does not exist")


def missing_topic(name: str) -> RequestError:
    """Return the error for a topic that does not exist: INVALID_TOPIC if no topic can have this name."""
    try:
        check_name(name)
    except RequestError as error:
        return error
    return unknown_topic(name)


def owned_by_broker(name: str) -> RequestError:
    """Return the error for a client's attempt to change one of the broker's own topics."""
    return RequestError(ErrorKind.INVALID_TOPIC, f"topic '{name}' is the broker's own")


def created_topic(image: ClusterImage, request: TopicRequest, settings: Settings, new_id: NewId) -> list[Change]:
    """Create a topic, with its inbox if it has `delay.enable`."""
    topic = plan_topic(image, request, settings, TopicId(new_id()))
    changes: list[Change] = [topic_put(topic)]
    if not has_delay(topic.name, topic.config, settings):
        return changes
    after = fold(image, changes, image.seq)
    return changes + ensured_companion(after, INBOX, topic.name, settings, new_id)


def ensured_companion(image: ClusterImage, kind: str, name: str, settings: Settings, new_id: NewId) -> list[Change]:
    """Ensure that a topic's companion exists and has all of the topic's partitions."""
    owner, present = existing_topic(image, name), image.topics.get(companion(kind, name))
    if present is None:
        return [topic_put(plan_companion(image, kind, owner, settings, TopicId(new_id())))]
    missing = owner.partitions[len(present.partitions) :]
    if not missing:
        return []
    check_partition_count(image, len(missing), settings)
    return [topic_put(replace(present, partitions=present.partitions + tuple(map(companion_partition, missing))))]


def changed_topic(
    image: ClusterImage, name: str, change: Callable[[TopicImage], TopicImage], settings: Settings, new_id: NewId
) -> list[Change]:
    """Change the settings of a topic. Create its inbox if it gets `delay.enable`; end ELRs that a lower
    `min.insync.replicas` makes unsafe.
    """
    if is_companion(name):
        raise owned_by_broker(name)
    topic = existing_topic(image, name)
    changed = change(topic)
    if changed == topic:
        return []
    return [
        topic_put(changed),
        *ended_eligibility(image, changed, settings),
        *_inbox(image, changed, settings, new_id),
    ]


def grown_topic(
    image: ClusterImage, name: str, count: int, assignment: Sequence[Sequence[int]] | None, settings: Settings
) -> list[Change]:
    """Add partitions to a topic and to its companions."""
    changes: list[Change] = [
        topic_put(more_partitions(image, existing_topic(image, name), count, assignment, settings))
    ]
    for kind in COMPANIONS:
        if companion(kind, name) in image.topics:
            after = fold(image, changes, image.seq)
            changes += ensured_companion(after, kind, name, settings, _no_id)
    return changes


def deleted_topic(image: ClusterImage, name: str, topic_id: TopicId) -> list[Change]:
    """Delete a topic and its companions, subscriptions and schedules.

    Raises RequestError: UNKNOWN_TOPIC, also if the name now belongs to another topic; INVALID_TOPIC.
    """
    topic = existing_topic(image, name)
    if topic.topic_id != topic_id:
        raise RequestError(ErrorKind.UNKNOWN_TOPIC, f"topic '{name}' was deleted and created again")
    if topic.is_internal:
        raise owned_by_broker(name)
    companions = [companion_name for kind in COMPANIONS if (companion_name := companion(kind, name)) in image.topics]
    subscriptions = [item.name for item in image.subscriptions.values() if item.topic_id == topic.topic_id]
    schedules = [item.name for item in image.schedules.values() if item.topic_id == topic.topic_id]
    return [
        *(TopicRemoved(name=removed) for removed in [name, *companions]),
        *(SubscriptionRemoved(name=removed) for removed in subscriptions),
        *(ScheduleRemoved(name=removed) for removed in schedules),
    ]


def missing_inboxes(image: ClusterImage, settings: Settings, new_id: NewId) -> list[Change]:
    """Create the missing inboxes of topics with `delay.enable`."""
    changes: list[Change] = []
    for topic in image.topics.values():
        try:
            changes += _inbox(image, topic, settings, new_id)
        except RequestError as error:
            message = f"topic '{topic.name}' has delay.enable but no inbox: {error.message}"
            raise RequestError(error.kind, message) from error
    if changes:  # Each inbox was checked against the limit alone, not their total.
        added = fold(image, changes, image.seq).partition_count - image.partition_count
        check_partition_count(image, added, settings)
    return changes


def mended_topics(image: ClusterImage) -> list[Change]:
    """Restore the mandatory settings of the broker's own topics."""
    mended = [
        replace(topic, config=mended)
        for topic in image.topics.values()
        if (mended := mended_config(topic.name, topic.config)) != topic.config
    ]
    return [topic_put(topic) for topic in mended]


def raised_epochs(image: ClusterImage, seen: EpochsSeen, node_id: NodeId) -> list[PartitionChanged]:
    """Begin a new leader epoch for the partitions that this broker still leads in the epoch seen.

    The leader may have lost records that it had not flushed. The new epoch lets a client that knows an offset from the
    previous epoch detect that the offset now holds another record (KIP-101, KIP-320).
    """
    changes = []
    for (topic_id, number), epoch in seen.items():
        topic = image.topic_by_id(topic_id)
        if topic is None:
            continue
        partition = topic.partitions[number]
        if (partition.leader, partition.leader_epoch) == (node_id, epoch):
            raised = replace(
                partition, leader_epoch=LeaderEpoch(epoch + 1), partition_epoch=partition.partition_epoch + 1
            )
            changes.append(partition_changed(topic.name, number, raised))
    return changes


def _inbox(image: ClusterImage, topic: TopicImage, settings: Settings, new_id: NewId) -> list[Change]:
    if not has_delay(topic.name, topic.config, settings):
        return []
    return ensured_companion(image, INBOX, topic.name, settings, new_id)


def _no_id() -> UUID:
    raise AssertionError("a companion that exists keeps its id")
