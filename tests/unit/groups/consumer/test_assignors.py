"""The assignors: balance, stickiness, and their precedence."""

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conveyor.groups.consumer.assignors import ASSIGNORS, AssignorChoice
from conveyor.groups.consumer.cohorts import cohorts_of
from conveyor.groups.known_topics import Assigned

TOPICS = [UUID(int=number) for number in range(4)]
NOBODY: dict[str, Assigned] = {}


def places(topic: int, *partitions: int) -> Assigned:
    return frozenset((TOPICS[topic], partition) for partition in partitions)


def wish(*topics: int) -> frozenset[UUID]:
    return frozenset(TOPICS[topic] for topic in topics)


def loads(shares: dict[str, Assigned]) -> list[int]:
    return sorted(len(share) for share in shares.values())


counts = st.dictionaries(st.sampled_from(TOPICS), st.integers(0, 12), min_size=1)
members = st.dictionaries(st.sampled_from("abcdefg"), st.frozensets(st.sampled_from(TOPICS)), min_size=1)


@given(name=st.sampled_from(sorted(ASSIGNORS)), wishes=members, partition_counts=counts)
def test_every_partition_that_somebody_wants_has_one_reader(
    name: str, wishes: dict[str, frozenset[UUID]], partition_counts: dict[UUID, int]
) -> None:
    there = {member_id: frozenset(topics & partition_counts.keys()) for member_id, topics in wishes.items()}
    before: dict[str, Assigned] = {}
    for _ in range(2):
        shares = ASSIGNORS[name](there, before, partition_counts)
        given_out = [partition for share in shares.values() for partition in share]
        wanted = frozenset[UUID]().union(*there.values())
        expected = {(topic, number) for topic in wanted for number in range(partition_counts[topic])}
        assert (len(given_out), set(given_out)) == (len(expected), expected)
        assert all(topic in there[member_id] for member_id, share in shares.items() for topic, _ in share)
        before = shares
    assert ASSIGNORS[name](there, before, partition_counts) == before, "a settled assignment stays"


@given(sizes=st.lists(st.integers(1, 7), min_size=1, max_size=6), partition_counts=counts)
def test_uniform_shares_of_members_with_the_same_wishes_are_equal_and_stick(
    sizes: list[int], partition_counts: dict[UUID, int]
) -> None:
    before: dict[str, Assigned] = {}
    total = sum(partition_counts.values())
    for size in sizes:
        wishes = {member: frozenset(partition_counts) for member in "abcdefg"[:size]}
        shares = ASSIGNORS["uniform"](wishes, before, partition_counts)
        assert max(loads(shares)) - min(loads(shares)) <= 1
        kept = sum(len(share & before.get(member_id, frozenset())) for member_id, share in shares.items())
        had = [len(before.get(member, frozenset())) for member in shares]
        over = total % size
        least = sum(min(load, total // size) for load in had) + min(sum(load > total // size for load in had), over)
        assert kept == least, "no partition moves without need"
        before = shares


def test_uniform_balances_different_wishes() -> None:
    partition_counts = {TOPICS[0]: 4, TOPICS[1]: 4}
    wishes = {"a": wish(0), "b": wish(0, 1), "c": wish(1)}
    shares = ASSIGNORS["uniform"](wishes, NOBODY, partition_counts)
    assert loads(shares) == [2, 3, 3]


def test_uniform_moves_from_who_has_too_much() -> None:
    before = {"a": places(0, 0, 1, 2, 3) | places(1, 0, 1)}
    wishes = {"a": wish(0, 1), "b": wish(1)}
    shares = ASSIGNORS["uniform"](wishes, before, {TOPICS[0]: 4, TOPICS[1]: 2})
    assert shares == {"a": places(0, 0, 1, 2, 3), "b": places(1, 0, 1)}


def test_range_gives_the_same_numbers_of_each_topic() -> None:
    wishes = {member: wish(0, 1) for member in ("a", "b")}
    shares = ASSIGNORS["range"](wishes, NOBODY, {TOPICS[0]: 3, TOPICS[1]: 3})
    assert shares == {"a": places(0, 0, 1) | places(1, 0, 1), "b": places(0, 2) | places(1, 2)}


def test_range_keeps_the_order_of_those_who_were_there() -> None:
    before = {"z": places(0, 0, 1), "m": places(0, 2, 3)}
    wishes = {member: wish(0) for member in ("a", "m", "z")}
    shares = ASSIGNORS["range"](wishes, before, {TOPICS[0]: 6})
    assert shares == {"z": places(0, 0, 1), "m": places(0, 2, 3), "a": places(0, 4, 5)}


def test_assignor_is_elected_by_votes_then_by_name() -> None:
    choice = AssignorChoice(("uniform", "range"))
    assert choice.elect([]) == "uniform"
    assert choice.elect([None, "range"]) == "range"
    assert choice.elect(["uniform", "range"]) == "range"
    assert choice.elect(["uniform", "uniform", "range"]) == "uniform"


class CountedId(UUID):
    """A topic id that counts how often ids are looked up and compared."""

    __slots__ = ()
    used = 0

    def __hash__(self) -> int:
        CountedId.used += 1
        return super().__hash__()

    def __eq__(self, other: object) -> bool:
        CountedId.used += 1
        return super().__eq__(other)

    def __lt__(self, other: UUID) -> bool:
        CountedId.used += 1
        return super().__lt__(other)


def uses_of_topic_ids(name: str, topic_count: int, member_count: int, subscription_count: int) -> int:
    """Return how often topic ids are used until a member shares its partitions with all the others."""
    topics: list[UUID] = [CountedId(int=number) for number in range(topic_count)]
    subscriptions = [frozenset(topics[number:]) for number in range(subscription_count)]
    wishes = {f"{number:04}": subscriptions[number % subscription_count] for number in range(member_count)}
    partition_counts = dict.fromkeys(topics, 2)
    CountedId.used = 0
    before = ASSIGNORS[name]({"0000": subscriptions[0]}, NOBODY, partition_counts)
    ASSIGNORS[name](wishes, before, partition_counts)
    return CountedId.used


@pytest.mark.parametrize("name", ASSIGNORS)
@pytest.mark.parametrize("subscription_count", [1, 2])
def test_cost_grows_with_the_topics_and_not_with_the_members(name: str, subscription_count: int) -> None:
    few = uses_of_topic_ids(name, 20, 10, subscription_count)
    assert uses_of_topic_ids(name, 200, 10, subscription_count) < 20 * few
    assert uses_of_topic_ids(name, 20, 100, subscription_count) < 2 * few


@pytest.mark.parametrize("name", sorted(ASSIGNORS))
def test_members_without_topics_are_in_no_cohort(name: str) -> None:
    wishes = {"a": wish(), "b": wish(0, 1), "c": wish(0, 1), "d": wish()}
    assert list(cohorts_of(wishes).values()) == [["b", "c"]]
    before = {"a": places(0, 0, 1), "d": places(1, 0)}
    shares = ASSIGNORS[name](wishes, before, {TOPICS[0]: 2, TOPICS[1]: 2})
    assert (shares["a"], shares["d"], loads(shares)) == (places(0), places(0), [0, 0, 2, 2])
    assert ASSIGNORS[name]({"a": wish()}, before, {}) == {"a": places(0)}


@pytest.mark.parametrize("name", sorted(ASSIGNORS))
def test_topic_ids_are_not_compared(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def compared(topic_id: UUID, other: object) -> bool:
        raise AssertionError("comparing two ids is slow")

    monkeypatch.setattr(UUID, "__lt__", compared)
    counts = dict.fromkeys(TOPICS, 3)
    before = {"a": places(0, 0, 1, 2) | places(1, 0, 1, 2) | places(2, 0, 1)}
    for wishes in ({"a": wish(0, 1, 2, 3), "b": wish(0, 1, 2, 3)}, {"a": wish(0, 1, 2), "b": wish(1, 2, 3)}):
        assert loads(ASSIGNORS[name](wishes, before, counts))
