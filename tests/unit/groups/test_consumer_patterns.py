"""The consumer protocol: what many patterns, many matching topics and a restart cost, and the limit of the matches."""

from collections.abc import Collection
from uuid import UUID

import pytest

from conveyor.groups.consumer.pattern_matches import PatternMatches
from conveyor.groups.consumer.subscription_patterns import matching_topics
from conveyor.groups.group_commands import DeleteOffsets
from conveyor.groups.known_topics import KnownTopic, KnownTopics
from conveyor.groups.replies import OffsetsDeleted
from conveyor.kernel.errors import ErrorKind, RequestError
from tests.unit.groups.consumers import ConsumerMember, coordinator_with, described, joined, place, settle, tell_topics
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
    matches = PatternMatches()
    for topics in (known("a", "b"), known("a", "b", "c"), known("b", "c")):
        assert matches.update({".*", "[a-z]", "b"}, topics)
        assert matches.topic_ids(".*") is matches.topic_ids("[a-z]")
        assert (matches.topic_ids(".*"), matches.topic_ids("b")) == (frozenset(topics.names_by_id), ids("b"))


def test_topic_that_is_made_again_matches_under_its_new_id() -> None:
    matches = PatternMatches()
    assert matches.update({"a"}, known("a"))
    again = KnownTopics([KnownTopic(name="a", topic_id=UUID(int=1), partition_count=1)])
    assert matches.update({"a"}, again)
    assert matches.topic_ids("a") == {UUID(int=1)}


def test_patterns_that_one_call_leaves_are_matched_by_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("conveyor.groups.consumer.pattern_matches.MATCHED_AT_ONCE", 3)
    matches, topics = PatternMatches(), known("a", "b")
    assert not matches.update({"a", "b", "c"}, topics)
    assert matches.count({"a", "b", "c"}) == 2
    assert matches.update({"a", "b", "c"}, topics)
    assert not matches.topic_ids("c")


def test_members_keep_their_partitions_while_patterns_are_matched_after_a_restart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    coordinator = coordinator_with_many()
    members = joined_with_patterns(coordinator, "topic-1.*", "topic-[02-9].*", ".*-1")
    monkeypatch.setattr("conveyor.groups.consumer.pattern_matches.MATCHED_AT_ONCE", 1)
    matched: list[str] = []

    def counted(pattern: str, topics: Collection[KnownTopic]) -> frozenset[UUID]:
        matched.append(pattern)
        return matching_topics(pattern, topics)

    monkeypatch.setattr("conveyor.groups.consumer.pattern_matches.matching_topics", counted)
    coordinator.crash()
    tell_topics(coordinator, **COUNTS, **{"topic-later": 1})
    group = coordinator.machine._consumers.find(GROUP)
    assert group is not None
    for count, member in enumerate(members[:2], start=1):
        assert member.beat().assignment is None
        assert (len(matched), set(group.topics)) == (count, set(COUNTS))
    read = coordinator.ask(DeleteOffsets(group_id=GROUP, partitions=(("topic-1", 0),)))
    assert isinstance(read, OffsetsDeleted)
    assert read.errors[0] is not None
    late = ConsumerMember(coordinator, "late", topics=None, pattern="topic-later")
    wishes = {"rebalance_timeout_ms": 1, "owned": frozenset(), **late.subscription}
    assert kind_of(late.send(**wishes)) is ErrorKind.COORDINATOR_LOADING
    settle(*members)
    late.join()
    settle(*members, late)
    assert owned_by_all(members) == ALL_TOPICS
    assert late.owned == place("topic-later", 0)
    assert len(matched) == 4


def test_last_member_that_leaves_while_patterns_are_unmatched_leaves_an_empty_group(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    coordinator = coordinator_with_many()
    members = joined_with_patterns(coordinator, "topic-1", "topic-2", "topic-3")
    monkeypatch.setattr("conveyor.groups.consumer.pattern_matches.MATCHED_AT_ONCE", 1)
    coordinator.crash()
    tell_topics(coordinator, **COUNTS)
    for member in members:
        member.leave()
    assert described(coordinator).state == "Empty"
    [again] = joined(coordinator, "again", topics=None, pattern="topic-1")
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
    monkeypatch.setattr("conveyor.groups.consumer.pattern_matches.MATCHED_AT_ONCE", 1)
    coordinator = coordinator_with_many()
    [first] = joined(coordinator, "a", topics=None, pattern="topic-.*")
    coordinator.crash()
    tell_topics(coordinator, **COUNTS)
    late = ConsumerMember(coordinator, "late", topics=None)
    wishes = {"rebalance_timeout_ms": 1, "owned": frozenset(), "pattern": "topic-1|topic.*"}
    assert kind_of(late.send(**wishes)) is ErrorKind.COORDINATOR_LOADING
    first.beat()
    assert kind_of(late.send(**wishes)) is ErrorKind.GROUP_MAX_SIZE_REACHED
    joined(coordinator, "few", topics=None, pattern="topic-1")


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
    wishes = {"rebalance_timeout_ms": 1, "owned": frozenset()}
    assert kind_of(late.send(pattern="topic-1", **wishes)) is ErrorKind.GROUP_MAX_SIZE_REACHED
    members[0].beat(pattern="topic-[12].*")
    late.take(late.send(pattern="topic-1", **wishes))
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
