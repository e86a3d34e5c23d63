"""A partition with several replicas: what the leader waits for, and what a follower takes over."""

import pytest

from conveyor.kernel.errors import ErrorKind, NotLeader, RequestError
from conveyor.kernel.ids import LeaderEpoch, NodeId
from conveyor.replication.commit_deadline import CHECK_MS
from conveyor.replication.partition import Partition
from conveyor.replication.partition_refusals import COMMIT_TIMEOUT_MS
from conveyor.replication.replica_reports import ReplicaReport
from conveyor.replication.roles import Follower, Leader
from conveyor.settings.tree import TopicSettings
from conveyor.testing import MemoryDisk
from tests.unit.log.logs import NOW_MS, read_bytes, values
from tests.unit.replication.parts import EPOCH, Calls, Owner, batch

ONE, TWO, THREE = NodeId(1), NodeId(2), NodeId(3)
NEXT = LeaderEpoch(EPOCH + 1)


class Seen:
    """Notes what a partition reports."""

    def __init__(self) -> None:
        self.events: list[tuple[str, int]] = []

    def written(self, partition: Partition) -> None:
        self.events.append(("written", partition.log.written_offset))

    def flushed(self, partition: Partition) -> None:
        self.events.append(("flushed", partition.log.flushed_offset))

    def committed(self, partition: Partition) -> None:
        self.events.append(("committed", partition.high_watermark))

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
    owner.partition.when_committed(1, calls)
    owner.partition.replica_reported(TWO, NEXT, ReplicaReport(1, 1))
    assert (owner.partition.high_watermark, calls.seen) == (0, [])
    owner.partition.replica_reported(THREE, NEXT, ReplicaReport(1, 1))
    assert (owner.partition.high_watermark, calls.seen) == (1, [("", None)])


@pytest.mark.parametrize(("policy", "expected"), [("ack", 0), ("os", 1)])
def test_the_policy_decides_whether_written_records_count(policy: str, expected: int) -> None:
    owner = owner_of(leading(ONE, TWO), topic=TopicSettings(flush_policy=policy))
    owner.partition.replica_reported(TWO, NEXT, ReplicaReport(1, 0))
    assert owner.partition.high_watermark == expected


def test_a_new_policy_counts_for_earlier_reports() -> None:
    owner = owner_of(leading(ONE, TWO), topic=TopicSettings(flush_policy="os"))
    owner.partition.replica_reported(TWO, NEXT, ReplicaReport(1, 1))
    owner.partition.append(batch(b"b"), NOW_MS)
    owner.partition.replica_reported(TWO, NEXT, ReplicaReport(2, 1))
    owner.partition.use(TopicSettings(flush_policy="ack"))
    owner.settle()
    assert owner.partition.high_watermark == 1
    owner.partition.use(TopicSettings(flush_policy="os"))
    assert owner.partition.high_watermark == 2


def test_a_report_of_another_epoch_does_not_count() -> None:
    owner = owner_of(leading(ONE, TWO))
    owner.partition.replica_reported(TWO, EPOCH, ReplicaReport(1, 1))
    assert owner.partition.high_watermark == 0
    owner.partition.replica_reported(TWO, NEXT, ReplicaReport(1, 1))
    owner.partition.append(batch(b"b"), NOW_MS)
    owner.settle()
    owner.partition.assume(leading(ONE, TWO, epoch=LeaderEpoch(NEXT + 1)))
    owner.partition.replica_reported(TWO, NEXT, ReplicaReport(2, 2))
    assert owner.partition.high_watermark == 1


def test_it_waits_for_a_pending_join_until_a_later_partition_epoch() -> None:
    owner = owner_of(leading(ONE))
    partition = owner.partition
    assert partition.high_watermark == 1
    partition.join(TWO, 0)
    partition.append(batch(b"b"), NOW_MS)
    owner.settle()
    assert partition.high_watermark == 1
    partition.assume(leading(ONE, partition_epoch=0, min_isr=0))
    assert partition.high_watermark == 1
    partition.assume(leading(ONE, partition_epoch=1))
    assert (partition.high_watermark, partition.joining) == (2, {})


def test_a_replica_joins_with_the_end_and_the_start_of_its_log() -> None:
    owner = owner_of(leading(ONE), records=3)
    assert not owner.partition.may_join(TWO)
    owner.partition.log.trim(2).run()
    reports = ((ReplicaReport(3, 3, 1), False), (ReplicaReport(2, 2, 2), False), (ReplicaReport(3, 3, 2), True))
    for report, may_join in reports:
        owner.partition.replica_reported(TWO, NEXT, report)
        assert owner.partition.may_join(TWO) == may_join


def test_a_refused_join_no_longer_counts() -> None:
    owner = owner_of(leading(ONE), records=0)
    owner.partition.join(TWO, 0)
    owner.partition.append(batch(b"a"), NOW_MS)
    owner.settle()
    owner.partition.end_join(TWO)
    assert owner.partition.high_watermark == 1


def test_it_rises_when_a_slow_replica_has_left_the_isr() -> None:
    owner = owner_of(leading(ONE, TWO, THREE))
    owner.partition.replica_reported(THREE, NEXT, ReplicaReport(1, 1))
    owner.partition.assume(leading(ONE, THREE, partition_epoch=1))
    assert owner.partition.high_watermark == 1


def test_it_is_frozen_while_the_isr_is_too_small() -> None:
    owner = owner_of(leading(ONE, min_isr=2))
    assert owner.partition.high_watermark == 0
    owner.partition.replica_reported(TWO, NEXT, ReplicaReport(1, 1))
    owner.partition.assume(leading(ONE, TWO, partition_epoch=1, min_isr=2))
    assert owner.partition.high_watermark == 1


def test_a_reopened_replica_begins_at_its_log_start() -> None:
    """Its own flushed records may never have been committed."""
    owner = owner_of(leading(ONE, TWO))
    again = Owner(disk=owner.disk)
    role = Leader(leader=ONE, epoch=EPOCH, isr=(ONE, TWO))
    log = again.partition.log
    partition = Partition(again.partition.identity, log, role, lambda _: None, lambda _: None)
    assert (log.flushed_offset, partition.high_watermark, partition.has_committed_epoch) == (1, 0, False)
    partition.replica_reported(TWO, EPOCH, ReplicaReport(1, 1))
    assert (partition.high_watermark, partition.has_committed_epoch) == (1, True)


def test_records_of_earlier_epochs_are_read_once_they_are_committed() -> None:
    owner = owner_of(leading(ONE, TWO))
    partition = owner.partition
    partition.assume(leading(ONE, TWO, epoch=LeaderEpoch(NEXT + 1)))
    assert partition.read(1, 1000, at_least_one=True) is None
    assert not partition.has_committed_epoch
    partition.replica_reported(TWO, LeaderEpoch(NEXT + 1), ReplicaReport(1, 1))
    assert partition.has_committed_epoch


def test_a_follower_appends_what_its_leader_has_and_takes_over_its_high_watermark() -> None:
    source = owner_of(leading(ONE), records=3)
    owner = Owner(disk=MemoryDisk())
    partition = owner.partition
    partition.replication = seen = Seen()
    partition.assume(Follower(leader=TWO, epoch=NEXT))
    content = read_bytes(source.partition.log, 0)
    assert partition.append_as_follower(content, NOW_MS) == len(content)
    partition.follow_high_watermark(9)
    assert (partition.high_watermark, owner.wanted) == (3, ["write"])
    owner.settle()
    assert values(partition.log) == [b"a"] * 3
    assert seen.events == [("written", 3), ("flushed", 3)]


def test_an_observer_learns_of_each_rise_of_a_leader() -> None:
    owner = owner_of(leading(ONE, TWO))
    owner.partition.replication = seen = Seen()
    owner.partition.replica_reported(TWO, NEXT, ReplicaReport(1, 1))
    assert seen.events == [("committed", 1)]


def test_producers_are_answered_when_too_few_replicas_stay_in_sync() -> None:
    owner, calls = owner_of(leading(ONE, TWO, min_isr=2), records=0), Calls()
    partition = owner.partition
    partition.append(batch(b"a"), NOW_MS)
    partition.when_acknowledged(1, calls.named("producer"))
    partition.when_committed(1, calls.named("reader"))
    owner.settle()
    partition.assume(leading(ONE, partition_epoch=1, min_isr=2))
    assert calls.seen == [("producer", ErrorKind.NOT_ENOUGH_REPLICAS_AFTER_APPEND)]
    partition.append(batch(b"b"), NOW_MS)
    partition.when_acknowledged(2, calls.named("late"))
    assert calls.seen[1:] == [("late", ErrorKind.NOT_ENOUGH_REPLICAS_AFTER_APPEND)]
    owner.settle()
    partition.replica_reported(TWO, NEXT, ReplicaReport(2, 2))
    partition.assume(leading(ONE, TWO, partition_epoch=2, min_isr=2))
    assert partition.high_watermark == 2
    partition.when_acknowledged(1, calls.named("duplicate"))
    assert calls.seen[2:] == [("reader", None), ("duplicate", None)]


def test_a_leader_alone_in_its_isr_commits_only_while_it_surely_leads() -> None:
    sure = [True]
    role = Leader(leader=ONE, epoch=NEXT, isr=(ONE,), is_sure=lambda: sure[0])
    owner, calls = owner_of(role), Calls()
    assert owner.partition.high_watermark == 1
    owner.partition.append(batch(b"b"), NOW_MS)
    owner.partition.when_committed(2, calls)
    sure[0] = False
    owner.settle()
    assert (owner.partition.high_watermark, calls.seen) == (1, [])
    with pytest.raises(NotLeader, match="another broker may lead"):
        owner.partition.append(batch(b"c"), NOW_MS)
    sure[0] = True
    owner.partition.commit_again()
    assert (owner.partition.high_watermark, calls.seen) == (2, [("", None)])


def test_leader_alone_in_its_isr_whose_lease_ends_before_the_write_acknowledges_nothing() -> None:
    """A process that is frozen between an append and the end of its tick has checked the lease too early."""
    sure = [True]
    owner, calls = owner_of(Leader(leader=ONE, epoch=NEXT, isr=(ONE,), is_sure=lambda: sure[0])), Calls()
    info = owner.partition.append(batch(b"b"), NOW_MS)
    owner.partition.when_written(info.last_offset + 1, calls)
    sure[0] = False
    owner.settle()
    assert calls.seen == [("", ErrorKind.NOT_LEADER)]


def test_clients_of_a_log_that_does_not_commit_are_answered_and_refused() -> None:
    owner, calls = owner_of(leading(ONE, TWO), records=0), Calls()
    partition = owner.partition
    assert not partition.check_commits()
    partition.append(batch(b"a"), NOW_MS)
    partition.when_acknowledged(1, calls.named("client"))
    partition.when_committed(1, calls.named("machine"))
    owner.settle()
    for _ in range(COMMIT_TIMEOUT_MS // CHECK_MS):
        assert partition.check_commits()
        assert calls.seen == []
        partition.check_replicas()
    partition.append(batch(b"b"), NOW_MS)
    partition.when_acknowledged(2, calls.named("late"))
    assert partition.check_commits()
    assert calls.seen == [("client", ErrorKind.REQUEST_TIMED_OUT)]
    with pytest.raises(RequestError, match="has not committed earlier records for 15 seconds") as refused:
        partition.check_replicas()
    assert refused.value.kind is ErrorKind.NOT_ENOUGH_REPLICAS
    owner.settle()
    partition.replica_reported(TWO, NEXT, ReplicaReport(2, 2))
    assert calls.seen[1:] == [("machine", None), ("late", None)]
    partition.check_replicas()
    assert not partition.check_commits()


def test_a_log_that_commits_slowly_is_not_overdue() -> None:
    owner, calls = owner_of(leading(ONE, TWO), records=0), Calls()
    partition = owner.partition
    for number in range(1, 20):
        partition.append(batch(b"a"), NOW_MS)
        partition.when_acknowledged(number, calls)
        owner.settle()
        assert partition.check_commits()
        partition.replica_reported(TWO, NEXT, ReplicaReport(number - 1, number - 1))
    assert {error for _, error in calls.seen} == {None}


def test_a_new_epoch_has_nothing_overdue() -> None:
    owner, calls = owner_of(leading(ONE, TWO)), Calls()
    partition = owner.partition
    partition.when_acknowledged(1, calls)
    while partition.check_commits():
        pass
    assert calls.seen == [("", ErrorKind.REQUEST_TIMED_OUT)]
    partition.assume(leading(ONE, TWO, epoch=LeaderEpoch(NEXT + 1)))
    partition.check_replicas()
