"""The range assignor: each member reads consecutive partitions of each topic.

Goals in this order. A topic's partitions are balanced over its subscribers, to within one. Members with the same
subscription read the same partition numbers of topics of the same size, so that they can join these topics. Members
keep their partitions where the new order of the members allows it. Source: KIP-848, `range`.
"""

from collections.abc import Mapping
from uuid import UUID

from conveyor.groups.known_topics import Assigned

_LAST = 1 << 31


def assign_ranges(
    wishes: Mapping[str, frozenset[UUID]], previous: Mapping[str, Assigned], partition_counts: Mapping[UUID, int]
) -> dict[str, Assigned]:
    """See `conveyor.groups.consumer.assignors`."""
    shares: dict[str, set[tuple[UUID, int]]] = {member_id: set() for member_id in wishes}
    starts = _starts(previous)
    for topic_id, count in partition_counts.items():
        readers = [member_id for member_id in wishes if topic_id in wishes[member_id]]
        readers.sort(key=lambda member_id: (starts.get((member_id, topic_id), _LAST), member_id))
        start = 0
        for number, member_id in enumerate(readers):
            size = count // len(readers) + (number < count % len(readers))
            shares[member_id].update((topic_id, number) for number in range(start, start + size))
            start += size
    return {member_id: frozenset(share) for member_id, share in shares.items()}


def _starts(previous: Mapping[str, Assigned]) -> dict[tuple[str, UUID], int]:
    """Return the lowest partition number of each member in each topic. Members without one sort last."""
    starts: dict[tuple[str, UUID], int] = {}
    for member_id, assigned in previous.items():
        for topic_id, number in assigned:
            lowest = starts.get((member_id, topic_id), _LAST)
            starts[member_id, topic_id] = min(number, lowest)
    return starts
