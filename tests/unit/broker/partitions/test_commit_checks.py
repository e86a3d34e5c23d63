"""Partitions are checked while clients wait, and no timer is set otherwise."""

from conveyor.broker.partitions.commit_checks import CommitChecks
from conveyor.kernel.errors import ErrorKind
from conveyor.kernel.ids import LeaderEpoch, NodeId
from conveyor.replication.commit_deadline import CHECK_MS
from conveyor.replication.partition import Partition
from conveyor.replication.partition_refusals import COMMIT_TIMEOUT_MS
from conveyor.replication.replica_reports import ReplicaReport
from conveyor.replication.roles import Leader
from conveyor.testing import ManualClock, MemoryDisk
from tests.unit.log.logs import NOW_MS, open_topic_log
from tests.unit.replication.parts import IDENTITY, Calls, batch

ONE, TWO, EPOCH = NodeId(1), NodeId(2), LeaderEpoch(1)


def partition_of(checks: CommitChecks) -> Partition:
    """A leader that waits for one other replica, and one record."""
    role = Leader(leader=ONE, epoch=EPOCH, isr=(ONE, TWO))
    log = open_topic_log(MemoryDisk())
    made = Partition(IDENTITY, log, role, lambda _: None, lambda _: None, wants_checks=checks.add)
    made.append(batch(b"a"), NOW_MS)
    return made


def test_a_client_waits_no_longer_than_the_limit_and_one_check() -> None:
    clock, calls = ManualClock(), Calls()
    checks = CommitChecks(clock)
    partition = partition_of(checks)
    clock.advance(ms=10 * COMMIT_TIMEOUT_MS)
    partition.when_acknowledged(1, calls)
    clock.advance(ms=COMMIT_TIMEOUT_MS)
    assert calls.seen == []
    clock.advance(ms=CHECK_MS)
    assert calls.seen == [("", ErrorKind.REQUEST_TIMED_OUT)]


def test_a_partition_is_checked_until_no_client_waits() -> None:
    clock, calls = ManualClock(), Calls()
    checks = CommitChecks(clock)
    partition = partition_of(checks)
    partition.when_acknowledged(1, calls)
    partition.write()
    job = partition.begin_flush()
    assert job is not None
    job.run()
    partition.complete_flush(job, None)
    partition.replica_reported(TWO, EPOCH, ReplicaReport(1, 1))
    assert calls.seen == [("", None)]
    clock.advance(ms=CHECK_MS)
    partition.append(batch(b"b"), NOW_MS)
    states = [checks.is_checking]
    partition.when_acknowledged(2, calls)
    states.append(checks.is_checking)
    checks.stop()
    assert [*states, checks.is_checking] == [False, True, False]
