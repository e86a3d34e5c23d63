"""The coordinator's view of the cluster's topics. The coordinator receives it with `UpdateTopics` and never looks
topics up itself.
"""

from collections.abc import Iterable
from types import MappingProxyType
from uuid import UUID

import msgspec

TopicIdPartition = tuple[UUID, int]
"""A partition, identified by its topic's id and its number."""

Assigned = frozenset[TopicIdPartition]
"""The partitions that a member reads, or is to read."""


class KnownTopic(msgspec.Struct, frozen=True, kw_only=True):
    """One topic. Subscription patterns do not match the broker's internal topics (`is_internal`)."""

    name: str
    topic_id: UUID
    partition_count: int
    is_internal: bool = False


class KnownTopics:
    """An immutable snapshot of all topics."""

    def __init__(self, topics: Iterable[KnownTopic] = ()) -> None:
        self.by_name = MappingProxyType({topic.name: topic for topic in topics})
        self.names_by_id = MappingProxyType({topic.topic_id: topic.name for topic in self.by_name.values()})


def sorted_ids(topic_ids: Iterable[UUID]) -> list[UUID]:
    """Return topic ids in their order. Comparing their numbers is faster than comparing the ids."""
    return sorted(topic_ids, key=lambda topic_id: topic_id.int)
