"""Committed offsets: permitted commits, fetches, and expiry."""

import pytest

from conveyor.groups.committed_offsets import DELETED_AT_ONCE, CommittedOffsets
from conveyor.groups.group_commands import CommitOffsets, DeleteGroup, FetchOffsets, OffsetToCommit
from conveyor.groups.records.group_records import OffsetValue
from conveyor.groups.replies import CommittedOffset, Deleted
from conveyor.kernel.errors import ErrorKind
from conveyor.kernel.ids import ProducerEpoch, ProducerId, ProducerIdentity
from conveyor.kernel.state_machine import Outcome
from tests.unit.groups.coordinator import GROUP, SESSION_MS, Coordinator, kind_of

RETENTION_MS = 7 * 24 * 3_600_000
COMMITTED = CommittedOffset(topic="topic", partition=0, offset=5, leader_epoch=3, metadata="note")


def test_member_commits_and_reads_back() -> None:
    coordinator = Coordinator()
    [member], generation_id = coordinator.stable_group(1)
    assert coordinator.commit(5, member, generation_id).errors == (None,)
    assert coordinator.committed() == (COMMITTED,)


def test_later_commit_takes_the_place_of_the_earlier_even_if_it_goes_back() -> None:
    coordinator = Coordinator()
    coordinator.commit(9)
    coordinator.commit(5)
    assert coordinator.committed() == (COMMITTED,)


def test_simple_consumer_commits_without_a_group() -> None:
    coordinator = Coordinator()
    assert coordinator.commit(5).errors == (None,)
    assert coordinator.committed() == (COMMITTED,)


def test_simple_consumer_may_have_an_empty_group_id() -> None:
    coordinator = Coordinator()
    coordinator.commit(5, group_id="")
    assert coordinator.committed("") == (COMMITTED,)


def test_simple_consumer_is_refused_while_the_group_has_members() -> None:
    coordinator = Coordinator()
    [member], _ = coordinator.stable_group(1)
    assert kind_of(coordinator.commit(5)) is ErrorKind.UNKNOWN_MEMBER_ID
    coordinator.leave(member)
    assert coordinator.commit(5).errors == (None,)


@pytest.mark.parametrize("change", [-1, 1])
def test_commit_of_another_generation_is_refused(change: int) -> None:
    coordinator = Coordinator()
    [member], generation_id = coordinator.stable_group(1)
    assert kind_of(coordinator.commit(5, member, generation_id + change)) is ErrorKind.ILLEGAL_GENERATION
    assert coordinator.committed() == ()


def test_commit_of_a_stranger_is_refused() -> None:
    coordinator = Coordinator()
    _, generation_id = coordinator.stable_group(1)
    assert kind_of(coordinator.commit(5, "stranger", generation_id)) is ErrorKind.UNKNOWN_MEMBER_ID


def test_commit_of_a_member_whose_group_is_empty_or_gone_is_refused() -> None:
    coordinator = Coordinator()
    [member], generation_id = coordinator.stable_group(1)
    coordinator.advance(SESSION_MS)
    assert kind_of(coordinator.commit(5, member, generation_id)) is ErrorKind.UNKNOWN_MEMBER_ID
    refused = coordinator.commit(5, member, generation_id, group_id="never-was")
    assert kind_of(refused) is ErrorKind.GROUP_ID_NOT_FOUND
    refused = coordinator.commit(5, member, generation_id, group_id="never-was", knows_member_epochs=False)
    assert kind_of(refused) is ErrorKind.ILLEGAL_GENERATION


def test_commit_while_the_others_join_again_is_taken() -> None:
    coordinator = Coordinator()
    [member], generation_id = coordinator.stable_group(1)
    coordinator.start_join()
    assert coordinator.commit(5, member, generation_id).errors == (None,)


def test_commit_between_join_and_sync_is_refused() -> None:
    coordinator = Coordinator()
    joined = coordinator.join()
    refused = coordinator.commit(5, joined.member_id, joined.generation_id)
    assert kind_of(refused) is ErrorKind.REBALANCE_IN_PROGRESS


def test_note_that_is_too_long_is_refused_for_its_partition_alone() -> None:
    coordinator = Coordinator(offset_metadata_max_bytes=4)
    offsets = tuple(
        OffsetToCommit(topic="topic", partition=number, offset=1, leader_epoch=-1, metadata=note)
        for number, note in enumerate(["four", "füür", ""])
    )
    command = CommitOffsets(group_id=GROUP, generation_id=-1, member_id="", offsets=offsets)
    errors = coordinator.ask(command).errors
    assert [errors[0], errors[2]] == [None, None]
    assert kind_of(errors[1]) is ErrorKind.OFFSET_METADATA_TOO_LARGE
    assert [committed.partition for committed in coordinator.committed()] == [0, 2]


def test_partitions_are_answered_in_the_order_asked_and_unknown_ones_with_nothing() -> None:
    coordinator = Coordinator()
    coordinator.commit(5)
    asked = (("topic", 1), ("topic", 0), ("other", 0))
    fetched = coordinator.ask(FetchOffsets(group_id=GROUP, partitions=asked)).offsets
    assert [(committed.topic, committed.partition, committed.offset) for committed in fetched] == [
        ("topic", 1, -1),
        ("topic", 0, 5),
        ("other", 0, -1),
    ]


def test_groups_have_their_own_offsets() -> None:
    coordinator = Coordinator()
    coordinator.commit(5)
    assert coordinator.committed("others") == ()


def test_offsets_without_a_group_are_forgotten_after_the_retention() -> None:
    coordinator = Coordinator()
    coordinator.commit(5)
    coordinator.advance(RETENTION_MS - 1)
    assert coordinator.committed() == (COMMITTED,)
    coordinator.advance(1)
    assert coordinator.committed() == ()
    coordinator.crash()
    assert coordinator.committed() == ()
    assert coordinator.machine.next_deadline_ms() is None


def test_offsets_of_a_group_live_as_long_as_its_members_and_the_retention() -> None:
    coordinator = Coordinator(offsets_retention_ms=3 * SESSION_MS)
    [member], generation_id = coordinator.stable_group(1)
    coordinator.commit(5, member, generation_id)
    for _ in range(10):
        coordinator.advance(SESSION_MS - 1)
        coordinator.heartbeat(member, generation_id)
    coordinator.leave(member)
    coordinator.advance(3 * SESSION_MS - 1)
    assert coordinator.committed() == (COMMITTED,)
    coordinator.advance(1)
    assert coordinator.committed() == ()
    assert coordinator.join().generation_id == 1


def test_all_offsets_of_a_group_are_looked_at_once_for_each_request(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = 0

    def counted(offsets: CommittedOffsets, group_id: str) -> dict[tuple[str, int], OffsetValue]:
        nonlocal looked
        looked += len(found := of(offsets, group_id))
        return found

    of = CommittedOffsets.of
    monkeypatch.setattr(CommittedOffsets, "of", counted)
    coordinator = Coordinator()
    places = [OffsetToCommit(topic="t", partition=n, offset=1, leader_epoch=-1, metadata="") for n in range(100)]
    coordinator.commit(0, offsets=tuple(places))
    coordinator.machine.next_deadline_ms()
    assert coordinator.ask(DeleteGroup(group_id=GROUP)) == Deleted()
    coordinator.machine.next_deadline_ms()
    assert coordinator.committed() == ()
    assert looked < 10 * len(places)


def with_many_offsets(*group_ids: str) -> Coordinator:
    """Return a coordinator of groups with offsets for more than two parts each, half of them pending."""
    coordinator = Coordinator()
    for group_id in group_ids:
        for producer in (None, ProducerIdentity(ProducerId(7), ProducerEpoch(0))):
            start = DELETED_AT_ONCE if producer else 0
            places = [
                OffsetToCommit(topic="t", partition=start + n, offset=1, leader_epoch=-1, metadata="")
                for n in range(DELETED_AT_ONCE + 1)
            ]
            coordinator.commit(0, group_id=group_id, offsets=tuple(places), producer=producer)
    return coordinator


def test_offsets_of_a_deleted_group_are_deleted_in_parts() -> None:
    coordinator = with_many_offsets(GROUP)
    parts: list[tuple[int, bool]] = []
    while not parts or not parts[-1][1]:
        before = len(coordinator.log)
        reply = coordinator.ask(DeleteGroup(group_id=GROUP))
        parts.append((len(coordinator.log) - before, reply.is_complete))
    assert parts == [(DELETED_AT_ONCE, False), (DELETED_AT_ONCE, False), (1, True)]
    for _ in range(2):
        assert not coordinator.machine.group_ids()
        coordinator.crash()


def test_group_that_gains_a_member_between_two_parts_is_not_deleted() -> None:
    coordinator = with_many_offsets(GROUP)
    assert coordinator.ask(DeleteGroup(group_id=GROUP)) == Deleted(is_complete=False)
    coordinator.join()
    assert kind_of(coordinator.ask(DeleteGroup(group_id=GROUP))) is ErrorKind.NON_EMPTY_GROUP


@pytest.mark.parametrize("had_members", [False, True])
def test_offsets_expire_in_parts(monkeypatch: pytest.MonkeyPatch, had_members: bool) -> None:
    monkeypatch.setattr("conveyor.groups.group_machine._EXPIRED_RECORDS", DELETED_AT_ONCE)
    coordinator = with_many_offsets("a", "b")
    if had_members:
        for group_id in ("a", "b"):
            coordinator.leave(coordinator.join(group_id=group_id).member_id, group_id=group_id)
    coordinator.end_transaction(ProducerIdentity(ProducerId(7), ProducerEpoch(0)), commit=True)
    parts, expire = [], coordinator.machine.expire

    def counted(now_ms: int) -> Outcome:
        outcome = expire(now_ms)
        parts.append(len(outcome.records))
        return outcome

    monkeypatch.setattr(coordinator.machine, "expire", counted)
    coordinator.advance(RETENTION_MS + SESSION_MS)
    assert not coordinator.machine.group_ids()
    assert sum(parts) == 2 * (2 * DELETED_AT_ONCE + 1) + 2 * had_members
    assert max(parts) < 2 * DELETED_AT_ONCE
