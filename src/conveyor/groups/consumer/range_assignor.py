"""Ranges: each member reads consecutive partitions of each topic, and members with the same topics the same numbers.

In this order: the partitions of a topic are balanced over the members that want it, to one; members with the same
wishes read the same partitions of topics of the same size, so that they can join them; and members keep what they
have, as far as the order of the members can do that. Source: KIP-848, `range`.
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
        readers = [each for each in wishes if topic_id in wishes[each]]
        readers.sort(key=lambda each: (starts.get((each, topic_id), _LAST), each))
        start = 0
        for number, member_id in enumerate(readers):
            size = count // len(readers) + (number < count % len(readers))
            shares[member_id].update((topic_id, each) for each in range(start, start + size))
            start += size
    return {member_id: frozenset(share) for member_id, share in shares.items()}


def _starts(previous: Mapping[str, Assigned]) -> dict[tuple[str, UUID], int]:
    """Where each member's range of each topic began; who had nothing of it comes last."""
    starts: dict[tuple[str, UUID], int] = {}
    for member_id, assigned in previous.items():
        for topic_id, number in assigned:
            known = starts.get((member_id, topic_id), _LAST)
            starts[member_id, topic_id] = min(number, known)
    return starts
