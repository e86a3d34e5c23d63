"""A deleted and recreated topic inherits nothing from the first one, even if work on its files was in progress."""

import asyncio
import logging
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from threading import Event
from uuid import UUID

import pytest

from conveyor.adapters.compactor import ThreadCompactor
from conveyor.broker.broker_node import BrokerNode
from conveyor.broker.partitions.compaction import Compaction
from conveyor.cluster.topic_creation import TopicRequest
from conveyor.kernel.errors import NotLeader, StorageFailure
from conveyor.kernel.ids import TopicId
from conveyor.log.compaction.compaction_plan import CompactionPlan
from conveyor.log.compaction.key_compaction import CompactionResult
from conveyor.log.partition_directory import MARKER, decode_owner, encode_owner
from conveyor.replication.replica_facts import NAME as CHECKPOINT
from conveyor.testing import MemoryDisk
from tests.callers import CALLER
from tests.unit.broker.parts import Storage, publish, running_parts

COMPACTED = TopicRequest(
    name="c", config={"cleanup.policy": "compact", "segment.bytes": "1024", "min.cleanable.dirty.ratio": "0"}
)
MARK = f"logs/c-0/{MARKER}"


class LateCompactor:
    """A compactor that starts only after the topic was deleted and recreated."""

    def __init__(self, broker: BrokerNode, disk: MemoryDisk) -> None:
        self._broker = broker
        self._compactor = ThreadCompactor(disk)
        self.has_failed = False

    async def compact(self, plan: CompactionPlan) -> CompactionResult:
        await self._broker.topics.delete(CALLER, "c")
        await self._broker.topics.create(CALLER, COMPACTED)
        await publish(self._broker, ("c", 0))
        try:
            return await self._compactor.compact(plan)
        except StorageFailure:
            self.has_failed = True
            raise


async def test_compaction_of_a_deleted_topic_leaves_its_successor_alone(
    storage: Storage, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_parts(storage=storage) as broker:
        broker.partitions.compaction.stop()
        await broker.topics.create(CALLER, COMPACTED)
        for _ in range(40):
            await publish(broker, ("c", 0))
        await broker.partitions.flusher.drain()
        compactor = LateCompactor(broker, storage.disk)
        with ThreadPoolExecutor(1) as threads, caplog.at_level(logging.ERROR):
            services = copy(broker._services)
            services.threads = threads
            compaction = Compaction(services, broker.partitions.table, broker.partitions.disk_room, compactor)
            await compaction.run_once()
        assert compactor.has_failed
        assert (compaction.failures, caplog.text) == (0, ""), "this is not a failure"
        names = [name for name in storage.disk.list("logs/c-0") if name.endswith(".log")]
        assert names == ["00000000000000000000.log"]
    async with running_parts(storage=storage) as again:
        assert again.partitions.table.offline() == {}
        assert again.partitions.table.find("c", 0).term.high_watermark == 1


async def test_directory_of_a_deleted_topic_that_is_back_is_set_aside(
    storage: Storage, caplog: pytest.LogCaptureFixture
) -> None:
    """A power failure may undo the rename of the directory and the creation of its successor, until it is listed."""
    async with running_parts(storage=storage) as broker:
        await broker.topics.create(CALLER, COMPACTED)
        await publish(broker, ("c", 0))
    owner = decode_owner(storage.disk.read(MARK))
    assert owner is not None
    for number in (1, 2):
        storage.disk.write_atomic(MARK, encode_owner(TopicId(UUID(int=number))))
        storage.disk.remove(CHECKPOINT)
        with caplog.at_level(logging.WARNING):
            async with running_parts(storage=storage) as broker:
                assert broker.partitions.table.find("c", 0).term.high_watermark == 0
                await publish(broker, ("c", 0))
        assert decode_owner(storage.disk.read(MARK)) == owner
    assert storage.disk.list("logs") == ["c-0", "c-0.2.stray", "c-0.stray"]
    assert "stray directory name=c-0" in caplog.text


class SlowToOpen(MemoryDisk):
    """Until `released` is set, every operation on the directories of `slow` waits."""

    def __init__(self) -> None:
        super().__init__()
        self.released = Event()

    def check(self, operation: str, path: str) -> None:
        if path.startswith("logs/slow-"):
            assert self.released.wait(20), "the disk was not released"
        super().check(operation, path)


class SlowToRemove(MemoryDisk):
    """A removal of a directory waits until `released` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.released = Event()
        self.is_removing = False

    def remove_tree(self, path: str) -> None:
        self.is_removing = True
        assert self.released.wait(20), "the disk was not released"
        super().remove_tree(path)


async def test_nothing_goes_to_a_deleted_topic_whose_name_another_has_before_it_is_closed(storage: Storage) -> None:
    storage.disk = disk = SlowToOpen()
    async with running_parts(storage=storage) as broker:
        await broker.topics.create(CALLER, TopicRequest(name="t", partitions=1))
        first = broker.partitions.table.find("t", 0)
        changes: list[asyncio.Future[object]] = []

        async def begin(change: Coroutine[object, object, object]) -> None:
            shown = asyncio.Event()
            broker.metadata.listen(lambda _old, _new: shown.set())
            changes.append(asyncio.ensure_future(change))
            await shown.wait()

        await begin(broker.topics.create(CALLER, TopicRequest(name="slow", partitions=1)))
        await begin(broker.topics.delete(CALLER, "t"))
        await begin(broker.topics.create(CALLER, TopicRequest(name="t", partitions=1)))
        [published] = await publish(broker, ("t", 0))
        disk.released.set()
        await asyncio.gather(*changes)
        assert isinstance(published.error, NotLeader)
        assert broker.partitions.table.find("t", 0) is not first
        [again] = await publish(broker, ("t", 0))
        assert (again.error, again.base_offset) == (None, 0)


async def test_deletion_is_answered_when_the_broker_stops_before_the_directories_are_removed(storage: Storage) -> None:
    storage.disk = disk = SlowToRemove()
    async with running_parts(storage=storage) as broker:
        await broker.topics.create(CALLER, TopicRequest(name="t", partitions=1))
        deletion = asyncio.ensure_future(broker.topics.delete(CALLER, "t"))
        while not disk.is_removing:
            await asyncio.wait([deletion], timeout=0.01)
        await broker.finish_requests()
        disk.released.set()
        async with asyncio.timeout(10):
            await deletion
