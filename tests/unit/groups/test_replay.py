"""A coordinator after a crash: its state from the log, and the effect on its members."""

from conveyor.groups.records.group_records import GroupKey, GroupValue, group_record
from conveyor.groups.replies import Alive
from conveyor.groups.silences import NOTED_EVERY_MS
from conveyor.kernel.errors import ErrorKind
from conveyor.kernel.state_machine import LogRecord
from conveyor.records.record_fields import FieldWriter
from tests.unit.groups.coordinator import GROUP, SESSION_MS, Coordinator, kind_of


def test_stable_group_goes_on_where_it_was() -> None:
    coordinator = Coordinator()
    members, generation_id = coordinator.stable_group(2)
    coordinator.crash()
    assert all(coordinator.heartbeat(member_id, generation_id) == Alive() for member_id in members)
    assert coordinator.reply(coordinator.start_sync(members[1], generation_id)).assignment == members[1].encode()
    assert coordinator.join(members[1]).leader == members[0]


def test_sessions_start_anew_when_the_log_is_loaded() -> None:
    coordinator = Coordinator()
    [member], generation_id = coordinator.stable_group(1)
    coordinator.advance(SESSION_MS - 1)
    coordinator.crash()
    coordinator.advance(SESSION_MS - 1)
    assert coordinator.heartbeat(member, generation_id) == Alive()
    coordinator.advance(SESSION_MS)
    assert kind_of(coordinator.heartbeat(member, generation_id)) is ErrorKind.UNKNOWN_MEMBER_ID


def test_generation_that_was_not_assigned_is_lost_and_the_one_before_is_back() -> None:
    coordinator = Coordinator()
    [member], generation_id = coordinator.stable_group(1)
    assert coordinator.join(member).generation_id == generation_id + 1
    coordinator.crash()
    assert kind_of(coordinator.heartbeat(member, generation_id + 1)) is ErrorKind.ILLEGAL_GENERATION
    assert coordinator.join(member).generation_id == generation_id + 1


def test_member_that_never_got_an_assignment_is_lost() -> None:
    coordinator = Coordinator()
    joined = coordinator.join()
    coordinator.crash()
    assert kind_of(coordinator.heartbeat(joined.member_id, 1)) is ErrorKind.UNKNOWN_MEMBER_ID


def test_static_members_are_remembered() -> None:
    coordinator = Coordinator()
    joined = coordinator.join(group_instance_id="one")
    coordinator.assign(joined.member_id, 1, joined.member_id)
    back = coordinator.join(group_instance_id="one")
    coordinator.crash()
    refused = coordinator.heartbeat(joined.member_id, 1, group_instance_id="one")
    assert kind_of(refused) is ErrorKind.FENCED_INSTANCE_ID
    synced = coordinator.reply(coordinator.start_sync(back.member_id, 1))
    assert synced.assignment == joined.member_id.encode()


def test_empty_group_keeps_its_generation() -> None:
    coordinator = Coordinator()
    [member], generation_id = coordinator.stable_group(1)
    coordinator.leave(member)
    coordinator.crash()
    assert coordinator.join().generation_id == generation_id + 2


def test_offsets_survive_and_tombstones_take_them_away() -> None:
    coordinator = Coordinator()
    coordinator.commit(5)
    coordinator.commit(6)
    coordinator.crash()
    assert [committed.offset for committed in coordinator.committed()] == [6]
    coordinator.log.append(LogRecord(coordinator.log[-1].key, None))
    coordinator.crash()
    assert coordinator.committed() == ()


def test_tombstone_takes_a_group_away() -> None:
    coordinator = Coordinator()
    [member], generation_id = coordinator.stable_group(1)
    coordinator.log.append(group_record(GroupKey(group_id=GROUP), None))
    coordinator.crash()
    assert kind_of(coordinator.heartbeat(member, generation_id)) is ErrorKind.UNKNOWN_MEMBER_ID


def test_records_of_kinds_that_a_newer_broker_writes_are_passed_over() -> None:
    coordinator = Coordinator()
    coordinator.log.append(LogRecord(FieldWriter().int16(99).string(GROUP).done(), b"\x00\x00"))
    coordinator.commit(5)
    coordinator.crash()
    assert len(coordinator.committed()) == 1


def test_group_whose_record_does_not_say_since_when_it_is_empty_is_so_since_it_was_written() -> None:
    coordinator = Coordinator()
    coordinator.commit(5)
    value = GroupValue(
        protocol_type="consumer", generation_id=4, protocol_name=None, leader=None, state_timestamp_ms=-1, members=()
    )
    record = group_record(GroupKey(group_id=GROUP), value)
    coordinator.log.append(LogRecord(record.key, record.value, coordinator.now_ms))
    coordinator.crash()
    coordinator.advance(coordinator.settings.offsets_retention_ms - 1)
    assert len(coordinator.committed()) == 1
    coordinator.advance(1)
    assert coordinator.committed() == ()


def test_machine_that_is_loading_asks_for_no_alarm() -> None:
    coordinator = Coordinator()
    coordinator.stable_group(2)
    coordinator.commit(5, group_id="others")
    loading = type(coordinator.machine)(coordinator.settings)
    for record in coordinator.log:
        loading.apply(record)
    assert loading.next_deadline_ms() is None
    loading.loaded(coordinator.now_ms)
    assert loading.next_deadline_ms() == coordinator.now_ms + NOTED_EVERY_MS
