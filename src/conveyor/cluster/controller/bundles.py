"""Bundles: a partition of a topic and the partitions of its companions with the same number.

A bundle has one replica set, one leader and one ISR. The owner's partition is its state; decisions read only that. The
metadata log also stores a state for each companion, whose epochs began later than the owner's. `bundle_changes` copies
the owner's state to the companions and raises their leader epochs by as much as the owner's.
"""

from collections.abc import Iterator, Mapping
from types import MappingProxyType

import msgspec
from msgspec.structs import replace

from conveyor.cluster.changes import PartitionChanged, partition_changed
from conveyor.cluster.image import DELAY_STATE, ClusterImage, PartitionImage, TopicImage, companion, is_companion
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.ids import LeaderEpoch, TopicId
from conveyor.settings.tree import Settings, topic_settings


class BundlePolicy(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a topic that matter to its bundles."""

    min_insync: int
    allows_unclean: bool


_NAMES = ("min.insync.replicas", "unclean.leader.election.enable")
_NO_OVERRIDES: Mapping[str, str] = MappingProxyType({})


def bundle_policy(topic: TopicImage, settings: Settings) -> BundlePolicy:
    """Return the policy of a topic. settings: with the defaults for topics that all brokers share."""
    overrides = {name: topic.config[name] for name in _NAMES if name in topic.config} or _NO_OVERRIDES
    effective = topic_settings(settings.topics, overrides) if overrides else settings.topics
    return BundlePolicy(
        min_insync=effective.min_insync_replicas,
        allows_unclean=effective.unclean_leader_election_enable,
    )


def owners(image: ClusterImage) -> Iterator[TopicImage]:
    """Return all topics except companions. A topic that has a delay state is a companion of its target."""
    topics = image.topics
    return (
        topic
        for topic in topics.values()
        if not is_companion(topic.name) and companion(DELAY_STATE, topic.name) not in topics
    )


def existing_bundle(image: ClusterImage, name: str, number: int) -> tuple[TopicImage, PartitionImage]:
    """Return a topic and its partition. Raises RequestError: UNKNOWN_TOPIC; INVALID_TOPIC for a companion."""
    topic = image.topics.get(name)
    if topic is None or not 0 <= number < len(topic.partitions):
        raise RequestError(ErrorKind.UNKNOWN_TOPIC, f"topic '{name}' has no partition {number}")
    if (owner := image.bundle_owner(name)) != name:
        raise RequestError(ErrorKind.INVALID_TOPIC, f"topic '{name}' always has the leaders and replicas of '{owner}'")
    return topic, topic.partitions[number]


def bundle_by_id(image: ClusterImage, topic_id: TopicId, number: int) -> tuple[TopicImage, PartitionImage] | None:
    """Return a topic and its partition; None if either does not exist."""
    topic = image.topic_by_id(topic_id)
    if topic is None or not 0 <= number < len(topic.partitions):
        return None
    return topic, topic.partitions[number]


def bundle_changes(
    image: ClusterImage, topic: TopicImage, number: int, settled: PartitionImage
) -> Iterator[PartitionChanged]:
    """Return the changes of the owner's partition and of its companions. The partition epoch rises by one."""
    before = topic.partitions[number]
    after = replace(settled, partition_epoch=before.partition_epoch + 1)
    yield partition_changed(topic.name, number, after)
    rise = after.leader_epoch - before.leader_epoch
    for accompanying in image.companions(topic.name):
        if number < len(accompanying.partitions):
            copy = _copied(before, after, accompanying.partitions[number], rise)
            yield partition_changed(accompanying.name, number, copy)


def _copied(owner: PartitionImage, after: PartitionImage, present: PartitionImage, rise: int) -> PartitionImage:
    epoch = LeaderEpoch(present.leader_epoch + rise)
    return replace(
        after,
        leader_epoch=epoch,
        partition_epoch=present.partition_epoch + 1,
        unclean_epoch=present.unclean_epoch if after.unclean_epoch == owner.unclean_epoch else epoch,
    )
