"""The range assignor: each member reads consecutive partitions of each topic.

Goals in this order. A topic's partitions are balanced over its subscribers, to within one. Members with the same
subscription read the same partition numbers of topics of the same size, so that they can join these topics. Members
keep their partitions where the new order of the members allows it. Source: KIP-848, `range`.
"""

from collections.abc import Iterable, Mapping
from heapq import merge
from itertools import chain, islice
from uuid import UUID

from conveyor.groups.consumer.cohorts import cohorts_of, positions_by_topic
from conveyor.groups.known_topics import Assigned


def assign_ranges(
    wishes: Mapping[str, frozenset[UUID]], previous: Mapping[str, Assigned], partition_counts: Mapping[UUID, int]
) -> dict[str, Assigned]:
    """See `conveyor.groups.consumer.assignors`."""
    shares: dict[str, set[tuple[UUID, int]]] = {member_id: set() for member_id in wishes}
    starts = _starts_by_topic(wishes, previous)
    cohorts = cohorts_of(wishes)
    members = list(cohorts.values())
    for topic_id, positions in positions_by_topic(cohorts, partition_counts).items():
        subscribed = [members[position] for position in positions]
        reader_count, count = sum(map(len, subscribed)), partition_counts[topic_id]
        start = 0
        for number, member_id in enumerate(_first_readers(starts.get(topic_id, {}), subscribed, count)):
            size = count // reader_count + (number < count % reader_count)
            shares[member_id].update((topic_id, number) for number in range(start, start + size))
            start += size
    return {member_id: frozenset(share) for member_id, share in shares.items()}


def _first_readers(starts: Mapping[str, int], subscribed: Iterable[list[str]], count: int) -> Iterable[str]:
    """Return the readers that get partitions: at most `count`, those with the lowest start first, then those that read
    none yet.
    """
    settled = sorted(starts, key=lambda member_id: (starts[member_id], member_id))
    others = (member_id for member_id in merge(*subscribed) if member_id not in starts)
    return islice(chain(settled, others), count)


def _starts_by_topic(
    wishes: Mapping[str, frozenset[UUID]], previous: Mapping[str, Assigned]
) -> dict[UUID, dict[str, int]]:
    """Return the lowest partition number of each member that reads a topic and still wants it."""
    starts: dict[UUID, dict[str, int]] = {}
    for member_id, wish in wishes.items():
        for topic_id, number in previous.get(member_id, ()):
            if topic_id in wish:
                of_topic = starts.setdefault(topic_id, {})
                of_topic[member_id] = min(number, of_topic.get(member_id, number))
    return starts
