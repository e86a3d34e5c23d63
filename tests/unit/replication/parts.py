"""A partition in memory, and what its owner does for it: writes, flushes, calls."""

from conveyor.kernel.errors import ErrorKind, RequestError, StorageFailure
from conveyor.kernel.ids import LeaderEpoch, NodeId, TopicPartition
from conveyor.records.checked_batch import CheckedBatch, own_batch
from conveyor.replication.partition import Partition
from conveyor.replication.roles import Leader
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


class Owner:
    """Owns one partition, as a broker does; counts what the partition wants, and does it when it is told to."""

    def __init__(self, topic: TopicSettings | None = None, disk: MemoryDisk | None = None) -> None:
        self.disk = disk or MemoryDisk()
        self.wanted: list[str] = []
        log = logs.open_topic_log(self.disk, topic)
        self.partition = Partition(
            IDENTITY, log, leader(EPOCH), lambda _: self.wanted.append("write"), lambda _: self.wanted.append("flush")
        )

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
