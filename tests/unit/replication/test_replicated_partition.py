"""A partition with several replicas: what the leader waits for, and what a follower takes over."""

import gc
import weakref

import pytest

from conveyor.broker.fetch.list_offsets import has_committed_epoch
from conveyor.kernel.errors import ErrorKind, NotLeader, RequestError, TransientFailure
from conveyor.kernel.ids import LeaderEpoch, NodeId
from conveyor.replication.commit_deadline import CHECK_MS
from conveyor.replication.partition import Partition
from conveyor.replication.partition_refusals import COMMIT_TIMEOUT_MS
from conveyor.replication.reads import NOTHING, read_available, read_committed
from conveyor.replication.replica_progress import ReplicaReport
from conveyor.replication.roles import Follower, Leader
from conveyor.replication.term_context import reported_offset
from conveyor.settings.tree import TopicSettings
from conveyor.testing import MemoryDisk
from tests.unit.log import logs
from tests.unit.log.following.test_leader_copy import stored
from tests.unit.log.logs import NOW_MS, allow_gaps, open_topic_log, read_bytes, values
from tests.unit.replication.parts import EPOCH, IDENTITY, NO_CALLS, Calls, Owner, batch, followed, leader, led

ONE, TWO, THREE = NodeId(1), NodeId(2), NodeId(3)
NEXT = LeaderEpoch(EPOCH + 1)


class Seen:
    """Notes what a partition reports."""

    def __init__(self) -> None:
        self.events: list[tuple[str, int]] = []

    def written(self, partition: Partition) -> None:
        self.events.append(("written", partition.log.written_offset))

    def flushed(self, partition: Partition) -> None:
        self.events.append(("flushed", partition.log.flushes.flushed_offset))

    def trimmed(self, partition: Partition) -> None:
        self.events.append(("trimmed", partition.log.log_start_offset))

    async def trimmed_by_all(self, partition: Partition, offset: int, timeout_ms: int) -> int:
        raise AssertionError("no test waits for replicas")


def leading(*isr: NodeId, epoch: LeaderEpoch = NEXT, partition_epoch: int = 0, min_isr: int = 1) -> Leader:
    return Leader(leader=ONE, epoch=epoch, isr=isr, partition_epoch=partition_epoch, min_isr=min_isr)


def owner_of(role: Leader, records: int = 1, topic: TopicSettings | None = None) -> Owner:
    """A leader with some flushed records."""
    owner = Owner(topic)
    owner.partition.assume(role)
    for _ in range(records):
        owner.partition.append(batch(b"a"), NOW_MS)
    owner.settle()
    return owner


def test_the_high_watermark_waits_for_all_members_of_the_isr() -> None:
    owner, calls = owner_of(leading(ONE, TWO, THREE)), Calls()
    owner.partition.term.when_committed(1, calls)
    led(owner.partition).replicas.reported(TWO, ReplicaReport(1, 1))
    assert (owner.partition.term.high_watermark, calls.seen) == (0, [])
    led(owner.partition).replicas.reported(THREE, ReplicaReport(1, 1))
    assert (owner.partition.term.high_watermark, calls.seen) == (1, [("", None)])


@pytest.mark.parametrize(("policy", "expected"), [("ack", 0), ("os", 1)])
def test_the_policy_decides_whether_written_records_count(policy: str, expected: int) -> None:
    owner = owner_of(leading(ONE, TWO), topic=TopicSettings(flush_policy=policy))
    led(owner.partition).replicas.reported(TWO, ReplicaReport(1, 0))
    assert owner.partition.term.high_watermark == expected


def test_a_new_policy_counts_for_earlier_reports() -> None:
    owner = owner_of(leading(ONE, TWO), topic=TopicSettings(flush_policy="os"))
    led(owner.partition).replicas.reported(TWO, ReplicaReport(1, 1))
    owner.partition.append(batch(b"b"), NOW_MS)
    led(owner.partition).replicas.reported(TWO, ReplicaReport(2, 1))
    owner.partition.use(TopicSettings(flush_policy="ack"))
    owner.settle()
    assert owner.partition.term.high_watermark == 1
    owner.partition.use(TopicSettings(flush_policy="os"))
    assert owner.partition.term.high_watermark == 2


def test_a_report_of_an_earlier_epoch_does_not_count() -> None:
    owner = owner_of(leading(ONE, TWO))
    before, calls = led(owner.partition), Calls()
    before.replicas.reported(TWO, ReplicaReport(1, 1))
    owner.partition.append(batch(b"b"), NOW_MS)
    owner.settle()
    owner.partition.term.when_committed(2, calls)
    owner.partition.assume(leading(ONE, TWO, epoch=LeaderEpoch(NEXT + 1)))
    before.replicas.reported(TWO, ReplicaReport(2, 2))
    assert (owner.partition.term.high_watermark, calls.seen) == (1, [])
    led(owner.partition).replicas.reported(TWO, ReplicaReport(2, 2))
    assert (owner.partition.term.high_watermark, calls.seen) == (2, [("", None)])


def test_a_term_that_has_ended_refuses_whoever_waits_for_it() -> None:
    owner, calls = owner_of(leading(ONE, TWO)), Calls()
    before = led(owner.partition)
    before.when_committed(1, calls.named("first"))
    before.when_written(2, calls.named("second"))
    owner.partition.assume(leading(ONE, TWO, epoch=LeaderEpoch(NEXT + 1)))
    assert calls.seen == []
    before.when_committed(1, calls.named("late"))
    assert calls.seen == [("late", ErrorKind.NOT_LEADER)]
    owner.partition.assume(Follower(leader=TWO, epoch=LeaderEpoch(NEXT + 2)))
    assert calls.seen[1:] == [("second", ErrorKind.NOT_LEADER), ("first", ErrorKind.NOT_LEADER)]


def test_it_waits_for_a_pending_join_until_a_later_partition_epoch() -> None:
    owner = owner_of(leading(ONE))
    partition = owner.partition
    assert partition.term.high_watermark == 1
    led(partition).replicas.join(TWO, 0)
    partition.append(batch(b"b"), NOW_MS)
    owner.settle()
    assert partition.term.high_watermark == 1
    partition.assume(leading(ONE, partition_epoch=0, min_isr=0))
    assert partition.term.high_watermark == 1
    partition.assume(leading(ONE, partition_epoch=1))
    assert (partition.term.high_watermark, led(partition).replicas.joining) == (2, {})


def test_a_replica_joins_with_the_end_and_the_start_of_its_log() -> None:
    owner = owner_of(leading(ONE), records=3)
    assert not led(owner.partition).may_join(TWO)
    owner.partition.log.start.trim(2).run()
    reports = ((ReplicaReport(3, 3, 1), False), (ReplicaReport(2, 2, 2), False), (ReplicaReport(3, 3, 2), True))
    for report, may_join in reports:
        led(owner.partition).replicas.reported(TWO, report)
        assert led(owner.partition).may_join(TWO) == may_join


def test_a_replica_that_may_begin_its_copy_again_does_not_join() -> None:
    """One that ends below tombstones which this leader has removed begins again, unless it knows that it has joined."""
    owner = owner_of(leading(ONE), records=1)
    # As a broker finds it that has led before its copy was complete.
    owner.partition.log.compaction.removed_end_offset = 3
    for end_offset, may_join in ((1, False), (2, False), (3, True)):
        led(owner.partition).replicas.reported(TWO, ReplicaReport(end_offset, end_offset))
        assert led(owner.partition).may_join(TWO) == may_join


def test_a_refused_join_no_longer_counts() -> None:
    owner = owner_of(leading(ONE), records=0)
    led(owner.partition).replicas.join(TWO, 0)
    owner.partition.append(batch(b"a"), NOW_MS)
    owner.settle()
    led(owner.partition).replicas.end_join(TWO)
    assert owner.partition.term.high_watermark == 1


def test_it_rises_when_a_slow_replica_has_left_the_isr() -> None:
    owner = owner_of(leading(ONE, TWO, THREE))
    led(owner.partition).replicas.reported(THREE, ReplicaReport(1, 1))
    owner.partition.assume(leading(ONE, THREE, partition_epoch=1))
    assert owner.partition.term.high_watermark == 1


def test_it_is_frozen_while_the_isr_is_too_small() -> None:
    owner = owner_of(leading(ONE, min_isr=2))
    assert owner.partition.term.high_watermark == 0
    led(owner.partition).replicas.reported(TWO, ReplicaReport(1, 1))
    owner.partition.assume(leading(ONE, TWO, partition_epoch=1, min_isr=2))
    assert owner.partition.term.high_watermark == 1


def test_a_reopened_replica_begins_at_its_log_start() -> None:
    """Its own flushed records may never have been committed."""
    owner = owner_of(leading(ONE, TWO))
    again = Owner(disk=owner.disk)
    role = Leader(leader=ONE, epoch=EPOCH, isr=(ONE, TWO))
    log = again.partition.log
    partition = Partition(again.partition.identity, log, role, NO_CALLS)
    assert (log.flushes.flushed_offset, partition.term.high_watermark, has_committed_epoch(led(partition))) == (
        1,
        0,
        False,
    )
    led(partition).replicas.reported(TWO, ReplicaReport(1, 1))
    assert (partition.term.high_watermark, has_committed_epoch(led(partition))) == (1, True)


def test_records_of_earlier_epochs_are_read_once_they_are_committed() -> None:
    owner = owner_of(leading(ONE, TWO))
    partition = owner.partition
    partition.assume(leading(ONE, TWO, epoch=LeaderEpoch(NEXT + 1)))
    assert read_available(partition, 1, 1000, at_least_one=True) is None
    assert not has_committed_epoch(led(partition))
    led(partition).replicas.reported(TWO, ReplicaReport(1, 1))
    assert has_committed_epoch(led(partition))


def test_a_leader_refuses_no_offset_that_its_successor_may_have_committed() -> None:
    """It does not know yet that it was replaced. A consumer that continues at the successor's end would be reset."""
    partition = owner_of(leading(ONE, TWO, THREE)).partition
    led(partition).replicas.reported(TWO, ReplicaReport(1, 1))
    assert partition.term.high_watermark == 0
    assert read_available(partition, 1, 1000, at_least_one=True) is None
    assert read_committed(partition, 1, 1000, at_least_one=True) is NOTHING


def test_a_follower_appends_what_its_leader_has_and_takes_over_its_high_watermark() -> None:
    source = owner_of(leading(ONE), records=3)
    owner = Owner(disk=MemoryDisk())
    partition = owner.partition
    partition.observer = seen = Seen()
    partition.assume(Follower(leader=TWO, epoch=NEXT))
    content = read_bytes(source.partition.log, 0)
    assert partition.append_as_follower(content, NOW_MS) == len(content)
    followed(partition).follow(9, 0)
    assert (partition.term.high_watermark, owner.wanted) == (3, ["write"])
    owner.settle()
    assert values(partition.log) == [b"a"] * 3
    assert seen.events == [("written", 3), ("flushed", 3)]


def test_a_follower_that_copies_across_a_wide_gap_flushes_under_policy_os() -> None:
    """It reports what follows the gap once it is flushed, and could not join otherwise."""
    owner, wide = Owner(TopicSettings(flush_policy="os")), 1 << 40
    partition = owner.partition
    partition.append(batch(b"a"), NOW_MS)
    owner.settle()
    partition.assume(Follower(leader=TWO, epoch=NEXT))
    allow_gaps(partition.log, wide)
    partition.append_as_follower(stored(logs.batch(b"b"), wide, NEXT), NOW_MS)
    partition.write()
    assert (reported_offset(partition.log), owner.wanted) == (0, ["write", "flush"])
    owner.flush()
    assert reported_offset(partition.log) == wide + 1


def test_listeners_learn_of_each_rise_of_a_leader() -> None:
    owner, seen = owner_of(leading(ONE, TWO)), list[int]()
    owner.partition.changed.listen(lambda _: seen.append(owner.partition.term.high_watermark))
    led(owner.partition).replicas.reported(TWO, ReplicaReport(1, 1))
    assert seen == [1]


def test_producers_are_answered_when_too_few_replicas_stay_in_sync() -> None:
    owner, calls = owner_of(leading(ONE, TWO, min_isr=2), records=0), Calls()
    partition = owner.partition
    partition.append(batch(b"a"), NOW_MS)
    partition.term.when_acknowledged(1, calls.named("producer"))
    partition.term.when_committed(1, calls.named("reader"))
    owner.settle()
    partition.assume(leading(ONE, partition_epoch=1, min_isr=2))
    assert calls.seen == [("producer", ErrorKind.NOT_ENOUGH_REPLICAS_AFTER_APPEND)]
    partition.append(batch(b"b"), NOW_MS)
    partition.term.when_acknowledged(2, calls.named("late"))
    assert calls.seen[1:] == [("late", ErrorKind.NOT_ENOUGH_REPLICAS_AFTER_APPEND)]
    owner.settle()
    led(partition).replicas.reported(TWO, ReplicaReport(2, 2))
    partition.assume(leading(ONE, TWO, partition_epoch=2, min_isr=2))
    assert partition.term.high_watermark == 2
    partition.term.when_acknowledged(1, calls.named("duplicate"))
    assert calls.seen[2:] == [("reader", None), ("duplicate", None)]


def test_a_leader_alone_in_its_isr_commits_only_while_it_surely_leads() -> None:
    role = Leader(leader=ONE, epoch=NEXT, isr=(ONE,), replicas=(ONE, TWO))
    owner, calls = owner_of(role), Calls()
    assert owner.partition.term.high_watermark == 1
    owner.partition.append(batch(b"b"), NOW_MS)
    owner.partition.term.when_committed(2, calls)
    owner.holds_lease = False
    owner.settle()
    assert (owner.partition.term.high_watermark, calls.seen) == (1, [])
    with pytest.raises(NotLeader, match="another broker may lead"):
        owner.partition.append(batch(b"c"), NOW_MS)
    owner.holds_lease = True
    led(owner.partition).advance()
    assert (owner.partition.term.high_watermark, calls.seen) == (2, [("", None)])


def test_leader_alone_in_its_isr_whose_lease_ends_before_the_write_acknowledges_nothing() -> None:
    """A process that is frozen between an append and the end of its tick has checked the lease too early."""
    owner, calls = owner_of(Leader(leader=ONE, epoch=NEXT, isr=(ONE,), replicas=(ONE, TWO))), Calls()
    info = owner.partition.append(batch(b"b"), NOW_MS)
    owner.partition.term.when_written(info.last_offset + 1, calls)
    owner.holds_lease = False
    owner.settle()
    assert calls.seen == [("", ErrorKind.NOT_LEADER)]


def test_clients_of_a_log_that_does_not_commit_are_answered_and_refused() -> None:
    owner, calls = owner_of(leading(ONE, TWO), records=0), Calls()
    partition = owner.partition
    assert not led(partition).check_commits()
    partition.append(batch(b"a"), NOW_MS)
    partition.term.when_acknowledged(1, calls.named("client"))
    partition.term.when_committed(1, calls.named("machine"))
    owner.settle()
    for _ in range(COMMIT_TIMEOUT_MS // CHECK_MS):
        assert led(partition).check_commits()
        assert calls.seen == []
        partition.term.check_replicas()
    partition.append(batch(b"b"), NOW_MS)
    partition.term.when_acknowledged(2, calls.named("late"))
    assert led(partition).check_commits()
    assert calls.seen == [("client", ErrorKind.REQUEST_TIMED_OUT)]
    with pytest.raises(RequestError, match="has not committed earlier records for 15 seconds") as refused:
        partition.term.check_replicas()
    assert refused.value.kind is ErrorKind.NOT_ENOUGH_REPLICAS
    owner.settle()
    led(partition).replicas.reported(TWO, ReplicaReport(2, 2))
    assert calls.seen[1:] == [("machine", None), ("late", None)]
    partition.term.check_replicas()
    assert not led(partition).check_commits()


def test_a_log_that_commits_slowly_is_not_overdue() -> None:
    owner, calls = owner_of(leading(ONE, TWO), records=0), Calls()
    partition = owner.partition
    for number in range(1, 20):
        partition.append(batch(b"a"), NOW_MS)
        partition.term.when_acknowledged(number, calls)
        owner.settle()
        assert led(partition).check_commits()
        led(partition).replicas.reported(TWO, ReplicaReport(number - 1, number - 1))
    assert {error for _, error in calls.seen} == {None}


def test_a_new_epoch_has_nothing_overdue() -> None:
    owner, calls = owner_of(leading(ONE, TWO)), Calls()
    partition = owner.partition
    partition.term.when_acknowledged(1, calls)
    while led(partition).check_commits():
        pass
    assert calls.seen == [("", ErrorKind.REQUEST_TIMED_OUT)]
    partition.assume(leading(ONE, TWO, epoch=LeaderEpoch(NEXT + 1)))
    partition.term.check_replicas()


@pytest.mark.parametrize("resigns", [False, True])
def test_term_that_begins_while_the_partition_is_offline_keeps_no_log_alive(resigns: bool) -> None:
    gc.collect()
    gc.disable()
    try:
        partition = Partition(IDENTITY, open_topic_log(MemoryDisk()), leader(EPOCH), NO_CALLS)
        partition.go_offline(TransientFailure("the disk was full"))
        partition.assume(leader(NEXT))
        if resigns:
            partition.assume(led(partition).role.resigned())
        log = weakref.ref(partition.log)
        del partition
        assert log() is None
    finally:
        gc.enable()
