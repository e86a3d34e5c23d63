"""The consumer protocol: topics that are created, grow and are deleted, and subscriptions by pattern."""

from uuid import UUID

import pytest
from msgspec.structs import replace

from conveyor.groups.consumer.group_draft import GroupDraft
from conveyor.groups.consumer.subscription_patterns import TopicPattern
from conveyor.groups.consumer.target_assignment import MAX_PATTERNS, _subscribed_topics
from conveyor.groups.group_commands import DeleteOffsets
from conveyor.groups.replies import OffsetsDeleted
from conveyor.kernel.errors import ErrorKind
from tests.unit.groups.consumers import (
    ConsumerMember,
    coordinator_with,
    described,
    joined,
    place,
    settle,
    tell_topics,
    topic_id,
)
from tests.unit.groups.coordinator import GROUP, kind_of


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
    matches = coordinator.machine._consumers._matches[GROUP]
    first.leave()
    assert matches.topic_ids("to.*") == {topic_id("topic")}
    second.beat(pattern="x")
    second.beat(topics=("topic",))
    assert set(matches._matched) == {"x"}


@pytest.mark.parametrize(
    "pattern",
    ["(a", "a{1001}", "(?=a)", r"\1", "*", "a" * 1_001, r"(?:\pL){1000}", r"\pL\pL", "|".join(["(?:.*a.{100}b)"] * 60)],
)
def test_pattern_that_is_not_one_is_refused(pattern: str) -> None:
    coordinator = coordinator_with()
    member = ConsumerMember(coordinator, "a")
    refused = member.send(rebalance_timeout_ms=1, owned=frozenset(), pattern=pattern)
    assert kind_of(refused) is ErrorKind.INVALID_REGULAR_EXPRESSION


def test_pattern_of_long_text_and_all_letters_is_taken() -> None:
    coordinator, pattern = coordinator_with(), r"[\pL\d._-]*|" + "a" * 700
    member = ConsumerMember(coordinator, "a", topics=None)
    asked = member.send(rebalance_timeout_ms=1, owned=frozenset(), pattern=pattern)
    assert kind_of(asked) is ErrorKind.COORDINATOR_LOADING
    coordinator.advance(1)
    [member] = joined(coordinator, "a", topics=None, pattern=pattern)
    assert member.owned == place("topic", 0, 1, 2, 3)


def test_pattern_is_matched_once_with_each_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    matched: list[tuple[str, str]] = []

    class CountedPattern(TopicPattern):
        def __init__(self, pattern: str) -> None:
            super().__init__(pattern)
            self.pattern = pattern

        def matches(self, name: bytes) -> bool:
            matched.append((self.pattern, name.decode()))
            return super().matches(name)

    monkeypatch.setattr("conveyor.groups.consumer.pattern_matches.TopicPattern", CountedPattern)
    coordinator = coordinator_with()
    tell_topics(coordinator, topic=1, other=1)
    first, second = joined(coordinator, "a", "b", topics=None, pattern="to.*")
    tell_topics(coordinator, topic=1, today=1)
    settle(first, second)
    assert first.owned | second.owned == place("topic", 0) | place("today", 0)
    second.beat(pattern="topic|x")
    first.leave()
    settle(second)
    assert second.owned == place("topic", 0)
    to, other = "to.*", "topic|x"
    assert matched == [(to, "topic"), (to, "other"), (to, "today"), (other, "topic"), (other, "today")]


def test_group_has_a_limited_number_of_patterns() -> None:
    coordinator = coordinator_with()
    members = joined(coordinator, *map(str, range(MAX_PATTERNS)), topics=())
    for number, member in enumerate(members):
        member.beat(pattern=f"topic|{number}")
    late = ConsumerMember(coordinator, "late")
    wishes = {"rebalance_timeout_ms": 1, "owned": frozenset()}
    assert kind_of(late.send(pattern="x", **wishes)) is ErrorKind.GROUP_MAX_SIZE_REACHED
    assert late.take(late.send(pattern="topic|0", **wishes)).member_epoch > 0
    members[1].beat(pattern="x")


def test_members_with_different_wishes_get_what_they_want() -> None:
    coordinator = coordinator_with()
    tell_topics(coordinator, one=2, two=2)
    joined(coordinator, "a", topics=("one",))
    joined(coordinator, "b", topics=("one", "two"))
    members = {member.member_id: member.target for member in described(coordinator).members}
    assert members == {"a": place("one", 0, 1), "b": place("two", 0, 1)}


def test_equal_subscriptions_are_resolved_once(monkeypatch: pytest.MonkeyPatch) -> None:
    resolved: list[frozenset[str]] = []

    def counted(
        draft: GroupDraft, existing: frozenset[str], names: frozenset[str], matching: frozenset[UUID]
    ) -> frozenset[UUID]:
        resolved.append(names)
        return _subscribed_topics(draft, existing, names, matching)

    coordinator = coordinator_with()
    joined(coordinator, "a", topics=("other",))
    joined(coordinator, "b", "c", pattern="top.*")
    joined(coordinator, "d", pattern="topi.")
    monkeypatch.setattr("conveyor.groups.consumer.target_assignment._subscribed_topics", counted)
    ConsumerMember(coordinator, "e").join()
    assert sorted(map(set, resolved), key=str) == [{"other"}, {"topic"}, {"topic"}]


class CountedName(str):
    """A topic name that counts how often one is looked up."""

    __slots__ = ()
    looked_up = 0

    def __hash__(self) -> int:
        CountedName.looked_up += 1
        return super().__hash__()

    __eq__ = str.__eq__


def test_names_of_other_members_are_not_gone_through_when_a_member_joins_or_leaves() -> None:
    coordinator = coordinator_with()
    joined(coordinator, "a", topics=())
    group = coordinator.machine._consumers.find(GROUP)
    assert group is not None
    names = frozenset(CountedName(f"missing-{number}") for number in range(1_000))
    group._subscribe("a", replace(group.subscriptions["a"], topics=names))
    CountedName.looked_up = 0
    [member] = joined(coordinator, "b")
    assert member.owned == place("topic", 0, 1, 2, 3)
    assert isinstance(coordinator.ask(DeleteOffsets(group_id=GROUP, partitions=(("other", 0),))), OffsetsDeleted)
    member.leave()
    assert CountedName.looked_up < len(names)


def test_names_are_counted_also_when_members_change_and_leave() -> None:
    coordinator = coordinator_with()
    tell_topics(coordinator, one=1, two=1)
    first, second = joined(coordinator, "a", "b", topics=("one", "two", "none"))
    group = coordinator.machine._consumers.find(GROUP)
    assert group is not None
    assert (group.names, group.name_count) == ({"one": 2, "two": 2, "none": 2}, 6)
    second.beat(topics=("two", "three"))
    assert (group.names, group.name_count) == ({"one": 1, "two": 2, "none": 1, "three": 1}, 5)
    first.leave()
    assert (group.names, group.name_count) == ({"two": 1, "three": 1}, 2)
    assert set(group.topics) == {"two"}
    coordinator.crash()
    restored = coordinator.machine._consumers.find(GROUP)
    assert restored is not None
    assert (restored.names, restored.name_count) == (group.names, group.name_count)


def test_members_of_a_group_name_a_limited_number_of_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("conveyor.groups.consumer.subscriptions_draft.MAX_NAMES", 5)
    coordinator = coordinator_with()
    first, second = joined(coordinator, "a", "b", topics=("topic", "x"))
    assert kind_of(second.send(topics=("topic", "x", "y", "z"))) is ErrorKind.GROUP_MAX_SIZE_REACHED
    second.beat(topics=("topic", "x", "y"))
    late = ConsumerMember(coordinator, "late").send(rebalance_timeout_ms=1, owned=frozenset(), topics=("topic",))
    assert kind_of(late) is ErrorKind.GROUP_MAX_SIZE_REACHED
    first.beat(topics=("topic",))
    joined(coordinator, "late")
