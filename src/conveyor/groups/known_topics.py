"""The cluster's topics as a coordinator knows them: it is told, and never looks for itself."""

from collections.abc import Iterable
from dataclasses import dataclass
from types import MappingProxyType
from uuid import UUID

TopicIdPartition = tuple[UUID, int]
"""One partition, of a topic that is called by its id."""

Assigned = frozenset[TopicIdPartition]
"""What a member reads, or shall read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownTopic:
    """One topic. Patterns do not match the broker's own topics (`is_internal`)."""

    name: str
    topic_id: UUID
    partition_count: int
    is_internal: bool = False


class KnownTopics:
    """All topics at one moment; it does not change."""

    def __init__(self, topics: Iterable[KnownTopic] = ()) -> None:
        self.by_name = MappingProxyType({each.name: each for each in topics})
        self.names_by_id = MappingProxyType({each.topic_id: each.name for each in self.by_name.values()})
