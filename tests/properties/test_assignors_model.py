"""Model: assignors that look at every member for every topic, and for every partition that moves."""

from collections.abc import Mapping
from typing import TypeVar
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from conveyor.groups.consumer.assignors import ASSIGNORS
from conveyor.groups.known_topics import Assigned

TOPICS = [UUID(int=number) for number in range(6)]
MEMBERS = "abcdefgh"

Key = TypeVar("Key")
Value = TypeVar("Value")
Wishes = dict[str, frozenset[UUID]]
Counts = dict[UUID, int]
Shares = dict[str, set[tuple[UUID, int]]]

counts = st.dictionaries(st.sampled_from(TOPICS), st.integers(0, 12), min_size=1)
subscriptions = st.lists(st.frozensets(st.sampled_from(TOPICS)), min_size=1, max_size=4)
groups = subscriptions.flatmap(
    lambda wishes: st.dictionaries(st.sampled_from(MEMBERS), st.sampled_from(wishes), min_size=1)
)


def plain_uniform(wishes: Wishes, previous: Mapping[str, Assigned], partition_counts: Counts) -> Shares:
    """For members with different subscriptions; those without topics do not count."""
    shares: Shares = {
        member_id: {
            (topic_id, number)
            for topic_id, number in previous.get(member_id, ())
            if topic_id in wishes[member_id] and number < partition_counts[topic_id]
        }
        for member_id in wishes
    }
    readers = {topic_id: [name for name in sorted(wishes) if topic_id in wishes[name]] for topic_id in TOPICS}

    def load(member_id: str) -> tuple[int, str]:
        return len(shares[member_id]), member_id

    for topic_id in sorted(partition_counts, key=lambda topic_id: (len(readers[topic_id]), topic_id)):
        for number in range(partition_counts[topic_id]):
            if readers[topic_id] and not any((topic_id, number) in share for share in shares.values()):
                shares[min(readers[topic_id], key=load)].add((topic_id, number))
    moved = True
    while moved:
        moved = sum(_plain_balance(shares, topic_id, readers[topic_id]) for topic_id in sorted(partition_counts)) > 0
    return shares


def _plain_balance(shares: Shares, topic_id: UUID, readers: list[str]) -> bool:
    moved = False
    numbers = {name: sorted(number for topic, number in shares[name] if topic == topic_id) for name in readers}
    while True:
        givers = [(-len(shares[member_id]), member_id) for member_id in readers if numbers[member_id]]
        if not givers:
            return moved
        (load, giver), taker = min(givers), min(readers, key=lambda member_id: (len(shares[member_id]), member_id))
        if -load - len(shares[taker]) <= 1:
            return moved
        number = numbers[giver].pop()
        numbers[taker].append(number)
        shares[giver].remove((topic_id, number))
        shares[taker].add((topic_id, number))
        moved = True


def plain_range(wishes: Wishes, previous: Mapping[str, Assigned], partition_counts: Counts) -> Shares:
    shares: Shares = {member_id: set() for member_id in wishes}
    for topic_id, count in partition_counts.items():
        readers = []
        for member_id in wishes:
            if topic_id in wishes[member_id]:
                start = min((number for topic, number in previous.get(member_id, ()) if topic == topic_id), default=99)
                readers.append((start, member_id))
        start = 0
        for place, (_, member_id) in enumerate(sorted(readers)):
            size = count // len(readers) + (place < count % len(readers))
            shares[member_id] |= {(topic_id, number) for number in range(start, start + size)}
            start += size
    return shares


def backwards(values: dict[Key, Value]) -> dict[Key, Value]:
    return dict(reversed(values.items()))


@given(steps=st.lists(st.tuples(groups, counts), min_size=1, max_size=5), name=st.sampled_from(sorted(ASSIGNORS)))
def test_assignors_assign_as_the_plain_ones_do(steps: list[tuple[Wishes, Counts]], name: str) -> None:
    before: dict[str, Assigned] = {}
    for members, partition_counts in steps:
        wishes = {member_id: frozenset(wish & partition_counts.keys()) for member_id, wish in members.items()}
        shares = ASSIGNORS[name](wishes, before, partition_counts)
        if name == "range":
            assert shares == plain_range(wishes, before, partition_counts)
        elif len({*filter(None, wishes.values())}) > 1:
            assert shares == plain_uniform(wishes, before, partition_counts)
        again = ASSIGNORS[name](backwards(wishes), backwards(before), backwards(partition_counts))
        assert again == shares, "the order of members and topics does not matter"
        before = shares
