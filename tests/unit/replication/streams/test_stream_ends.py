"""Both ends of a replication stream: copying, truncating, restarting, and what it costs."""

from dataclasses import replace

import pytest

from conveyor.kernel.errors import ProtocolViolation
from conveyor.kernel.ids import LeaderEpoch
from conveyor.log.compaction.key_compaction import compact
from conveyor.records.checked_batch import own_batch
from conveyor.records.record import encode_batch
from conveyor.replication.roles import Follower, Leader
from conveyor.replication.streams.frames import (
    WINDOW_BYTES,
    Follow,
    FollowerProgress,
    FollowRefusal,
    Rejected,
    decode_from_leader,
    encode_follows,
    encode_portions,
    encode_progress,
)
from conveyor.replication.streams.leader_end import FRAME_BYTES, PORTION_BYTES, Parts
from conveyor.settings.tree import TopicSettings
from tests.unit.log.logs import NOW_MS, TOPIC_ID, all_below, contents, values
from tests.unit.replication.parts import batch, followed, led
from tests.unit.replication.streams.pairs import EPOCH, FOLLOWS, LEADS, ONE, TWO, Pair, Replica, carry_out, joined

NEXT = LeaderEpoch(EPOCH + 1)
SMALL = TopicSettings(segment_bytes=200)
COMPACTED = TopicSettings(segment_bytes=100, cleanup_policy="compact", min_cleanable_dirty_ratio=0)
BIG = b"x" * 100_000


def pair(records: int = 3, topic: TopicSettings | None = None) -> Pair:
    made = Pair([Replica(LEADS, topic)], [Replica(FOLLOWS, topic)])
    for number in range(records):
        made.leaders[0].append(b"%d" % number)
    return made


def assert_equal(connected: Pair) -> None:
    for leader, follower in zip(connected.leaders, connected.followers, strict=True):
        assert contents(follower.log) == contents(leader.log)
        assert follower.log.log_end_offset == leader.log.log_end_offset


def sent_records(parts: Parts | None) -> int:
    """The number of slices of records in a frame."""
    assert parts is not None
    return len(parts) - 1


def test_a_follower_copies_everything_and_the_leader_commits_it() -> None:
    connected = pair()
    leader, follower = connected.leaders[0].partition, connected.followers[0].partition
    assert leader.term.high_watermark == 0
    connected.exchange()
    assert_equal(connected)
    assert leader.term.high_watermark == 3
    connected.leader.has_offsets(leader)
    connected.exchange()
    assert follower.term.high_watermark == 3
    assert set(connected.reported) == {TWO}


def test_records_are_pushed_as_soon_as_they_are_written() -> None:
    connected = pair()
    connected.exchange()
    connected.leaders[0].append(b"new")
    assert connected.leader.data_frame() is None
    connected.leader.written(connected.leaders[0].partition)
    connected.exchange()
    assert_equal(connected)


def test_unflushed_records_are_not_committed() -> None:
    connected = pair()
    connected.exchange(flushes=False)
    assert_equal(connected)
    assert connected.leaders[0].partition.term.high_watermark == 0
    connected.exchange()
    assert connected.leaders[0].partition.term.high_watermark == 3


def test_an_idle_partition_costs_nothing() -> None:
    connected = pair()
    connected.exchange()
    assert connected.leader.has_offsets(connected.leaders[0].partition)
    connected.exchange()
    assert not connected.leader.has_offsets(connected.leaders[0].partition)
    assert (connected.follower.frames(), connected.leader.data_frame(), connected.leader.offsets_frame()) == (
        [], None, None,
    )  # fmt: skip


def test_large_records_are_sent_in_bounded_frames_within_the_window() -> None:
    connected = pair(0)
    for _ in range(80):
        connected.leaders[0].append(BIG)
    connected.to_leader()
    sent = 0
    while (parts := connected.leader.data_frame()) is not None:
        connected.deliver(parts)
        assert max(connected.frames[-1]) <= max(PORTION_BYTES, 2 * len(BIG))
        assert sum(connected.frames[-1]) <= FRAME_BYTES + 2 * len(BIG)
        sent += sum(connected.frames[-1])
    assert WINDOW_BYTES <= sent <= WINDOW_BYTES + FRAME_BYTES
    while connected.follower.step(NOW_MS):
        pass
    connected.exchange()
    assert_equal(connected)


def test_partitions_take_turns() -> None:
    leaders = [Replica(LEADS, number=number) for number in range(3)]
    connected = Pair(leaders, [Replica(FOLLOWS, number=number) for number in range(3)])
    for leader in leaders:
        for _ in range(30):
            leader.append(BIG)
    connected.to_leader()
    parts = connected.leader.data_frame()
    assert parts is not None
    connected.deliver(parts)
    assert len(connected.frames[0]) >= 3
    ends = [copied.expected_offset for copied in connected.follower._by_partition.values()]
    assert all(ends)
    while connected.follower.step(NOW_MS):
        pass
    connected.exchange()
    assert_equal(connected)


def test_a_step_is_bounded() -> None:
    connected = pair(0)
    for _ in range(1_500):
        connected.leaders[0].partition.append(batch(b"a"), NOW_MS)
    connected.leaders[0].settle()
    connected.to_leader()
    parts = connected.leader.data_frame()
    assert parts is not None
    connected.deliver(parts)
    assert connected.follower.step(NOW_MS)
    assert connected.followers[0].log.log_end_offset == 1_000
    connected.exchange()
    assert connected.followers[0].log.log_end_offset == 1_500


def test_a_follower_may_have_what_its_leader_has_not_written_yet() -> None:
    connected = pair(0)
    leader, follower = connected.leaders[0].partition, connected.followers[0]
    leader.append(batch(b"a"), NOW_MS)
    follower.partition.assume(Leader(leader=TWO, epoch=NEXT, isr=(ONE, TWO)))
    follower.partition.assume(Follower(leader=ONE, epoch=LeaderEpoch(NEXT + 1)))
    leader.assume(Leader(leader=ONE, epoch=LeaderEpoch(NEXT + 1), isr=(ONE, TWO)))
    connected.leader.received(encode_follows([Follow(0, TOPIC_ID, 0, NEXT + 1, 1, EPOCH, 1, 0)]))
    assert sent_records(connected.leader.data_frame()) == 0
    assert connected.leader.data_frame() is None
    leader.append(batch(b"b"), NOW_MS)
    leader.write()
    connected.leader.written(leader)
    assert connected.leader.data_frame() is not None


# Divergence.


def deposed(leader_records: int = 1, own_records: int = 3, topic: TopicSettings | None = None) -> Pair:
    """A follower that has led the epoch before alone, with records that the leader does not have."""
    connected = pair(2, topic)
    connected.exchange()
    follower, leader = connected.followers[0], connected.leaders[0]
    leader.partition.assume(Follower(leader=TWO, epoch=NEXT))
    follower.partition.assume(Leader(leader=TWO, epoch=NEXT, isr=(ONE, TWO)))
    for _ in range(own_records):
        follower.append(b"lost")
    last = LeaderEpoch(NEXT + 1)
    leader.partition.assume(Leader(leader=ONE, epoch=last, isr=(ONE, TWO)))
    follower.partition.assume(Follower(leader=ONE, epoch=last))
    for _ in range(leader_records):
        leader.append(b"kept")
    connected.connect()
    return connected


@pytest.mark.parametrize("leader_records", [0, 1, 5])
@pytest.mark.parametrize("own_records", [0, 1, 3])
def test_a_deposed_leader_removes_what_its_successor_lacks(leader_records: int, own_records: int) -> None:
    connected = deposed(leader_records, own_records)
    connected.exchange()
    assert_equal(connected)
    assert connected.leaders[0].partition.term.high_watermark == 2 + leader_records
    connected.exchange()
    assert b"lost" not in values(connected.followers[0].log)


def test_a_truncation_waits_for_an_index_that_it_needs() -> None:
    connected = deposed(own_records=9, topic=TopicSettings(segment_bytes=250, index_interval_bytes=0))
    follower = connected.followers[0]
    segment = next(segment for segment in follower.log.segments.all if segment.next_offset > 2)
    assert segment.sealed
    assert segment.base_offset < 2
    follower.disk.remove(segment.files.path("index"))
    connected.exchange()
    assert follower.partition.offline.reason is None
    assert follower.log.log_end_offset == 11
    segment.indexes.stored.prepare()
    connected.follower.follow(follower.partition, TOPIC_ID)
    connected.exchange()
    assert_equal(connected)
    assert b"lost" not in values(follower.log)


def test_committed_records_are_not_truncated() -> None:
    connected = deposed(own_records=3)
    follower = connected.followers[0].partition
    followed(follower).follow(4, 0)
    connected.exchange()
    assert follower.offline.reason is not None
    assert "lacks committed records from offset 2" in follower.offline.reason
    assert connected.followers[0].log.log_end_offset == 5


def test_committed_records_are_truncated_after_an_unclean_election() -> None:
    connected = deposed(own_records=3)
    follower = connected.followers[0].partition
    followed(follower).follow(4, 0)
    epoch = LeaderEpoch(NEXT + 1)
    follower.assume(Follower(leader=ONE, epoch=epoch, unclean_epoch=epoch))
    connected.exchange()
    assert_equal(connected)
    assert follower.term.high_watermark <= 3


# Starts and gaps.


def test_a_follower_below_the_start_of_the_leaders_log_begins_there() -> None:
    connected = pair(1, SMALL)
    connected.exchange()
    for number in range(20):
        connected.leaders[0].append(b"%d" % number)
    leader = connected.leaders[0].log
    connected.leaders[0].partition.assume(Leader(leader=ONE, epoch=EPOCH, isr=(ONE,)))
    leader.start.trim(9).run()
    connected.connect()
    connected.exchange()
    assert connected.followers[0].log.log_start_offset == 9
    assert_equal(connected)


def test_a_follower_of_a_log_that_was_emptied_begins_at_its_end() -> None:
    connected = pair(3, SMALL)
    connected.to_leader()
    leader = connected.leaders[0]
    leader.partition.assume(Leader(leader=ONE, epoch=EPOCH, isr=(ONE,)))
    leader.log.start.trim(3).run()
    assert connected.leader.has_offsets(leader.partition)
    parts = connected.leader.offsets_frame()
    assert parts is not None
    connected.deliver(parts)
    connected.exchange()
    assert (connected.followers[0].log.log_start_offset, connected.followers[0].log.log_end_offset) == (3, 3)


@pytest.mark.parametrize("copied_first", [0, 3])
def test_gaps_of_a_compacted_log_are_copied(copied_first: int) -> None:
    connected = pair(0, COMPACTED)
    leader = connected.leaders[0]
    for number in range(12):
        content = encode_batch([(NOW_MS, b"key %d" % (number % 3), b"%d" % number, ())])
        leader.partition.append(own_batch(content), NOW_MS)
        leader.settle()
        if number < copied_first:
            connected.exchange()
    plan = leader.log.compaction.plan(all_below(leader.log.flushes.flushed_offset), NOW_MS, 100)
    assert plan is not None
    result = compact(leader.disk, plan)
    swap = leader.log.compaction.begin_swap(result)
    assert swap is not None
    leader.log.compaction.complete_swap(result, swap.run())
    connected.connect()
    connected.exchange()
    assert connected.followers[0].log.log_end_offset == leader.log.log_end_offset
    theirs = contents(leader.log)
    assert contents(connected.followers[0].log)[-len(theirs) + copied_first :] == theirs[copied_first:]
    assert leader.partition.term.high_watermark == 12


# Removed tombstones.


def cut_off(copied: int) -> Pair:
    """The follower has copied some of four records when the link ends, and the leader removes a tombstone at 2."""
    connected = pair(0, COMPACTED)
    for number in range(4):
        connected.leaders[0].append(b"%d" % number)
        if number + 1 == copied:
            connected.exchange()
    connected.follower.close()
    connected.leaders[0].log.compaction.removed_end_offset = 3
    return connected


@pytest.mark.parametrize(
    ("copied", "has_all_committed", "begins_again"), [(1, False, True), (1, True, False), (3, False, False)]
)
def test_a_copy_that_ends_below_removed_tombstones_begins_again(
    copied: int, has_all_committed: bool, begins_again: bool
) -> None:
    connected = cut_off(copied)
    follower = connected.followers[0]
    follower.partition.assume(replace(FOLLOWS, has_all_committed=has_all_committed))
    connected.connect()
    connected.exchange()
    assert contents(follower.log) == contents(connected.leaders[0].log)
    assert bool(follower.log.truncation._jobs.truncations_count) == begins_again
    assert follower.log.compaction.removed_end_offset == (3 if copied < 3 else 0)


@pytest.mark.parametrize(("then_removed", "begins_again"), [(3, False), (4, True)])
def test_a_copy_continues_in_the_epoch_in_which_it_was_begun(then_removed: int, begins_again: bool) -> None:
    """Unless more was removed that did not wait for this replica."""
    connected = cut_off(0)
    connected.leaders[0].partition.assume(replace(LEADS, isr=(ONE,), partition_epoch=1))
    connected.throttle.is_open = False
    connected.connect()
    connected.exchange()
    follower = connected.followers[0]
    assert (follower.log.compaction.removed_end_offset, follower.log.log_end_offset) == (3, 0)
    connected.throttle.is_open, connected.throttle.portions = True, 1
    connected.exchange()
    assert follower.log.log_end_offset == 1
    connected.leaders[0].log.compaction.removed_end_offset = then_removed
    connected.throttle.is_open, connected.throttle.portions = True, None
    connected.follower.close()
    connected.connect()
    connected.exchange()
    assert follower.log.log_end_offset == 4
    assert bool(follower.log.truncation._jobs.truncations_count) == begins_again


@pytest.mark.parametrize(("copied", "is_refused"), [(1, True), (3, False)])
def test_a_copy_waits_while_tombstones_above_it_are_being_removed(copied: int, is_refused: bool) -> None:
    connected = cut_off(copied)
    connected.leaders[0].log.compaction._jobs.is_swapping = True
    connected.connect()
    connected.exchange()
    assert (connected.followers[0].log.log_end_offset == copied) == is_refused


# Refusals.


@pytest.mark.parametrize(
    ("epoch", "refusal"),
    [(LeaderEpoch(EPOCH - 1), FollowRefusal.FENCED_EPOCH), (NEXT, FollowRefusal.UNKNOWN_EPOCH)],
)
def test_another_epoch_is_refused(epoch: LeaderEpoch, refusal: FollowRefusal) -> None:
    connected = Pair([Replica(LEADS)], [Replica(Follower(leader=ONE, epoch=epoch))])
    connected.to_leader()
    (frame,) = connected.leader.answers()
    assert decode_from_leader(frame) == Rejected(0, refusal)
    connected.follower.received(frame)
    assert [each.task for each in connected.follower.interruptions] == [None]


def test_a_partition_that_the_leader_does_not_know_is_refused() -> None:
    connected = pair()
    connected.refusal = FollowRefusal.UNKNOWN_TOPIC
    connected.exchange()
    assert not connected.follower.partitions


def test_a_leader_that_resigns_tells_its_followers() -> None:
    connected = pair()
    connected.exchange()
    leader = connected.leaders[0].partition
    leader.assume(led(leader).role.resigned())
    connected.leader.changed(leader)
    connected.exchange()
    assert not connected.follower.partitions
    assert not connected.leader.partitions
    assert not connected.leader.changed(leader)


def test_records_for_an_earlier_slot_are_returned_unread() -> None:
    connected = pair()
    connected.to_leader()
    parts = connected.leader.data_frame()
    assert parts is not None
    connected.follower.follow(connected.followers[0].partition, TOPIC_ID)
    connected.deliver(parts)
    assert not connected.follower.step(NOW_MS)
    assert connected.followers[0].log.log_end_offset == 0
    connected.exchange()
    assert_equal(connected)


# Lies.


@pytest.mark.parametrize(
    "frame",
    [
        encode_follows([Follow(0, TOPIC_ID, 0, EPOCH, 0, -1, 0, 0)]),
        encode_progress(1 << 30, []),
        encode_progress(0, [FollowerProgress(0, EPOCH, 99, 99, 0)]),
    ],
)
def test_a_follower_cannot_claim_what_was_not_sent(frame: bytes) -> None:
    connected = pair()
    connected.exchange()
    with pytest.raises(ProtocolViolation):
        connected.leader.received(frame)


def test_a_leader_cannot_leave_out_records() -> None:
    connected = pair()
    connected.to_leader()
    with pytest.raises(ProtocolViolation):
        connected.follower.received(encode_portions([(0, EPOCH, 0, 0, 0, 0, 1, 2, 0)]))


def test_a_damaged_batch_is_refused_and_changes_nothing() -> None:
    connected = pair()
    connected.to_leader()
    connected.follower.received(encode_portions([(0, EPOCH, 0, 0, 0, 0, 0, 1, 70)]) + b"\0" * 70)
    connected.follower.step(NOW_MS)
    assert [each.task for each in connected.follower.interruptions] == [None]
    assert connected.followers[0].log.log_end_offset == 0
    assert connected.followers[0].partition.offline.reason is None


def test_a_skip_that_no_compaction_explains_takes_the_follower_offline() -> None:
    connected = pair()
    connected.to_leader()
    connected.follower.received(encode_portions([(0, EPOCH, 0, 0, 0, 0, 0, 5, 0)]))
    connected.follower.step(NOW_MS)
    assert connected.followers[0].partition.offline.reason is not None


def test_a_truncation_waits_for_a_flush() -> None:
    connected = deposed()
    follower = connected.followers[0]
    flush = follower.partition.begin_flush()
    follower.partition.log.write()
    if flush is None:
        follower.partition.log.copying.begin_epoch(9)
        flush = follower.partition.begin_flush()
    connected.to_leader()
    for frame in connected.leader.answers():
        connected.follower.received(frame)
    (interruption,) = connected.follower.interruptions
    assert interruption.task is not None
    if flush is not None:
        assert not interruption.task.begin(NOW_MS)
        flush.run()
        follower.partition.complete_flush(flush, None)
    carry_out(interruption.task)
    assert not follower.log.truncation.is_pending


def test_a_leader_that_ignores_the_window_is_cut_off() -> None:
    connected = pair(0)
    for _ in range(80):
        connected.leaders[0].append(BIG)
    connected.to_leader()
    frames = []
    while connected.leader._with_data or connected.leader._catching_up:
        parts = connected.leader.data_frame()
        assert parts is not None
        frames.append(joined(parts))
        connected.leader._unreturned_bytes = 0
    with pytest.raises(ProtocolViolation, match="window"):
        list(map(connected.follower.received, frames))
    assert connected.follower.received_bytes < WINDOW_BYTES + PORTION_BYTES


def test_a_log_start_above_the_high_watermark_is_refused() -> None:
    connected = pair()
    connected.to_leader()
    with pytest.raises(ProtocolViolation, match="log start"):
        connected.follower.received(encode_portions([(0, EPOCH, 9, 8, 0, 0, 9, 9, 0)]))


def test_an_in_sync_replica_never_drops_its_log_for_a_leader_that_starts_above_it() -> None:
    connected = pair()
    connected.exchange()
    follower = connected.followers[0]
    follower.partition.assume(Follower(leader=ONE, epoch=EPOCH, has_all_committed=True))
    connected.follower.received(encode_portions([(0, EPOCH, 9, 9, 0, 0, 9, 9, 0)]))
    connected.follower.step(NOW_MS)
    assert [each.task for each in connected.follower.interruptions] == [None]
    assert (follower.log.log_start_offset, follower.log.log_end_offset) == (0, 3)
    assert follower.partition.offline.reason is None
