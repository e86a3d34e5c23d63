"""Decides on changes of topics, together with their dependents: companions, subscriptions, schedules.

Pure. A decision is one entry of the metadata log, so it takes effect as a whole or not at all; those that may need more
than an entry say so. Every decision raises RequestError if the image does not allow the change.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import msgspec

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
from conveyor.cluster.controller.image_draft import MOST_BUNDLES
from conveyor.cluster.image import (
    COMPANIONS,
    DELAY_STATE,
    DELAY_TARGET,
    ClusterImage,
    TopicImage,
    companion,
    is_companion,
    is_internal,
)
from conveyor.cluster.internal_topics import mended_config, with_shared_config
from conveyor.cluster.topic_change import more_partitions
from conveyor.cluster.topic_creation import (
    TopicRequest,
    check_name,
    check_partition_count,
    companion_partition,
    plan_companion,
    plan_topic,
)
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.ids import LeaderEpoch, NewId, NodeId, TopicId, TopicPartition
from conveyor.settings.tree import Settings

MOST_DEPENDENTS = 1_000
"""The subscriptions and schedules that one decision removes. With names of any length, they fit in one entry."""

EpochsSeen = Mapping[tuple[TopicId, int], LeaderEpoch]
"""Leader epochs by topic id and partition."""


def existing_topic(image: ClusterImage, name: str) -> TopicImage:
    """Return the topic of this name. Raises RequestError (UNKNOWN_TOPIC)."""
    topic = image.topics.get(name)
    if topic is None:
        raise unknown_topic(name)
    return topic


def existing_user_topic(image: ClusterImage, name: str) -> TopicImage:
    """Return the topic of this name. Raises RequestError: UNKNOWN_TOPIC; INVALID_TOPIC if it is the broker's own."""
    topic = existing_topic(image, name)
    if topic.is_internal:
        raise owned_by_broker(name)
    return topic


def unknown_topic(name: str) -> RequestError:
    """Return the error for a topic that does not exist."""
    return RequestError(ErrorKind.UNKNOWN_TOPIC, f"topic '{name}' does not exist")


def missing_topic(name: str) -> RequestError:
    """Return the error for a topic that does not exist: INVALID_TOPIC if no topic can have this name."""
    try:
        check_name(name)
    except RequestError as error:
        return error.detached()
    return unknown_topic(name)


def owned_by_broker(name: str) -> RequestError:
    """Return the error for a client's attempt to change one of the broker's own topics."""
    return RequestError(ErrorKind.INVALID_TOPIC, f"topic '{name}' is the broker's own")


def check_takes_part(image: ClusterImage, partition: TopicPartition) -> None:
    """Raise RequestError if a producer cannot add a partition to its transaction."""
    if is_internal(partition.topic):
        raise owned_by_broker(partition.topic)
    if image.partition(*partition) is None:
        raise RequestError(ErrorKind.UNKNOWN_TOPIC, f"topic '{partition.topic}' has no partition {partition.partition}")


def created_topic(image: ClusterImage, request: TopicRequest, settings: Settings, new_id: NewId) -> list[Change]:
    """Create a topic. A delayed topic gets its state with it."""
    topic = plan_topic(image, request, settings, TopicId(new_id()))
    changes: list[Change] = [topic_put(topic)]
    if topic.delay_target is None:
        return changes
    after = fold(image, changes, image.seq)
    return changes + ensured_companion(after, DELAY_STATE, topic.name, settings, new_id)


def ensured_companion(image: ClusterImage, kind: str, name: str, settings: Settings, new_id: NewId) -> list[Change]:
    """Ensure that a topic's companion exists and has all of the topic's partitions."""
    owner, present = existing_topic(image, name), image.topics.get(companion(kind, name))
    if present is None:
        return [topic_put(plan_companion(image, kind, owner, settings, TopicId(new_id())))]
    missing = len(owner.partitions) - len(present.partitions)
    if not missing:
        return []
    check_partition_count(image, missing, settings)
    return [_grown(present, owner)]


def changed_topic(
    image: ClusterImage, name: str, change: Callable[[TopicImage], TopicImage], settings: Settings
) -> list[Change]:
    """Change the settings of a topic, and those that its delayed topics share with it. End ELRs that a lower
    `min.insync.replicas` makes unsafe.
    """
    if is_companion(name):
        raise owned_by_broker(name)
    topic = existing_topic(image, name)
    changed = change(topic)
    if changed == topic:
        return []
    if changed.delay_target is not None:
        return [topic_put(changed)]
    delayed = [image.topics[delayed_name] for delayed_name in image.delayed_topics.get(name, ())]
    sharing = [with_shared_config(topic, changed) for topic in delayed]
    return [topic_put(changed), *map(topic_put, sharing), *ended_eligibility(image, changed, settings)]


def grown_topic(
    image: ClusterImage, name: str, count: int, assignment: Sequence[Sequence[int]] | None, settings: Settings
) -> list[Change]:
    """Add partitions to a topic and to its companions."""
    grown = more_partitions(image, existing_topic(image, name), count, assignment, settings)
    return [topic_put(grown), *(_grown(accompanying, grown) for accompanying in image.companions(name))]


def deleted_topic(image: ClusterImage, name: str, topic_id: TopicId) -> list[Change]:
    """Delete a topic and its companions, subscriptions and schedules.

    With more than MOST_DEPENDENTS, only so many subscriptions and schedules; called again on its result it continues.
    Raises RequestError: UNKNOWN_TOPIC, also if the name now belongs to another topic; INVALID_TOPIC; POLICY_VIOLATION
    for the target of a delayed topic, which may have records that wait.
    """
    topic = existing_topic(image, name)
    if topic.topic_id != topic_id:
        raise RequestError(ErrorKind.UNKNOWN_TOPIC, f"topic '{name}' was deleted and created again")
    if topic.is_internal:
        raise owned_by_broker(name)
    if image.delayed_topics.get(name):
        reason = f"topic '{name}' is the target of a delayed topic: delete the topics with {DELAY_TARGET}={name} first"
        raise RequestError(ErrorKind.POLICY_VIOLATION, reason)
    companions = [companion_name for kind in COMPANIONS if (companion_name := companion(kind, name)) in image.topics]
    subscriptions = [item.name for item in image.subscriptions.values() if item.topic_id == topic.topic_id]
    schedules = [item.name for item in image.schedules.values() if item.topic_id == topic.topic_id]
    dependents: list[Change] = [
        *(SubscriptionRemoved(name=removed) for removed in subscriptions),
        *(ScheduleRemoved(name=removed) for removed in schedules),
    ]
    if len(dependents) > MOST_DEPENDENTS:
        return dependents[:MOST_DEPENDENTS]
    return [*(TopicRemoved(name=removed) for removed in [name, *companions]), *dependents]


def mended_topics(image: ClusterImage) -> list[Change]:
    """Restore the mandatory settings of the broker's own topics and of delayed topics.

    Stops at topics with MOST_BUNDLES partitions together; called again on its result it continues.
    """
    changes: list[Change] = []
    left = MOST_BUNDLES
    for topic in image.topics.values():
        if left > 0 and (mended := mended_config(topic)) != topic.config:
            changes.append(topic_put(replace(topic, config=mended)))
            left -= len(topic.partitions)
    return changes


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
            raised = msgspec.structs.replace(
                partition, leader_epoch=LeaderEpoch(epoch + 1), partition_epoch=partition.partition_epoch + 1
            )
            changes.append(partition_changed(topic.name, number, raised))
    return changes


def _grown(present: TopicImage, owner: TopicImage) -> Change:
    """Return the change that gives a companion all partitions of its owner."""
    missing = owner.partitions[len(present.partitions) :]
    return topic_put(replace(present, partitions=present.partitions + tuple(map(companion_partition, missing))))
