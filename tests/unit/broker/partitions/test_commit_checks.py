"""Partitions are checked while clients wait, and no timer is set otherwise."""

from typing import cast

from conveyor.broker.metadata.metadata import Metadata
from conveyor.broker.partitions.commit_checks import CommitChecks
from conveyor.broker.partitions.disk_room import DiskRoom
from conveyor.broker.partitions.partition_table import PartitionTable
from conveyor.kernel.errors import ErrorKind
from conveyor.kernel.ids import LeaderEpoch, NodeId
from conveyor.replication.commit_deadline import CHECK_MS
from conveyor.replication.partition import Partition
from conveyor.replication.partition_refusals import COMMIT_TIMEOUT_MS
from conveyor.replication.replica_progress import ReplicaReport
from conveyor.replication.roles import Leader
from conveyor.replication.term_context import OwnerCalls
from conveyor.settings.tree import DiskSettings
from conveyor.testing import ManualClock, MemoryDisk
from tests.unit.log.logs import NOW_MS, open_topic_log
from tests.unit.replication.parts import IDENTITY, Calls, batch, led

ONE, TWO, EPOCH = NodeId(1), NodeId(2), LeaderEpoch(1)


def checked(clock: ManualClock) -> tuple[CommitChecks, Partition]:
    """A leader that waits for one other replica, and one record."""
    role = Leader(leader=ONE, epoch=EPOCH, isr=(ONE, TWO))
    partitions = PartitionTable(cast("Metadata", None), DiskRoom(MemoryDisk(), DiskSettings()))
    checks = CommitChecks(clock, partitions)
    calls = OwnerCalls[Partition](wants_write=lambda _: None, wants_flush=lambda _: None, wants_checks=checks.add)
    partition = Partition(IDENTITY, open_topic_log(MemoryDisk()), role, calls)
    partitions.put(partition)
    partition.append(batch(b"a"), NOW_MS)
    return checks, partition


def test_a_client_waits_no_longer_than_the_limit_and_one_check() -> None:
    clock, calls = ManualClock(), Calls()
    _, partition = checked(clock)
    clock.advance(ms=10 * COMMIT_TIMEOUT_MS)
    partition.term.when_acknowledged(1, calls)
    clock.advance(ms=COMMIT_TIMEOUT_MS)
    assert calls.seen == []
    clock.advance(ms=CHECK_MS)
    assert calls.seen == [("", ErrorKind.REQUEST_TIMED_OUT)]


def test_a_partition_is_checked_until_no_client_waits() -> None:
    clock, calls = ManualClock(), Calls()
    checks, partition = checked(clock)
    partition.term.when_acknowledged(1, calls)
    partition.write()
    job = partition.begin_flush()
    assert job is not None
    job.run()
    partition.complete_flush(job, None)
    led(partition).replicas.reported(TWO, ReplicaReport(1, 1))
    assert calls.seen == [("", None)]
    clock.advance(ms=CHECK_MS)
    partition.append(batch(b"b"), NOW_MS)
    states = [checks._alarm.is_set]
    partition.term.when_acknowledged(2, calls)
    states.append(checks._alarm.is_set)
    checks.stop()
    assert [*states, checks._alarm.is_set] == [False, True, False]
