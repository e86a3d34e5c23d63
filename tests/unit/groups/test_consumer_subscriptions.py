"""The consumer protocol: topics that are created, grow and are deleted, and subscriptions by pattern."""

import pytest

from conveyor.kernel.errors import ErrorKind
from tests.unit.groups.consumers import ConsumerMember, coordinator_with, described, joined, place, tell_topics
from tests.unit.groups.coordinator import kind_of


def test_new_partitions_are_given_out() -> None:
    coordinator = coordinator_with(partition_count=1)
    [member] = joined(coordinator, "a")
    tell_topics(coordinator, topic=2)
    assert member.beat().assignment == place("topic", 0, 1)


def test_topic_that_is_made_later_is_given_out() -> None:
    coordinator = coordinator_with()
    [member] = joined(coordinator, "a", topics=("later",))
    tell_topics(coordinator, later=1)
    assert member.beat().assignment == place("later", 0)


def test_deleted_topic_is_taken_away() -> None:
    coordinator = coordinator_with(partition_count=1)
    [member] = joined(coordinator, "a")
    tell_topics(coordinator)
    assert member.beat().assignment == frozenset()
    member.beat()
    tell_topics(coordinator, topic=2)
    assert member.beat().assignment == place("topic", 0, 1)


def test_pattern_matches_whole_names_and_what_comes_later() -> None:
    coordinator = coordinator_with(partition_count=1)
    tell_topics(coordinator, topic=1, nottopic=1, topics=1)
    [member] = joined(coordinator, "a", topics=None, pattern="topic")
    assert member.owned == place("topic", 0)
    assert member.beat(pattern="topic.*").assignment == place("topic", 0) | place("topics", 0)
    tell_topics(coordinator, topic=1, topics=1, topic2=1)
    assert member.beat().assignment == place("topic", 0) | place("topics", 0) | place("topic2", 0)


def test_pattern_does_not_match_the_brokers_own_topics() -> None:
    coordinator = coordinator_with()
    tell_topics(coordinator, topic=1, __consumer_offsets=1)
    [member] = joined(coordinator, "a", topics=None, pattern=".*")
    assert member.owned == place("topic", 0)


def test_names_and_patterns_add_up() -> None:
    coordinator = coordinator_with()
    tell_topics(coordinator, one=1, two=1, three=1)
    [member] = joined(coordinator, "a", topics=("one",), pattern="tw.*")
    assert member.owned == place("one", 0) | place("two", 0)
    member.beat(pattern="")
    member.beat()
    assert member.owned == place("one", 0)


def test_pattern_that_nobody_uses_any_more_is_forgotten() -> None:
    coordinator = coordinator_with()
    first, second = joined(coordinator, "a", "b", topics=(), pattern="to.*")
    group = coordinator.machine._consumers.find("readers")
    assert group is not None
    assert group.patterns == {"to.*": {"topic"}}
    first.leave()
    assert set(group.patterns) == {"to.*"}
    second.beat(pattern="x")
    assert set(group.patterns) == {"x"}


@pytest.mark.parametrize("pattern", ["(a", "a{1001}", "(?=a)", r"\1", "*"])
def test_pattern_that_is_not_one_is_refused(pattern: str) -> None:
    coordinator = coordinator_with()
    member = ConsumerMember(coordinator, "a")
    refused = member.send(rebalance_timeout_ms=1, owned=frozenset(), pattern=pattern)
    assert kind_of(refused) is ErrorKind.INVALID_REGULAR_EXPRESSION


def test_members_with_different_wishes_get_what_they_want() -> None:
    coordinator = coordinator_with()
    tell_topics(coordinator, one=2, two=2)
    joined(coordinator, "a", topics=("one",))
    joined(coordinator, "b", topics=("one", "two"))
    members = {member.member_id: member.target for member in described(coordinator).members}
    assert members == {"a": place("one", 0, 1), "b": place("two", 0, 1)}
