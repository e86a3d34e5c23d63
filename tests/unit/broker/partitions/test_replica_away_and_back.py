"""A replica is taken from a broker and given back, while work on its old log still waits for the disk."""

import asyncio
import threading
from pathlib import Path

import pytest

from conveyor.adapters.disk import RealDisk, RealFile
from conveyor.broker.broker_node import BrokerNode
from conveyor.cluster.topic_creation import TopicRequest
from conveyor.kernel.ids import Offset
from conveyor.replication.follower_term import FollowerTerm
from conveyor.replication.partition import Partition
from conveyor.replication.streams.frames import Diverging
from conveyor.replication.streams.log_tasks import truncate
from tests.callers import CALLER
from tests.unit.broker.markers.producers import until
from tests.unit.broker.partitions.test_reconciler import ME, OTHER, assign, held_by
from tests.unit.broker.parts import BATCH, Storage, publish, running_parts

FIRST = "00000000000000000000.log"


class SlowSync:
    """Lets the next sync of a first segment take until it is released."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_armed = False
        self._reached, self.released = threading.Event(), threading.Event()
        sync = RealFile.sync

        def slow(file: RealFile) -> None:
            if self.is_armed and file._path.name == FIRST:
                self.is_armed = False
                self._reached.set()
                assert self.released.wait(20)
            sync(file)

        monkeypatch.setattr(RealFile, "sync", slow)

    async def reached(self) -> None:
        assert await asyncio.to_thread(self._reached.wait, 20)


async def away_and_back(broker: BrokerNode, epoch: int) -> Partition:
    """Return the partition that is given back."""
    await assign(broker, "t", 0, held_by(OTHER, epoch=epoch))
    await broker.partitions.reconciler.removed()
    await assign(broker, "t", 0, held_by(OTHER, ME, epoch=epoch + 1))
    return broker.partitions.table.find("t", 0)


def content(root: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (root / "logs/t-0").iterdir()}


@pytest.fixture
def slow(tmp_path: Path, storage: Storage, monkeypatch: pytest.MonkeyPatch) -> SlowSync:
    """The syncs of the storage, which is a real disk."""
    monkeypatch.setattr(storage, "disk", RealDisk(tmp_path, 100))
    return SlowSync(monkeypatch)


async def test_flush_of_the_old_log_changes_nothing(tmp_path: Path, storage: Storage, slow: SlowSync) -> None:
    async with running_parts(storage=storage) as broker:
        config = {"segment.bytes": "1024"}
        await broker.topics.create(CALLER, TopicRequest(name="t", partitions=1, config=config))
        for _ in range(1024 // len(BATCH)):
            await publish(broker, ("t", 0))
        slow.is_armed = True
        await publish(broker, ("t", 0), acks=1)  # A new segment begins: the flush seals the first one.
        await slow.reached()
        await away_and_back(broker, epoch=1)
        before = content(tmp_path)
        slow.released.set()
        await broker.partitions.flusher.drain()
        assert content(tmp_path) == before


async def test_truncation_of_the_old_log_cuts_nothing(tmp_path: Path, storage: Storage, slow: SlowSync) -> None:
    async with running_parts(storage=storage) as broker:
        await broker.topics.create(CALLER, TopicRequest(name="t", partitions=1))
        for _ in range(4):
            await publish(broker, ("t", 0))
        old = broker.partitions.table.find("t", 0)
        found = old.log.read(0, 1 << 20, 4, at_least_one=True)
        assert found is not None
        records = found.file.read(found.position, found.length)
        await assign(broker, "t", 0, held_by(OTHER, ME, epoch=1))
        assert isinstance(old.term, FollowerTerm)
        old.term.high_watermark = Offset(0)  # As if none of its records had been committed.
        slow.is_armed = True
        broker.partitions.log_tasks.start(old, truncate(old, old.term, Diverging(0, 0, 1)))
        await slow.reached()
        new = await away_and_back(broker, epoch=2)
        new.append_as_follower(records, 0)
        new.write()
        await broker.partitions.flusher.drain()
        assert new.log.flushes.flushed_offset == 4
        slow.released.set()
        await until(lambda: not broker.partitions.log_tasks.is_busy(old))
        assert content(tmp_path)[FIRST] == records
