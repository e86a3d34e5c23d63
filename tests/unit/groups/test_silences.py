"""Dead members are expelled even if their broker is killed repeatedly; live members stay."""

import pytest

from conveyor.groups.group_commands import DeleteGroup, DescribeGroup
from conveyor.groups.records.group_records import OffsetKey, SilenceKey, decode_key, decode_silences, silence_record
from conveyor.groups.replies import Alive, DescribedGroup, HeartbeatAnswer
from conveyor.groups.silences import NOTED_EVERY_MS, SHORTEST_SESSION_MS
from conveyor.kernel.errors import ErrorKind, StorageFailure
from conveyor.kernel.ids import ProducerEpoch, ProducerId, ProducerIdentity
from conveyor.records.record_fields import FieldWriter
from tests.unit.groups.consumers import CONSUMER_SESSION_MS, coordinator_with, described, joined, tell_topics
from tests.unit.groups.coordinator import GROUP, Coordinator, kind_of

SESSION_MS = 45_000
LIFE_MS = 15_000
"""The time between the broker's start and its kill."""


def silences(coordinator: Coordinator, group_id: str = GROUP) -> dict[str, int] | None:
    """Return the silence notes of a group in the log."""
    notes = None
    for record in coordinator.log:
        if decode_key(record.key or b"") == SilenceKey(group_id=group_id):
            notes = None if record.value is None else decode_silences(record.value)
    return notes


def members(coordinator: Coordinator) -> list[str]:
    group = coordinator.ask(DescribeGroup(group_id=GROUP))
    assert isinstance(group, DescribedGroup)
    return sorted(member.member_id for member in group.members)


def lives_until_expelled(coordinator: Coordinator, life_ms: int) -> int:
    """Return how many times the broker is killed until the group has no members."""
    for count in range(1, 100):
        coordinator.crash()
        coordinator.advance(life_ms)
        if not members(coordinator):
            return count
    raise AssertionError("the members are never expelled")


@pytest.mark.parametrize(("life_ms", "expected"), [(15_000, 3), (14_999, 5), (6_000, 9), (44_000, 2), (60_000, 1)])
def test_dead_members_are_expelled_after_a_bounded_time(life_ms: int, expected: int) -> None:
    coordinator = Coordinator()
    coordinator.stable_group(3, session_timeout_ms=SESSION_MS)
    assert lives_until_expelled(coordinator, life_ms) == expected
    coordinator.advance(NOTED_EVERY_MS)
    assert silences(coordinator) is None


@pytest.mark.parametrize("heard_after_ms", [0, 4_000, 6_000, 14_000])
def test_a_member_that_is_heard_in_each_life_is_never_expelled(heard_after_ms: int) -> None:
    coordinator = Coordinator()
    [alive, _], generation_id = coordinator.stable_group(2, session_timeout_ms=SESSION_MS)
    for _ in range(10):
        coordinator.crash()
        coordinator.advance(heard_after_ms)
        coordinator.heartbeat(alive, generation_id)
        coordinator.advance(LIFE_MS - heard_after_ms)
        assert alive in members(coordinator)
    assert members(coordinator) == [alive]


def test_a_member_that_is_heard_once_within_its_session_of_uptime_is_never_expelled() -> None:
    coordinator = Coordinator()
    [member], generation_id = coordinator.stable_group(1, session_timeout_ms=SESSION_MS)
    for _ in range(20):
        for _ in range(2):
            coordinator.crash()
            coordinator.advance(LIFE_MS)
        coordinator.crash()
        coordinator.advance(LIFE_MS - 1)
        assert coordinator.heartbeat(member, generation_id) == Alive()


def test_a_heartbeat_takes_the_note_away_at_once() -> None:
    coordinator = Coordinator()
    [first, second], generation_id = coordinator.stable_group(2, session_timeout_ms=SESSION_MS)
    coordinator.crash()
    coordinator.advance(NOTED_EVERY_MS - 1)
    assert silences(coordinator) is None
    coordinator.advance(1)
    assert silences(coordinator) == {first: NOTED_EVERY_MS, second: NOTED_EVERY_MS}
    assert coordinator.heartbeat(first, generation_id) == Alive()
    assert silences(coordinator) == {second: NOTED_EVERY_MS}
    assert coordinator.heartbeat(second, generation_id) == Alive()
    assert silences(coordinator) is None


def test_a_commit_in_a_transaction_leaves_the_note_to_the_next_heartbeat() -> None:
    """All records of the commit's batch belong to the transaction, which may be aborted."""
    coordinator = Coordinator()
    [member], generation_id = coordinator.stable_group(1, session_timeout_ms=SESSION_MS)
    coordinator.crash()
    coordinator.advance(NOTED_EVERY_MS)
    producer = ProducerIdentity(ProducerId(7), ProducerEpoch(0))
    assert coordinator.commit(9, member, generation_id, producer=producer).errors == (None,)
    keys = [decode_key(record.key or b"") for record in coordinator.log if record.producer is not None]
    assert keys == [OffsetKey(group_id=GROUP, topic="topic", partition=0)]
    assert silences(coordinator) == {member: NOTED_EVERY_MS}
    assert coordinator.heartbeat(member, generation_id) == Alive()
    assert silences(coordinator) is None


def test_a_group_that_is_heard_soon_leaves_no_note() -> None:
    coordinator = Coordinator()
    members_, generation_id = coordinator.stable_group(2)
    coordinator.crash()
    coordinator.advance(NOTED_EVERY_MS - 1)
    size = len(coordinator.log)
    for member in members_:
        coordinator.heartbeat(member, generation_id)
    for _ in range(20):
        coordinator.advance(NOTED_EVERY_MS)
        for member in members_:
            assert coordinator.heartbeat(member, generation_id) == Alive()
    assert len(coordinator.log) == size


def test_a_member_has_some_time_after_each_start_whatever_is_noted() -> None:
    coordinator = Coordinator()
    [member], generation_id = coordinator.stable_group(1, session_timeout_ms=SESSION_MS)
    note = silence_record(GROUP, {member: 10 * SESSION_MS})
    coordinator.log.append(note)
    coordinator.crash()
    coordinator.advance(SHORTEST_SESSION_MS - 1)
    assert coordinator.heartbeat(member, generation_id) == Alive()
    coordinator.crash()
    coordinator.advance(SESSION_MS - 1)
    assert members(coordinator) == [member], "it sent a heartbeat: it has its full session again"


def test_a_member_that_joins_again_or_leaves_loses_its_note() -> None:
    coordinator = Coordinator()
    [first, second], _ = coordinator.stable_group(2, session_timeout_ms=SESSION_MS)
    coordinator.crash()
    coordinator.advance(NOTED_EVERY_MS)
    token = coordinator.start_join(first, protocols=(("range", b"other topics"),), session_timeout_ms=SESSION_MS)
    assert silences(coordinator) == {second: NOTED_EVERY_MS}
    coordinator.leave(second)
    coordinator.assign(first, coordinator.reply(token).generation_id, first)
    coordinator.advance(NOTED_EVERY_MS)
    assert silences(coordinator) is None


def test_an_expelled_member_is_not_back_for_a_whole_session_if_the_rebalance_was_cut_short() -> None:
    coordinator = Coordinator()
    [alive, dead], generation_id = coordinator.stable_group(2, session_timeout_ms=SESSION_MS)
    coordinator.crash()
    coordinator.advance(SESSION_MS - 1)
    coordinator.heartbeat(alive, generation_id)
    coordinator.advance(1)
    assert members(coordinator) == [alive]
    coordinator.crash()
    assert members(coordinator) == sorted([alive, dead])
    coordinator.advance(SHORTEST_SESSION_MS)
    assert members(coordinator) == [alive]


def test_a_note_of_a_group_that_is_gone_is_removed() -> None:
    coordinator = Coordinator()
    coordinator.stable_group(1)
    coordinator.log.append(silence_record("gone", {"m": 1}))
    coordinator.crash()
    coordinator.advance(NOTED_EVERY_MS)
    assert silences(coordinator, "gone") is None


def test_a_deleted_group_has_no_note() -> None:
    coordinator = Coordinator()
    [member], _ = coordinator.stable_group(1, session_timeout_ms=SESSION_MS)
    coordinator.crash()
    coordinator.advance(NOTED_EVERY_MS)
    coordinator.leave(member)
    coordinator.ask(DeleteGroup(group_id=GROUP))
    coordinator.crash()
    coordinator.advance(SESSION_MS)
    assert silences(coordinator) is None


@pytest.mark.parametrize("by_ms", [3_600_000, -3_600_000])
def test_silences_do_not_notice_that_the_wall_clock_is_set(by_ms: int) -> None:
    coordinator = Coordinator()
    [member], _ = coordinator.stable_group(1, session_timeout_ms=SESSION_MS)
    coordinator.crash()
    coordinator.advance(1_000)
    coordinator.set_clock(by_ms)
    coordinator.advance(NOTED_EVERY_MS - 1_001)
    assert silences(coordinator) is None
    coordinator.advance(1)
    assert silences(coordinator) == {member: NOTED_EVERY_MS}


def test_dead_members_of_the_consumer_protocol_are_expelled_and_living_ones_are_not() -> None:
    coordinator = coordinator_with()
    first, second = joined(coordinator, "alive", "dead")
    for _ in range(CONSUMER_SESSION_MS // (LIFE_MS - NOTED_EVERY_MS)):
        coordinator.crash()
        tell_topics(coordinator, topic=4)
        coordinator.advance(LIFE_MS - 1)
        assert isinstance(first.beat(), HeartbeatAnswer)
        assert silences(coordinator) is None or set(silences(coordinator) or ()) == {"dead"}
    coordinator.crash()
    tell_topics(coordinator, topic=4)
    coordinator.advance(SHORTEST_SESSION_MS)
    assert [member.member_id for member in described(coordinator).members] == ["alive"]
    assert kind_of(second.send()) is ErrorKind.UNKNOWN_MEMBER_ID
    assert silences(coordinator) in (None, {"alive": SHORTEST_SESSION_MS})


@pytest.mark.slow
def test_many_groups_are_noted_and_expelled_in_parts() -> None:
    """Batches have a size limit: a refused batch takes the coordinator's partition offline."""
    coordinator = Coordinator()
    for number in range(250):
        member = coordinator.join(group_id=f"g{number}", session_timeout_ms=SESSION_MS).member_id
        coordinator.start_sync(member, 1, group_id=f"g{number}", assignments={member: b""})
    coordinator.crash()
    sizes: list[int] = []
    end_ms = coordinator.now_ms + SESSION_MS + NOTED_EVERY_MS
    while (deadline_ms := coordinator.machine.next_deadline_ms()) is not None and deadline_ms <= end_ms:
        coordinator.now_ms = max(coordinator.now_ms, deadline_ms)
        before = len(coordinator.log)
        coordinator._carry_out(coordinator.machine.expire(coordinator.now_ms))
        sizes.append(len(coordinator.log) - before)
    assert max(sizes) <= 300
    assert all(silences(coordinator, f"g{number}") is None for number in range(250))


def test_a_note_of_a_newer_broker_is_refused() -> None:
    with pytest.raises(StorageFailure, match="start a newer broker"):
        decode_silences(FieldWriter().int16(1).done())
