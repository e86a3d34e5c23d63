"""Cohorts: the members of a group that have the same subscription. Thousands of members may all subscribe to the same
thousands of topics, so the assignors compare topics with cohorts instead of members.
"""

from collections.abc import Iterable, Mapping
from heapq import heapify, heappop, heappush, heapreplace
from uuid import UUID

from conveyor.groups.known_topics import TopicIdPartition

Cohorts = Mapping[frozenset[UUID], list[str]]
"""By subscribed topics: the members, sorted by id. A cohort's position is its place in this order."""

Shares = dict[str, set[TopicIdPartition]]
"""By member id: the partitions that an assignor has given to the member so far."""


def cohorts_of(wishes: Mapping[str, frozenset[UUID]]) -> Cohorts:
    """Return the cohorts of a group, sorted by their first members. Members without topics are in no cohort."""
    cohorts: dict[frozenset[UUID], list[str]] = {}
    for member_id in sorted(wishes):
        if wishes[member_id]:
            cohorts.setdefault(wishes[member_id], []).append(member_id)
    return cohorts


def positions_by_topic(cohorts: Cohorts, topic_ids: Iterable[UUID]) -> dict[UUID, list[int]]:
    """Return the positions of the cohorts that subscribe to each of these topics."""
    positions: dict[UUID, list[int]] = {topic_id: [] for topic_id in topic_ids}
    existing = frozenset(positions)
    for position, wish in enumerate(cohorts):
        for topic_id in wish & existing:
            positions[topic_id].append(position)
    return positions


class LoadedCohorts:
    """The shares of all members, and the least loaded member of each cohort. A member's load is the size of its share.

    The heap of a cohort contains the load of each member, and perhaps loads that members had before.
    """

    def __init__(self, shares: Shares, cohorts: Cohorts) -> None:
        self.shares = shares
        self._sizes = [len(member_ids) for member_ids in cohorts.values()]
        self._heaps: list[list[tuple[int, str]]] = []
        self._heap_of: dict[str, list[tuple[int, str]]] = {}
        for member_ids in cohorts.values():
            heap = [(len(shares[member_id]), member_id) for member_id in member_ids]
            heapify(heap)
            self._heaps.append(heap)
            self._heap_of.update(dict.fromkeys(member_ids, heap))

    def size(self, positions: Iterable[int]) -> int:
        """Return how many members these cohorts have."""
        return sum(self._sizes[position] for position in positions)

    def least_loaded(self, position: int) -> tuple[int, str]:
        """Return the load and the id of a cohort's least loaded member, the first by id on a tie."""
        heap = self._heaps[position]
        while heap[0][0] != len(self.shares[heap[0][1]]):
            heappop(heap)
        return heap[0]

    def add(self, member_id: str, partition: TopicIdPartition) -> None:
        self.shares[member_id].add(partition)
        heappush(self._heap_of[member_id], (len(self.shares[member_id]), member_id))

    def remove(self, member_id: str, partition: TopicIdPartition) -> None:
        self.shares[member_id].remove(partition)
        heappush(self._heap_of[member_id], (len(self.shares[member_id]), member_id))


class LeastLoaded:
    """The least loaded reader of one topic, while the topic's partitions go from the most to the least loaded readers.

    A cohort's entry in the heap may be outdated because another of its members gave a partition away. That makes a
    difference only once the topic's partitions cannot be balanced any better.
    """

    def __init__(self, loads: LoadedCohorts, positions: Iterable[int]) -> None:
        """positions: the cohorts that subscribe to the topic, at least one."""
        self._loads = loads
        self._heap = [(*loads.least_loaded(position), position) for position in positions]
        heapify(self._heap)

    def first(self) -> str:
        while True:
            load, member_id, position = self._heap[0]
            if load == len(self._loads.shares[member_id]):
                return member_id
            heapreplace(self._heap, (*self._loads.least_loaded(position), position))
