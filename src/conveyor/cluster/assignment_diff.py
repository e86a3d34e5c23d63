"""The steps that take one broker's partitions from one image of the cluster to another.

Topics are compared by id, never by name: a topic that was deleted and created again is closed, then opened. Steps are
ordered by class: all `Close`, all `Open`, all `Configure`, all `Assume`.
"""

from collections.abc import Iterator
from typing import NamedTuple

from conveyor.cluster.image import ClusterImage, TopicImage
from conveyor.kernel.ids import NodeId


class Close(NamedTuple):
    """This broker no longer holds a partition of `topic` (the old image's): the topic was deleted or reassigned."""

    topic: TopicImage
    number: int
    is_deleted: bool


class Open(NamedTuple):
    """This broker holds a partition of `topic` from now on."""

    topic: TopicImage
    number: int


class Configure(NamedTuple):
    """The settings of a topic have changed, and this broker holds partitions of it."""

    topic: TopicImage


class Assume(NamedTuple):
    """A partition that this broker holds has a new leader, leader epoch or ISR."""

    topic: TopicImage
    number: int


Step = Close | Open | Configure | Assume


def assignment_steps(applied: ClusterImage, wanted: ClusterImage, node_id: NodeId) -> list[Step]:
    """Return the steps from `applied` to `wanted` for one broker. Each step but `Close` has the topic of `wanted`."""
    if applied.topics is wanted.topics:
        return []
    changed = [
        (applied.topic_by_id(topic.topic_id), topic)
        for topic in wanted.topics.values()
        if applied.topics.get(topic.name) is not topic
    ]
    kept = [(before, after) for before, after in changed if before is not None]
    steps: list[Step] = list(_closed(applied, wanted, node_id))
    steps += (
        Open(after, number)
        for before, after in changed
        for number in sorted(_held(after, node_id) - _held(before, node_id))
    )
    steps += (Configure(after) for before, after in kept if before.config != after.config and _held(after, node_id))
    steps += (
        Assume(after, number)
        for before, after in kept
        for number in sorted(_held(before, node_id) & _held(after, node_id))
        if before.partitions[number] != after.partitions[number]
    )
    return steps


def _closed(applied: ClusterImage, wanted: ClusterImage, node_id: NodeId) -> Iterator[Close]:
    for topic in applied.topics.values():
        if wanted.topics.get(topic.name) is not topic:
            after = wanted.topic_by_id(topic.topic_id)
            for number in sorted(_held(topic, node_id) - _held(after, node_id)):
                yield Close(topic, number, is_deleted=after is None)


def _held(topic: TopicImage | None, node_id: NodeId) -> set[int]:
    """Return the partitions of a topic of which a broker holds a replica."""
    if topic is None:
        return set()
    return {number for number, partition in enumerate(topic.partitions) if node_id in partition.replicas}
