"""The uniform assignor: every member reads the same number of partitions, to within one, and keeps its partitions if
possible.

If members have different subscriptions, a partition moves only if that brings the loads of its two readers closer
together. A round then costs as much as there are partitions, and topics in all different subscriptions. Members with
the same subscription do not add to it. Source: KIP-848, `uniform`.
"""

from collections.abc import Mapping
from heapq import heapify, heappop, heappush
from uuid import UUID

from conveyor.groups.consumer.cohorts import LeastLoaded, LoadedCohorts, Shares, cohorts_of, positions_by_topic
from conveyor.groups.known_topics import Assigned, TopicIdPartition, sorted_ids

_MOST_ROUNDS = 16
"""Topics are balanced one after the other, and one topic may disturb the balance of another. A few rounds suffice."""

_Movable = dict[str, list[int]]
"""By reader: the numbers of its partitions of one topic."""


def assign_uniformly(
    wishes: Mapping[str, frozenset[UUID]], previous: Mapping[str, Assigned], partition_counts: Mapping[UUID, int]
) -> dict[str, Assigned]:
    """See `conveyor.groups.consumer.assignors`."""
    shares = _kept(wishes, previous, partition_counts)
    taken = set().union(*shares.values()) if shares else set()
    cohorts = cohorts_of(wishes)
    if len(cohorts) == 1:
        [(wish, member_ids)] = cohorts.items()
        wanted = [topic_id for topic_id in sorted_ids(partition_counts) if topic_id in wish]
        all_partitions = [(topic_id, number) for topic_id in wanted for number in range(partition_counts[topic_id])]
        _share_alike({member_id: shares[member_id] for member_id in member_ids}, all_partitions, taken)
    else:
        loads = LoadedCohorts(shares, cohorts)
        positions = positions_by_topic(cohorts, sorted_ids(partition_counts))
        _fill(loads, positions, partition_counts, taken)
        _balance(loads, positions)
    return {member_id: frozenset(share) for member_id, share in shares.items()}


def _kept(
    wishes: Mapping[str, frozenset[UUID]], previous: Mapping[str, Assigned], partition_counts: Mapping[UUID, int]
) -> Shares:
    """Return the previous partitions that still exist and whose topics the members still want."""
    shares: Shares = {}
    for member_id in sorted(wishes):
        shares[member_id] = {
            (topic_id, number)
            for topic_id, number in previous.get(member_id, ())
            if topic_id in wishes[member_id] and number < partition_counts.get(topic_id, 0)
        }
    return shares


def _share_alike(shares: Shares, all_partitions: list[TopicIdPartition], taken: set[TopicIdPartition]) -> None:
    """All members have the same subscription: each gets the same share, and members with more partitions keep one of
    the remainder.
    """
    size, remainder = divmod(len(all_partitions), len(shares))
    for share in sorted(shares.values(), key=len, reverse=True):
        limit = size + (len(share) > size and remainder > 0)
        remainder -= limit > size
        for partition in _sorted(share)[limit:] if len(share) > limit else ():
            share.remove(partition)
            taken.remove(partition)
    free = iter([partition for partition in all_partitions if partition not in taken])
    for _, share in sorted(shares.items()):
        if len(share) <= size:
            wanted = size - len(share) + (remainder > 0)
            remainder -= remainder > 0
            share.update(partition for _, partition in zip(range(wanted), free, strict=False))


def _sorted(share: set[TopicIdPartition]) -> list[TopicIdPartition]:
    return sorted(share, key=lambda partition: (partition[0].int, partition[1]))


def _fill(
    loads: LoadedCohorts,
    positions: Mapping[UUID, list[int]],
    partition_counts: Mapping[UUID, int],
    taken: set[TopicIdPartition],
) -> None:
    """Give each unassigned partition to the least loaded reader. Topics with the fewest readers come first."""
    for topic_id in sorted(positions, key=lambda candidate_id: (loads.size(positions[candidate_id]), candidate_id.int)):
        free = [number for number in range(partition_counts[topic_id]) if (topic_id, number) not in taken]
        if free and positions[topic_id]:
            takers = LeastLoaded(loads, positions[topic_id])
            for number in free:
                loads.add(takers.first(), (topic_id, number))


def _balance(loads: LoadedCohorts, positions: Mapping[UUID, list[int]]) -> None:
    movable = _movable_by_topic(loads.shares, positions)
    for _ in range(_MOST_ROUNDS):
        moved = [_balance_topic(loads, topic_id, movable[topic_id], positions[topic_id]) for topic_id in positions]
        if not any(moved):
            return


def _movable_by_topic(shares: Shares, topic_ids: Mapping[UUID, object]) -> dict[UUID, _Movable]:
    movable: dict[UUID, _Movable] = {topic_id: {} for topic_id in topic_ids}
    for member_id, share in shares.items():
        for topic_id, number in share:
            movable[topic_id].setdefault(member_id, []).append(number)
    return movable


def _balance_topic(loads: LoadedCohorts, topic_id: UUID, movable: _Movable, positions: list[int]) -> bool:
    """Move a topic's partitions from the most loaded to the least loaded reader. Returns whether a partition moved."""
    shares = loads.shares
    givers = [(-len(shares[member_id]), member_id) for member_id, numbers in movable.items() if numbers]
    if not givers:
        return False
    heapify(givers)
    for numbers in movable.values():
        numbers.sort()
    takers = LeastLoaded(loads, positions)
    moved = False
    while givers:
        load, giver = givers[0]
        if -load != len(shares[giver]) or not movable[giver]:
            heappop(givers)
            if movable[giver]:
                heappush(givers, (-len(shares[giver]), giver))
            continue
        taker = takers.first()
        if -load - len(shares[taker]) <= 1:
            break
        number = movable[giver].pop()
        loads.remove(giver, (topic_id, number))
        loads.add(taker, (topic_id, number))
        movable.setdefault(taker, []).append(number)
        moved = True
    return moved
