"""The consumer protocol: what many patterns, many matching topics and a restart cost, and the limit of the matches."""

from collections.abc import Collection
from uuid import UUID

import pytest

from conveyor.groups.consumer import consumer_groups, pattern_matches
from conveyor.groups.consumer.pattern_matches import PatternMatches, TopicChanges
from conveyor.groups.consumer.subscription_patterns import TopicPattern
from conveyor.groups.group_commands import DeleteOffsets
from conveyor.groups.known_topics import KnownTopic, KnownTopics
from conveyor.groups.replies import OffsetsDeleted
from conveyor.kernel.errors import ErrorKind, RequestError
from tests.unit.groups.consumers import (
    CONSUMER_SESSION_MS,
    ConsumerMember,
    coordinator_with,
    described,
    joined,
    place,
    settle,
    tell_topics,
)
from tests.unit.groups.coordinator import GROUP, Coordinator, kind_of

COUNTS = {f"topic-{number}": 1 for number in range(20)}
ALL_TOPICS = frozenset().union(*(place(name, 0) for name in COUNTS))


def coordinator_with_many() -> Coordinator:
    coordinator = coordinator_with()
    tell_topics(coordinator, **COUNTS)
    return coordinator


def joined_with_patterns(coordinator: Coordinator, *patterns: str) -> list[ConsumerMember]:
    members = [joined(coordinator, pattern, topics=None, pattern=pattern)[0] for pattern in patterns]
    settle(*members)
    return members


@pytest.fixture
def one_match_at_once(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Each call matches one topic. Returns the matched topics."""
    matched: list[bytes] = []
    original = TopicPattern.matches

    def counted(pattern: TopicPattern, name: bytes) -> bool:
        matched.append(name)
        return original(pattern, name)

    monkeypatch.setattr(TopicPattern, "matches", counted)
    monkeypatch.setattr(pattern_matches, "STEPS_AT_ONCE", 1)
    return matched


def wishes(pattern: str) -> dict[str, object]:
    return {"rebalance_timeout_ms": 1, "owned": frozenset(), "pattern": pattern}


def string(name: str) -> bytes:
    """Return the name of a topic as records contain it. The ids of topics in these tests contain names, too."""
    return bytes([len(name) + 1]) + name.encode()


def owned_by_all(members: Collection[ConsumerMember]) -> frozenset[tuple[UUID, int]]:
    return frozenset().union(*(member.owned for member in members))


def test_new_topic_is_written_once_whatever_the_number_of_patterns() -> None:
    coordinator = coordinator_with_many()
    members = joined_with_patterns(coordinator, *(f"topic.*|{number}" for number in range(10)))
    start = len(coordinator.log)
    tell_topics(coordinator, **COUNTS, later=1, **{"topic-later": 1})
    members[0].beat()
    written = [record.value or b"" for record in coordinator.log[start:]]
    assert [sum(value.count(string(name)) for value in written) for name in ("topic-later", "topic-7")] == [1, 1]
    settle(*members)
    assert owned_by_all(members) == ALL_TOPICS | place("topic-later", 0)


def test_join_of_a_pattern_that_matches_no_new_topics_writes_no_topic_names() -> None:
    coordinator = coordinator_with_many()
    joined_with_patterns(coordinator, "topic.*")
    start = len(coordinator.log)
    ConsumerMember(coordinator, "late", topics=None, pattern="topic-.*").join()
    assert not any(string("topic-7") in (record.value or b"") for record in coordinator.log[start:])


def known(*names: str) -> KnownTopics:
    return KnownTopics(KnownTopic(name=name, topic_id=UUID(int=ord(name)), partition_count=1) for name in names)


def ids(*names: str) -> frozenset[UUID]:
    return frozenset(UUID(int=ord(name)) for name in names)


def test_patterns_that_match_the_same_topics_share_one_set() -> None:
    matches = PatternMatches(TopicChanges())
    for topics in (known("a", "b"), known("a", "b", "c"), known("b", "c")):
        assert matches.update({".*", "[a-z]", "b"}, topics)
        assert matches.topic_ids(".*") is matches.topic_ids("[a-z]")
        assert (matches.topic_ids(".*"), matches.topic_ids("b")) == (frozenset(topics.names_by_id), ids("b"))


def test_topic_that_is_made_again_matches_under_its_new_id() -> None:
    matches = PatternMatches(TopicChanges())
    assert matches.update({"a"}, known("a"))
    again = KnownTopics([KnownTopic(name="a", topic_id=UUID(int=1), partition_count=1)])
    assert matches.update({"a"}, again)
    assert matches.topic_ids("a") == {UUID(int=1)}


@pytest.mark.usefixtures("one_match_at_once")
def test_patterns_that_one_call_leaves_are_matched_by_the_next() -> None:
    matches, topics = PatternMatches(TopicChanges()), known("a", "b")
    calls = [matches.update({"a", "b", "c"}, topics) for _ in range(9)]
    assert calls == [False] * 8 + [True]  # Each pattern is compiled in a call of its own.
    assert [matches.topic_ids(pattern) for pattern in "abc"] == [ids("a"), ids("b"), ids()]
    assert not matches.is_behind


@pytest.mark.usefixtures("one_match_at_once")
def test_match_that_was_begun_with_other_topics_is_finished_first() -> None:
    matches = PatternMatches(TopicChanges())
    assert not matches.update({"."}, known("a", "b", "c"))
    later = known("b", "c", "d")
    assert [matches.update({"."}, later) for _ in range(5)] == [False] * 4 + [True]
    assert matches.topic_ids(".") == ids("b", "c", "d")


@pytest.mark.usefixtures("one_match_at_once")
def test_patterns_that_are_asked_for_are_matched_beside_those_of_the_group() -> None:
    matches, topics = PatternMatches(TopicChanges()), known("a", "b")
    assert not matches.update({"a", "."}, topics)
    matches.ask({"."})
    matches.forget_others({"a"})
    while matches.is_behind:
        matches.update({"a"}, topics)
    assert matches.topic_ids(".") == ids("a", "b")
    matches.update({"a"}, known("a", "b", "c"))
    assert matches.topic_ids(".") == frozenset()  # No member came for it.


def test_number_of_patterns_that_are_asked_for_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pattern_matches, "MAX_ASKED", 2)
    matches = PatternMatches(TopicChanges())
    matches.ask({"a", "b"})
    matches.ask({"a"})
    matches.ask({"c"})
    assert list(matches._asked) == ["a", "c"]
    matches.update((), known("a", "c"))
    monkeypatch.setattr(pattern_matches, "MAX_ASKED_MATCHES", 1)
    matches.ask({"c"})
    assert list(matches._asked) == ["c"]


def test_members_keep_their_partitions_while_patterns_are_matched_after_a_restart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    coordinator = coordinator_with_many()
    members = joined_with_patterns(coordinator, "topic-1.*", "topic-[02-9].*", ".*-1")
    monkeypatch.setattr(pattern_matches, "STEPS_AT_ONCE", 1)
    coordinator.crash()
    tell_topics(coordinator, **COUNTS, **{"topic-later": 1})
    group = coordinator.machine._consumers.find(GROUP)
    assert group is not None
    for member in members[:2]:
        assert member.beat().assignment is None
        assert set(group.topics) == set(COUNTS)
    read = coordinator.ask(DeleteOffsets(group_id=GROUP, partitions=(("topic-1", 0),)))
    assert isinstance(read, OffsetsDeleted)
    assert read.errors[0] is not None
    late = ConsumerMember(coordinator, "late", topics=None)
    assert kind_of(late.send(**wishes("topic-later"))) is ErrorKind.COORDINATOR_LOADING
    coordinator.advance(1)
    assert not coordinator.machine._consumers.is_matching
    late.take(late.send(**wishes("topic-later")))
    settle(*members, late)
    assert owned_by_all(members) == ALL_TOPICS
    assert late.owned == place("topic-later", 0)


@pytest.mark.usefixtures("one_match_at_once")
def test_new_group_is_made_once_its_patterns_are_matched() -> None:
    coordinator = coordinator_with_many()
    start = len(coordinator.log)
    members = [ConsumerMember(coordinator, name, topics=None) for name in ("a", "b")]
    patterns = ("topic-1.*", "topic-[02-9].*")
    for _ in range(2):
        for member, pattern in zip(members, patterns, strict=True):
            assert kind_of(member.send(**wishes(pattern))) is ErrorKind.COORDINATOR_LOADING
    assert coordinator.log[start:] == []
    coordinator.advance(1)
    assert coordinator.log[start:] == []
    for member, pattern in zip(members, patterns, strict=True):
        member.take(member.send(**wishes(pattern)))
    settle(*members)
    assert owned_by_all(members) == ALL_TOPICS
    assert coordinator.machine._consumers._without_members == {}


def test_one_call_matches_a_limited_number_of_topics(one_match_at_once: list[bytes]) -> None:
    coordinator = coordinator_with_many()
    member = ConsumerMember(coordinator, "a", topics=None)
    while isinstance(answer := member.send(**wishes("topic-.*")), RequestError):
        assert answer.kind is ErrorKind.COORDINATOR_LOADING
    member.take(answer)
    assert len(one_match_at_once) == len(COUNTS)
    tell_topics(coordinator, **COUNTS, other=1, more=1)
    before = len(one_match_at_once)
    member.beat()
    for count in (1, 2):
        coordinator.machine.expire(coordinator.now_ms)
        assert len(one_match_at_once) == before + count


def test_pattern_costs_as_many_steps_as_it_has_instructions_and_the_names_have_bytes(
    one_match_at_once: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pattern_matches, "STEPS_AT_ONCE", 500_000)
    slow = "(.*a.{60}){4}"
    topics = KnownTopics(
        KnownTopic(name=f"{number:0249}", topic_id=UUID(int=number), partition_count=1) for number in range(20)
    )
    matches = PatternMatches(TopicChanges())
    assert not matches.update({slow}, topics)
    assert len(one_match_at_once) == 1
    assert PatternMatches(TopicChanges()).update({"topic-.*"}, topics)


def test_patterns_that_are_costly_to_compile_are_compiled_one_by_one() -> None:
    costly = {"(?:" + r"\pL" * 320 + f"){{0}}{number}" for number in range(5)}
    matches, calls = PatternMatches(TopicChanges()), 1
    while not matches.update(costly, known("a")):
        calls += 1
    assert calls == 6


@pytest.mark.usefixtures("one_match_at_once")
def test_number_of_groups_without_members_that_have_matches_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("conveyor.groups.consumer.consumer_groups._MAX_WITHOUT_MEMBERS", 2)
    coordinator = coordinator_with_many()
    for group_id in ("first", "second", "third"):
        member = ConsumerMember(coordinator, "a", topics=None)
        assert kind_of(member.send(group_id=group_id, **wishes(".*"))) is ErrorKind.COORDINATOR_LOADING
    assert list(coordinator.machine._consumers._matches) == ["second", "third"]
    coordinator.advance(1)
    assert coordinator.machine.next_deadline_ms() is None


def test_groups_without_members_keep_few_topics_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("conveyor.groups.consumer.consumer_groups.MAX_ASKED_MATCHES", 2 * len(COUNTS))
    coordinator = coordinator_with_many()
    monkeypatch.setattr(pattern_matches, "STEPS_AT_ONCE", 1)
    for group_id in ("first", "second", "third", "fourth"):
        member = ConsumerMember(coordinator, "a", topics=None)
        assert kind_of(member.send(group_id=group_id, **wishes(".*"))) is ErrorKind.COORDINATOR_LOADING
        coordinator.advance(1)
    assert list(coordinator.machine._consumers._matches) == ["second", "third", "fourth"]


@pytest.mark.parametrize("patterns", [[".*"], [".*", "topic.*"]])
def test_group_that_alone_matches_more_than_all_may_keep_is_admitted(
    monkeypatch: pytest.MonkeyPatch, patterns: list[str]
) -> None:
    for module in (pattern_matches, consumer_groups):
        monkeypatch.setattr(module, "MAX_ASKED_MATCHES", len(COUNTS) + 5)
    coordinator = coordinator_with_many()
    monkeypatch.setattr(pattern_matches, "STEPS_AT_ONCE", 1)
    members = [ConsumerMember(coordinator, pattern, topics=None) for pattern in patterns]
    for _ in range(2):
        answers = [member.send(**wishes(pattern)) for member, pattern in zip(members, patterns, strict=True)]
        coordinator.advance(1)
    assert any(not isinstance(answer, RequestError) for answer in answers)
    assert len(coordinator.machine._consumers._matches) == 1


def test_groups_share_the_list_of_topics_that_their_patterns_are_matched_with() -> None:
    changes = TopicChanges()
    before, now = known("a"), known("a", "b")
    held = changes.between(before, now)
    assert changes.between(before, now) is held
    assert changes.between(now, before) is not held
    del held
    assert not changes._in_use


@pytest.mark.parametrize("ends_at_call", [1, 2, 3])
def test_session_that_ends_in_the_call_that_completes_a_match_leaves_no_partition_unread(
    monkeypatch: pytest.MonkeyPatch, ends_at_call: int
) -> None:
    coordinator = coordinator_with_many()
    live, _ = joined_with_patterns(coordinator, "topic-.*", "topic.*")
    monkeypatch.setattr(pattern_matches, "STEPS_AT_ONCE", 1)
    coordinator.now_ms += CONSUMER_SESSION_MS - 1
    live.beat()
    tell_topics(coordinator, **COUNTS, **{"topic-later": 1})
    live.beat()
    calls = 0
    while coordinator.machine._consumers.is_matching:
        calls += 1
        if calls == ends_at_call:
            coordinator.now_ms += 1
        coordinator._carry_out(coordinator.machine.expire(coordinator.now_ms))
    coordinator.advance(1)
    settle(live)
    assert live.owned == ALL_TOPICS | place("topic-later", 0)


def test_last_member_that_leaves_while_patterns_are_unmatched_leaves_an_empty_group(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    coordinator = coordinator_with_many()
    members = joined_with_patterns(coordinator, "topic-1", "topic-2", "topic-3")
    monkeypatch.setattr(pattern_matches, "STEPS_AT_ONCE", 1)
    coordinator.crash()
    tell_topics(coordinator, **COUNTS)
    for member in members:
        member.leave()
    assert described(coordinator).state == "Empty"
    again = ConsumerMember(coordinator, "again", topics=None)
    assert kind_of(again.send(**wishes("topic-1"))) is ErrorKind.COORDINATOR_LOADING
    coordinator.advance(1)
    again.take(again.send(**wishes("topic-1")))
    assert again.owned == place("topic-1", 0)


def test_patterns_of_a_group_match_a_limited_number_of_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("conveyor.groups.consumer.target_assignment.MAX_MATCHES", 35)
    coordinator = coordinator_with_many()
    [first] = joined(coordinator, "a", topics=None, pattern="topic-.*")
    start = len(coordinator.log)
    late = ConsumerMember(coordinator, "late", topics=None)
    refused = late.send(rebalance_timeout_ms=1, owned=frozenset(), pattern=".*")
    assert isinstance(refused, RequestError)
    assert refused.kind is ErrorKind.GROUP_MAX_SIZE_REACHED
    assert refused.message == "group 'readers' has patterns that would match 40 topics in all: at most 35"
    assert coordinator.log[start:] == []
    first.beat()
    joined(coordinator, "same", topics=None, pattern="topic-.*")
    joined(coordinator, "few", topics=None, pattern="topic-1.*")


def test_limit_of_matches_holds_while_patterns_are_matched_after_a_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("conveyor.groups.consumer.target_assignment.MAX_MATCHES", 35)
    coordinator = coordinator_with_many()
    [first] = joined(coordinator, "a", topics=None, pattern="topic-.*")
    monkeypatch.setattr(pattern_matches, "STEPS_AT_ONCE", 1)
    coordinator.crash()
    tell_topics(coordinator, **COUNTS)
    late = ConsumerMember(coordinator, "late", topics=None)
    assert kind_of(late.send(**wishes("topic-1|topic.*"))) is ErrorKind.COORDINATOR_LOADING
    first.beat()
    coordinator.advance(1)
    assert kind_of(late.send(**wishes("topic-1|topic.*"))) is ErrorKind.GROUP_MAX_SIZE_REACHED
    assert kind_of(late.send(**wishes("topic-1"))) is ErrorKind.COORDINATOR_LOADING
    coordinator.advance(1)
    late.take(late.send(**wishes("topic-1")))


def test_group_without_members_keeps_no_snapshot_of_all_topics() -> None:
    coordinator = coordinator_with_many()
    [member] = joined_with_patterns(coordinator, "topic-.*")
    member.leave()
    consumers = coordinator.machine._consumers
    assert (consumers._refreshed_with, consumers._matches) == ({}, {})


def test_group_that_new_topics_put_above_the_limit_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    coordinator = coordinator_with_many()
    members = joined_with_patterns(coordinator, "topic-.*", ".*")
    monkeypatch.setattr("conveyor.groups.consumer.target_assignment.MAX_MATCHES", 40)
    tell_topics(coordinator, **COUNTS, **{"topic-later": 1})
    settle(*members)
    assert owned_by_all(members) == ALL_TOPICS | place("topic-later", 0)
    members[0].beat(pattern="topic-[0-9a-z]+")  # It matches as many topics as before.
    late = ConsumerMember(coordinator, "late", topics=None)
    assert kind_of(late.send(**wishes("topic-1"))) is ErrorKind.GROUP_MAX_SIZE_REACHED
    members[0].beat(pattern="topic-[12].*")
    late.take(late.send(**wishes("topic-1")))
    settle(*members, late)
    coordinator.crash()
    tell_topics(coordinator, **COUNTS)
    settle(*members, late)
    assert owned_by_all([*members, late]) == ALL_TOPICS


def test_refused_patterns_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("conveyor.groups.consumer.target_assignment.MAX_MATCHES", 20)
    coordinator = coordinator_with_many()
    [first] = joined(coordinator, "a", topics=None, pattern="topic-.*")
    for number in range(5):
        first.beat(pattern=f".*|{number}")
        refused = ConsumerMember(coordinator, "late", topics=None).send(
            rebalance_timeout_ms=1, owned=frozenset(), pattern=f"t.*|{number}"
        )
        assert kind_of(refused) is ErrorKind.GROUP_MAX_SIZE_REACHED
    assert len(coordinator.machine._consumers._matches[GROUP]._matched) <= 3
    settle(first)
    assert first.owned == ALL_TOPICS
