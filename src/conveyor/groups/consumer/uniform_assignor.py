"""The uniform assignor: every member reads the same number of partitions, to within one, and keeps its partitions if
possible.

If members have different subscriptions, a partition moves only if that brings the loads of its two readers closer
together. Source: KIP-848, `uniform`.
"""

from collections.abc import Mapping
from heapq import heapify, heappop, heappush
from uuid import UUID

from conveyor.groups.known_topics import Assigned, TopicIdPartition

_MOST_ROUNDS = 16
"""Topics are balanced one after the other, and one topic may disturb the balance of another. A few rounds suffice."""

Shares = dict[str, set[TopicIdPartition]]


def assign_uniformly(
    wishes: Mapping[str, frozenset[UUID]], previous: Mapping[str, Assigned], partition_counts: Mapping[UUID, int]
) -> dict[str, Assigned]:
    """See `conveyor.groups.consumer.assignors`."""
    shares = _kept(wishes, previous, partition_counts)
    taken = set().union(*shares.values()) if shares else set()
    readers = {
        topic_id: [member_id for member_id in sorted(wishes) if topic_id in wishes[member_id]]
        for topic_id in sorted(partition_counts)
    }
    if len(set(wishes.values())) == 1:
        wanted = [topic_id for topic_id in readers if readers[topic_id]]
        all_partitions = [(topic_id, number) for topic_id in wanted for number in range(partition_counts[topic_id])]
        _share_alike(shares, all_partitions, taken)
    else:
        _fill(shares, readers, partition_counts, taken)
        _balance(shares, readers)
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
        for partition in sorted(share)[limit:]:
            share.remove(partition)
            taken.remove(partition)
    free = iter([partition for partition in all_partitions if partition not in taken])
    for _, share in sorted(shares.items()):
        if len(share) <= size:
            wanted = size - len(share) + (remainder > 0)
            remainder -= remainder > 0
            share.update(partition for _, partition in zip(range(wanted), free, strict=False))


def _fill(
    shares: Shares,
    readers: Mapping[UUID, list[str]],
    partition_counts: Mapping[UUID, int],
    taken: set[TopicIdPartition],
) -> None:
    """Give each unassigned partition to the least loaded reader. Topics with the fewest readers come first."""
    for topic_id in sorted(readers, key=lambda candidate_id: (len(readers[candidate_id]), candidate_id)):
        heap = [(len(shares[member_id]), member_id) for member_id in readers[topic_id]]
        heapify(heap)
        for number in range(partition_counts[topic_id]):
            if heap and (topic_id, number) not in taken:
                load, member_id = heappop(heap)
                shares[member_id].add((topic_id, number))
                heappush(heap, (load + 1, member_id))


def _balance(shares: Shares, readers: Mapping[UUID, list[str]]) -> None:
    for _ in range(_MOST_ROUNDS):
        moved = [_balance_topic(shares, topic_id, members) for topic_id, members in readers.items()]
        if not any(moved):
            return


def _balance_topic(shares: Shares, topic_id: UUID, members: list[str]) -> bool:
    """Move a topic's partitions from the most loaded to the least loaded reader. Returns whether a partition moved."""
    movable = {
        member_id: sorted(partition for partition in shares[member_id] if partition[0] == topic_id)
        for member_id in members
    }
    givers = [(-len(shares[member_id]), member_id) for member_id in members if movable[member_id]]
    takers = [(len(shares[member_id]), member_id) for member_id in members]
    heapify(givers)
    heapify(takers)
    moved = False
    while givers and takers:
        (load, giver), (least, taker) = givers[0], takers[0]
        if -load != len(shares[giver]) or not movable[giver]:
            heappop(givers)
            if movable[giver]:
                heappush(givers, (-len(shares[giver]), giver))
        elif least != len(shares[taker]):
            heappop(takers)
            heappush(takers, (len(shares[taker]), taker))
        elif len(shares[giver]) - len(shares[taker]) <= 1:
            break
        else:
            partition = movable[giver].pop()
            shares[giver].remove(partition)
            shares[taker].add(partition)
            movable[taker].append(partition)
            moved = True
    return moved
