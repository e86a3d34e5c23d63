"""A follower that was compacted because of records which an unclean election has given up begins its copy again."""

from dataclasses import replace

import pytest

from conveyor.kernel.ids import LeaderEpoch, Offset
from conveyor.log.compaction.key_compaction import CompactionResult, compact
from conveyor.log.compaction.swap import SwapJob
from conveyor.log.log import Log
from conveyor.records.checked_batch import own_batch
from conveyor.records.record import encode_batch
from conveyor.replication.roles import Leader
from conveyor.replication.streams.frames import Diverging
from conveyor.replication.streams.log_tasks import AllowGaps, truncate
from conveyor.settings.tree import TopicSettings
from tests.unit.log.logs import NOW_MS, all_below, contents
from tests.unit.replication.parts import followed, led
from tests.unit.replication.streams.pairs import EPOCH, FOLLOWS, LEADS, ONE, TWO, Pair, Replica, carry_out

BETWEEN = LeaderEpoch(EPOCH + 1)
AFTER = LeaderEpoch(EPOCH + 2)
COMPACTED = TopicSettings(segment_bytes=200, cleanup_policy="compact", min_cleanable_dirty_ratio=0)
ALONE = replace(LEADS, isr=(ONE,), partition_epoch=1)
ELECTED = replace(ALONE, epoch=AFTER)
LEADS_ALONE = Leader(leader=TWO, isr=(TWO,), epoch=BETWEEN)
FOLLOWS_BETWEEN = replace(FOLLOWS, leader=TWO, epoch=BETWEEN)
MARKED = replace(FOLLOWS, epoch=AFTER, unclean_epoch=AFTER)


def filled(batches: int) -> Replica:
    """Return a leader's log. Each batch has a key that the next batch has, too, and one of its own."""
    made = Replica(LEADS, COMPACTED)
    put(made, range(batches))
    return made


def put(replica: Replica, numbers: range) -> None:
    for number in numbers:
        content = encode_batch([(NOW_MS, key, b"%d" % number, ()) for key in (b"shared", b"own %d" % number)])
        replica.partition.append(own_batch(content), NOW_MS)
        replica.settle()


def elected(batches: int) -> Replica:
    """Return the log of a leader that was elected uncleanly, with the first batches."""
    made = filled(batches)
    made.partition.assume(ELECTED)
    return made


def compacted(replica: Replica) -> CompactionResult:
    plan = replica.log.compaction.plan(all_below(replica.log.flushes.flushed_offset), NOW_MS, 100)
    assert plan is not None
    return compact(replica.disk, plan)


def begin_swap(log: Log, result: CompactionResult) -> SwapJob:
    job = log.compaction.begin_swap(result)
    assert job is not None
    return job


def swap(replica: Replica) -> None:
    result = compacted(replica)
    replica.log.compaction.complete_swap(result, begin_swap(replica.log, result).run())


def half_copied() -> Pair:
    """The link ends after the follower has copied two batches, without the shared key, from a compacted log."""
    leader = filled(10)
    leader.partition.assume(ALONE)
    swap(leader)
    connected = Pair([leader], [Replica(FOLLOWS, COMPACTED)])
    for _ in range(2):  # The first portion is sent again once gaps are allowed.
        connected.throttle.is_open, connected.throttle.portions = True, 1
        connected.exchange()
    assert contents(connected.followers[0].log) == [(1, b"0"), (3, b"1")]
    return follow_anew(connected, leader)


def follow_anew(connected: Pair, leader: Replica) -> Pair:
    """Begin a new link, to another leader."""
    connected.follower.close()
    connected.leaders = [leader]
    connected.throttle.is_open, connected.throttle.portions = True, None
    connected.connect()
    return connected


def restarts_of(connected: Pair) -> int:
    return connected.followers[0].log.truncation._jobs.truncations_count


def test_copy_of_batches_that_have_lost_records_knows_where_its_leader_was_compacted() -> None:
    """No offset between its batches is missing."""
    connected = half_copied()
    follower, leader = connected.followers[0].log, connected.leaders[0].log
    assert follower.log_end_offset == 4
    assert follower.copying.gap_offset == follower.copying.compacted_offset == leader.copying.compacted_offset > 4


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("batches", [1, 2, 5])
def test_copy_that_lacks_records_begins_again_with_a_leader_that_was_elected_uncleanly(
    batches: int, restarts: bool
) -> None:
    """Also if that leader's log ends where the copy does. Nothing counts before the copy has begun again."""
    connected = half_copied()
    leader, follower = elected(batches), connected.followers[0]
    if restarts:
        follower.open(MARKED)
    else:
        follower.partition.assume(MARKED)
    follow_anew(connected, leader)
    connected.to_leader()
    assert led(leader.partition).replicas.durable_offset_of(TWO) == 0
    assert follower.log.log_end_offset == 4
    connected.exchange()
    assert contents(follower.log) == contents(leader.log)
    assert led(leader.partition).replicas.durable_offset_of(TWO) == 2 * batches


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("appended", [0, 1, 20])
def test_copy_that_lacks_records_begins_again_also_after_it_has_led(appended: int, restarts: bool) -> None:
    connected = half_copied()
    follower = connected.followers[0]
    connected.follower.close()
    follower.partition.assume(LEADS_ALONE)
    put(follower, range(100, 100 + appended))
    if restarts:
        follower.open(MARKED)
    else:
        follower.partition.assume(MARKED)
    leader = elected(5)
    follow_anew(connected, leader).exchange()
    assert contents(follower.log) == contents(leader.log)


def test_copy_of_a_leader_that_lacks_records_begins_again_with_one_that_has_them() -> None:
    lacking = half_copied().followers[0]
    lacking.partition.assume(LEADS_ALONE)
    put(lacking, range(100, 102))
    connected = Pair([lacking], [Replica(FOLLOWS_BETWEEN, COMPACTED)], ONE)
    connected.exchange()
    follower = connected.followers[0]
    assert contents(follower.log) == contents(lacking.log)
    follower.partition.assume(MARKED)
    leader = elected(5)
    follow_anew(connected, leader).exchange()
    assert contents(follower.log) == contents(leader.log)


@pytest.mark.parametrize("restarts", [False, True])
def test_replicas_of_a_leader_with_half_a_copy_need_no_tombstones_above_its_end(restarts: bool) -> None:
    """A start finds the bound of the copy on the disk, and the leader lowers it again."""
    follower = half_copied().followers[0]
    carry_out(AllowGaps(follower.partition, 30, 30))
    follower.partition.assume(LEADS_ALONE)
    put(follower, range(100, 101))
    if restarts:
        follower.open(replace(LEADS_ALONE, epoch=AFTER))
    assert follower.log.compaction.removed_end_offset == (6 if restarts else 4) <= follower.log.log_end_offset


def test_copy_that_lacks_records_stays_as_long_as_no_leader_answers() -> None:
    connected = half_copied()
    follower = connected.followers[0]
    follower.partition.assume(MARKED)
    follow_anew(connected, filled(2))  # It has not been elected yet.
    connected.exchange()
    assert contents(follower.log) == [(1, b"0"), (3, b"1")]


def test_copy_that_lacks_records_begins_again_also_if_the_topic_is_not_compacted_any_more() -> None:
    connected = half_copied()
    leader, follower = elected(5), connected.followers[0]
    leader.log.use(TopicSettings())
    follower.partition.assume(MARKED)
    follow_anew(connected, leader).exchange()
    assert contents(follower.log) == contents(leader.log)
    assert restarts_of(connected) == 1


def test_copy_continues_with_what_was_compacted_since_the_election() -> None:
    """Its first record of the new epoch is missing, so no record tells that it follows the elected leader already."""
    connected = Pair([leader := filled(2)], [Replica(FOLLOWS, COMPACTED)])
    connected.exchange()
    connected.follower.close()
    leader.partition.assume(ELECTED)
    put(leader, range(8))
    swap(leader)
    follower = connected.followers[0]
    follower.partition.assume(MARKED)
    connected.throttle.portions = 1
    connected.connect()
    connected.exchange()
    assert follower.log.log_end_offset == 4 < follower.log.copying.compacted_offset
    follow_anew(connected, leader).exchange()
    assert follower.log.log_end_offset == leader.log.log_end_offset
    assert restarts_of(connected) == 0


@pytest.mark.parametrize(("is_marked", "end_offset"), [(True, 0), (False, 14)])
def test_log_that_loses_what_it_was_compacted_by_is_emptied(is_marked: bool, end_offset: int) -> None:
    """Without an unclean election nothing that was committed is lost, so compaction has used only what stays."""
    follower = diverging_follower()
    swap(follower)
    if is_marked:
        follower.partition.assume(MARKED)
    else:
        followed(follower.partition).high_watermark = Offset(0)
    carry_out(truncate(follower.partition, followed(follower.partition), Diverging(0, EPOCH, 14)))
    assert follower.log.log_end_offset == end_offset


def test_log_that_keeps_what_it_was_compacted_by_is_cut() -> None:
    follower = diverging_follower()
    swap(follower)
    follower.partition.assume(MARKED)
    end_offset = follower.log.copying.compacted_offset
    carry_out(truncate(follower.partition, followed(follower.partition), Diverging(0, EPOCH, end_offset)))
    assert 0 < end_offset == follower.log.log_end_offset < 20


def test_log_is_emptied_also_while_its_compacted_segments_are_swapped_in() -> None:
    follower = diverging_follower()
    result = compacted(follower)
    job = begin_swap(follower.log, result)
    follower.partition.assume(MARKED)
    task = truncate(follower.partition, followed(follower.partition), Diverging(0, EPOCH, 14))
    assert not task.begin(NOW_MS)
    follower.log.compaction.complete_swap(result, job.run())
    carry_out(task)
    assert follower.log.log_end_offset == 0


def diverging_follower() -> Replica:
    """Return a replica that has followed, with ten batches."""
    connected = Pair([filled(10)], [Replica(FOLLOWS, COMPACTED)])
    connected.exchange()
    connected.follower.close()
    return connected.followers[0]
