"""A partition in memory, and what its owner does for it: writes, flushes, calls."""

import asyncio

from conveyor.kernel.errors import ErrorKind, RequestError, StorageFailure
from conveyor.kernel.ids import LeaderEpoch, NodeId, TopicPartition
from conveyor.records.checked_batch import CheckedBatch, own_batch
from conveyor.replication.follower_term import FollowerTerm
from conveyor.replication.leader_term import LeaderTerm
from conveyor.replication.partition import Partition
from conveyor.replication.roles import Leader
from conveyor.replication.term_context import OwnerCalls
from conveyor.settings.tree import TopicSettings
from conveyor.testing import MemoryDisk
from tests.unit.log import logs

IDENTITY = TopicPartition("t", 0)
EPOCH = LeaderEpoch(3)
NODE = NodeId(1)


def leader(epoch: LeaderEpoch) -> Leader:
    """The role of the only broker there is."""
    return Leader(leader=NODE, epoch=epoch, isr=(NODE,))


def batch(*values: bytes) -> CheckedBatch:
    """A plain producer's batch, as it is appended."""
    return own_batch(logs.batch(*values))


NO_CALLS = OwnerCalls[Partition](wants_write=lambda _: None, wants_flush=lambda _: None)
"""Of an owner that writes and flushes unasked."""


def led(partition: Partition) -> LeaderTerm:
    """The term of a partition that is led here."""
    assert partition.leader_term is not None
    return partition.leader_term


def followed(partition: Partition) -> FollowerTerm:
    """The term of a partition that is led elsewhere."""
    assert isinstance(partition.term, FollowerTerm)
    return partition.term


def set_at_change(partition: Partition, event: asyncio.Event) -> None:
    """Set an event at the partition's next change."""
    partition.changed.next(lambda _: event.set())


class Owner:
    """Owns one partition, as a broker does; counts what the partition wants, and does it when it is told to."""

    def __init__(self, topic: TopicSettings | None = None, disk: MemoryDisk | None = None) -> None:
        self.disk = disk or MemoryDisk()
        self.wanted: list[str] = []
        log = logs.open_topic_log(self.disk, topic)
        self.holds_lease = True
        calls = OwnerCalls[Partition](
            wants_write=lambda _: self.wanted.append("write"),
            wants_flush=lambda _: self.wanted.append("flush"),
            holds_lease=lambda: self.holds_lease,
        )
        self.partition = Partition(IDENTITY, log, leader(EPOCH), calls)

    def flush(self) -> None:
        """Run the flush that is wanted, from its beginning to its end."""
        job = self.partition.begin_flush()
        assert job is not None
        try:
            job.run()
        except StorageFailure as failure:
            self.partition.complete_flush(job, failure)
        else:
            self.partition.complete_flush(job, None)

    def settle(self) -> None:
        """Write, and flush if that is wanted."""
        self.partition.write()
        if "flush" in self.wanted:
            self.flush()
        self.wanted.clear()


class Calls:
    """Waiters that note how they were called."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, ErrorKind | None]] = []

    def __call__(self, error: RequestError | None) -> None:
        self.note("", error)

    def named(self, name: str) -> "NamedCalls":
        return NamedCalls(self, name)

    def note(self, name: str, error: RequestError | None) -> None:
        self.seen.append((name, None if error is None else error.kind))


class NamedCalls:
    """One waiter among others."""

    def __init__(self, calls: Calls, name: str) -> None:
        self._calls = calls
        self._name = name

    def __call__(self, error: RequestError | None) -> None:
        self._calls.note(self._name, error)
