"""The consumer protocol: silent members, and coordinators that crash."""

from uuid import UUID

import pytest

from conveyor.groups.group_commands import (
    CommitOffsets,
    DeleteGroup,
    DeleteOffsets,
    FetchOffsets,
    OffsetToCommit,
    UpdateTopics,
)
from conveyor.groups.known_topics import KnownTopic, KnownTopics
from conveyor.groups.records.group_records import SilenceKey, decode_key
from conveyor.groups.replies import Deleted, HeartbeatAnswer, ListedGroup
from conveyor.groups.silences import NOTED_EVERY_MS
from conveyor.kernel.errors import ErrorKind
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
from tests.unit.groups.coordinator import GROUP, REBALANCE_MS, Coordinator, kind_of

RETENTION_MS = 7 * 24 * 3_600_000


def test_silent_member_is_taken_out() -> None:
    coordinator = coordinator_with(partition_count=2)
    first, second = joined(coordinator, "a", "b")
    coordinator.advance(CONSUMER_SESSION_MS - 1)
    first.beat()
    coordinator.advance(1)
    assert kind_of(second.send()) is ErrorKind.UNKNOWN_MEMBER_ID
    assert first.beat().assignment == place("topic", 0, 1)


def test_whole_group_may_fall_silent() -> None:
    coordinator = coordinator_with()
    joined(coordinator, "a", "b")
    coordinator.advance(CONSUMER_SESSION_MS)
    assert described(coordinator).state == "Empty"
    joined(coordinator, "c")


def test_crash_changes_nothing() -> None:
    coordinator = coordinator_with(partition_count=4)
    first, second = joined(coordinator, "a", "b", pattern="topi.*")
    before = described(coordinator)
    coordinator.crash()
    tell_topics(coordinator, topic=4)
    assert described(coordinator) == before
    settle(first, second)
    assert described(coordinator) == before
    coordinator.advance(CONSUMER_SESSION_MS)
    assert described(coordinator).state == "Empty"


def test_crash_in_the_middle_of_a_handover_loses_nothing() -> None:
    coordinator = coordinator_with(partition_count=2)
    [first] = joined(coordinator, "a")
    second = ConsumerMember(coordinator, "b")
    second.join()
    first.beat()
    coordinator.crash()
    tell_topics(coordinator, topic=2)
    assert second.beat().assignment is None, "the first has not confirmed the revocation"
    settle(first, second)
    assert [first.owned, second.owned] == [place("topic", 0), place("topic", 1)]


def test_time_to_give_up_starts_anew_after_a_crash() -> None:
    coordinator = coordinator_with(partition_count=2)
    [first] = joined(coordinator, "a")
    ConsumerMember(coordinator, "b").join()
    first.beat()
    coordinator.crash()
    for _ in range(4):
        coordinator.advance(REBALANCE_MS // 4 - 1)
        assert isinstance(first.send(), HeartbeatAnswer)
    coordinator.advance(4)
    assert kind_of(first.send()) is ErrorKind.UNKNOWN_MEMBER_ID


def test_consumer_group_is_listed() -> None:
    coordinator = coordinator_with()
    joined(coordinator, "a")
    listed = ListedGroup(group_id=GROUP, protocol_type="consumer", state="Stable", group_type="consumer")
    assert coordinator.listed() == (listed,)
    assert coordinator.listed(types=frozenset({"classic"})) == ()


def test_empty_group_is_deleted_and_leaves_no_records() -> None:
    coordinator = coordinator_with()
    [member] = joined(coordinator, "a", pattern="t.*")
    coordinator.commit(5, "a", member.epoch)
    assert kind_of(coordinator.ask(DeleteGroup(group_id=GROUP))) is ErrorKind.NON_EMPTY_GROUP
    member.leave()
    assert coordinator.ask(DeleteGroup(group_id=GROUP)) == Deleted()
    assert coordinator.listed() == ()
    last = {record.key: record.value for record in coordinator.log}
    assert set(last.values()) == {None}
    coordinator.crash()
    assert coordinator.listed() == ()


def test_empty_group_is_forgotten_with_its_offsets() -> None:
    coordinator = coordinator_with()
    [member] = joined(coordinator, "a")
    coordinator.commit(5, "a", member.epoch)
    member.leave()
    coordinator.advance(RETENTION_MS - 1)
    assert len(coordinator.committed()) == 1
    coordinator.advance(RETENTION_MS)
    assert coordinator.listed() == ()
    assert set({record.key: record.value for record in coordinator.log}.values()) == {None}


def test_offsets_of_topics_that_are_read_are_kept() -> None:
    coordinator = coordinator_with()
    tell_topics(coordinator, topic=1, other=1)
    [member] = joined(coordinator, "a", pattern="to.*", topics=())
    coordinator.commit(5, "a", member.epoch)
    reply = coordinator.ask(DeleteOffsets(group_id=GROUP, partitions=(("topic", 0), ("other", 0))))
    assert [error and error.kind for error in reply.errors] == [ErrorKind.GROUP_SUBSCRIBED_TO_TOPIC, None]


def test_offsets_of_a_deleted_topic_are_forgotten() -> None:
    coordinator = coordinator_with()
    coordinator.commit(5)
    tell_topics(coordinator, other=1)
    assert coordinator.committed() == ()


def test_offsets_of_a_topic_that_was_deleted_while_nobody_told_are_forgotten() -> None:
    coordinator = coordinator_with()
    coordinator.commit(5)
    coordinator.crash()
    again = KnownTopic(name="topic", topic_id=UUID(int=77), partition_count=1)
    coordinator.ask(UpdateTopics(topics=KnownTopics([again])))
    assert coordinator.committed() == ()


@pytest.mark.slow
def test_offsets_of_a_deleted_topic_are_deleted_in_parts() -> None:
    """Until then nobody is told of them, also not of those in transactions, and new ones stay."""
    coordinator = coordinator_with(partition_count=1_000)
    places = tuple(
        OffsetToCommit(topic="topic", partition=number, offset=5, leader_epoch=-1, metadata="")
        for number in range(1_000)
    )
    for number in range(60):
        coordinator.ask(commit_of(f"{number}", places))
    before = len(coordinator.log)
    again = KnownTopic(name="topic", topic_id=UUID(int=77), partition_count=1)
    coordinator.ask(UpdateTopics(topics=KnownTopics([again])))
    assert len(coordinator.log) == before
    assert coordinator.ask(FetchOffsets(group_id="0", partitions=None)).offsets == ()
    coordinator.ask(commit_of("0", places[:1]))
    sizes = decided_bytes(coordinator, 1_000)
    assert len(sizes) > 2
    assert max(sizes) < 420_000
    assert len(coordinator.log) == before + 60_000
    for number in range(60):
        offsets = coordinator.ask(FetchOffsets(group_id=f"{number}", partitions=None)).offsets
        assert len(offsets) == (number == 0)


def test_offsets_of_one_group_are_looked_at_in_parts() -> None:
    coordinator = coordinator_with(partition_count=2_500)
    places = tuple(
        OffsetToCommit(topic="topic", partition=number, offset=5, leader_epoch=-1, metadata="")
        for number in range(2_500)
    )
    coordinator.ask(commit_of("one", places))
    before = len(coordinator.log)
    tell_topics(coordinator, other=1)
    for written in (1_000, 2_000, 2_500):
        coordinator.now_ms += 1
        coordinator._carry_out(coordinator.machine.expire(coordinator.now_ms))
        assert len(coordinator.log) - before == written
    assert coordinator.machine._deleted_topics.next_deadline_ms() is None


def commit_of(group_id: str, places: tuple[OffsetToCommit, ...]) -> CommitOffsets:
    return CommitOffsets(group_id=group_id, member_id="", generation_id=-1, offsets=places)


def test_group_id_has_a_limit() -> None:
    coordinator = Coordinator()
    place = OffsetToCommit(topic="topic", partition=0, offset=5, leader_epoch=-1, metadata="")
    assert coordinator.ask(commit_of("é" * 512, (place,))).errors == (None,)
    assert kind_of(coordinator.ask(commit_of("é" * 512 + "e", (place,)))) is ErrorKind.INVALID_GROUP_ID


def test_offsets_of_a_topic_that_is_still_there_are_kept() -> None:
    coordinator = coordinator_with()
    coordinator.commit(5)
    coordinator.crash()
    tell_topics(coordinator, topic=3)
    assert len(coordinator.committed()) == 1


def decided_bytes(coordinator: Coordinator, milliseconds: int) -> list[int]:
    """Let time pass. Return the size of the records of each decision."""
    sizes: list[int] = []
    end_ms = coordinator.now_ms + milliseconds
    while (deadline_ms := coordinator.machine.next_deadline_ms()) is not None and deadline_ms <= end_ms:
        coordinator.now_ms = max(coordinator.now_ms, deadline_ms)
        count = len(coordinator.log)
        coordinator._carry_out(coordinator.machine.expire(coordinator.now_ms))
        sizes.append(sum(len(record.key or b"") + len(record.value or b"") for record in coordinator.log[count:]))
    coordinator.now_ms = end_ms
    return sizes


def test_members_with_long_ids_are_taken_out_in_parts() -> None:
    coordinator = coordinator_with(partition_count=1)
    joined(coordinator, *[str(number).rjust(30_000, "m") for number in range(20)])
    silent_ms = CONSUMER_SESSION_MS - 1
    assert decided_bytes(coordinator, silent_ms) == []
    sizes = decided_bytes(coordinator, 10)
    assert max(sizes) < 500_000
    assert sum(sizes) > 20 * 3 * 30_000
    assert described(coordinator).state == "Empty"


def test_note_of_silence_is_not_written_again_for_each_part_of_members() -> None:
    coordinator = coordinator_with(partition_count=1)
    joined(coordinator, *[str(number).rjust(30_000, "m") for number in range(20)])
    coordinator.crash()
    coordinator.advance(CONSUMER_SESSION_MS - 1)
    before = len(coordinator.log)
    assert len(decided_bytes(coordinator, 10)) > 3
    assert described(coordinator).state == "Empty"
    coordinator.advance(NOTED_EVERY_MS)
    notes = [record for record in coordinator.log[before:] if isinstance(decode_key(record.key or b""), SilenceKey)]
    assert [record.value is None for record in notes] == [False, True]


def test_member_that_is_due_stays_if_it_is_heard_before_its_turn() -> None:
    coordinator = coordinator_with(partition_count=1)
    members = joined(coordinator, *[str(number).rjust(30_000, "m") for number in range(20)])
    coordinator.advance(CONSUMER_SESSION_MS)
    late = members[-1]
    late.beat()
    coordinator.advance(10)
    assert [member.member_id for member in described(coordinator).members] == [late.member_id]


def test_silences_of_members_with_long_ids_are_noted_in_parts() -> None:
    coordinator = coordinator_with(partition_count=1)
    values = {"rebalance_timeout_ms": REBALANCE_MS, "owned": frozenset(), "topics": ()}
    for number in range(10):
        for member_id in ("a", "b", "c"):
            member = ConsumerMember(coordinator, member_id.rjust(30_000, "m"))
            assert isinstance(member.send(group_id=f"g{number}", **values), HeartbeatAnswer)
    coordinator.crash()
    sizes = decided_bytes(coordinator, NOTED_EVERY_MS)
    assert max(sizes) < 500_000
    assert sum(sizes) > 10 * 3 * 30_000
