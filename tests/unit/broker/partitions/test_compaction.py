"""Failed compactions are counted, and retried after growing pauses."""

import logging
from concurrent.futures import ThreadPoolExecutor
from copy import copy

import pytest

from conveyor.adapters.compactor import ThreadCompactor
from conveyor.broker.broker_node import BrokerNode
from conveyor.broker.partitions.compaction import Compaction, Compactor
from conveyor.cluster.topic_creation import TopicRequest
from conveyor.kernel.errors import StorageFailure
from conveyor.log.compaction.compaction_plan import CompactionPlan
from conveyor.log.compaction.key_compaction import CLEANED, CompactionResult
from conveyor.log.segments.files import segment_paths
from conveyor.records import compression
from conveyor.records.checked_batch import own_batch
from tests.callers import CALLER
from tests.unit.broker.parts import Storage, publish
from tests.unit.log.compaction.test_key_compaction import poisoned

CHECK_MS = 15_000
HOUR_MS = 3_600_000
COMPACTED = {"cleanup.policy": "compact", "segment.bytes": "1024", "min.cleanable.dirty.ratio": "0"}


class KilledCompactor:
    """A compactor whose process dies `times` times."""

    def __init__(self, storage: Storage, times: int) -> None:
        self._compactor = ThreadCompactor(storage.disk)
        self._times = times
        self.attempts = 0

    async def compact(self, plan: CompactionPlan) -> CompactionResult:
        self.attempts += 1
        if self.attempts <= self._times:
            raise StorageFailure(f"compaction of {plan.directory}: exit code -9")
        return await self._compactor.compact(plan)


@pytest.fixture
async def compacted(broker: BrokerNode) -> BrokerNode:
    """The topic `c` has one partition with several segments of one key. The broker does not compact on its own."""
    broker.partitions.compaction.stop()
    await broker.topics.create(CALLER, TopicRequest(name="c", config=COMPACTED))
    for _ in range(40):
        await publish(broker, ("c", 0))
    await broker.partitions.flusher.drain()
    return broker


def compaction_of(
    broker: BrokerNode, storage: Storage, compactor: Compactor, threads: ThreadPoolExecutor
) -> Compaction:
    services = copy(broker._services)
    services.threads = threads
    return Compaction(services, broker.partitions.table, broker.partitions.disk_room, compactor)


async def test_compaction_whose_process_was_killed_is_tried_again_after_growing_pauses(
    compacted: BrokerNode, storage: Storage
) -> None:
    compactor = KilledCompactor(storage, times=2)
    log = compacted.partitions.table.find("c", 0).log
    size_before = log.segments.size_bytes
    with ThreadPoolExecutor(1) as threads:
        compaction = compaction_of(compacted, storage, compactor, threads)
        attempts = []
        for _ in range(5):
            await compaction.run_once()
            attempts.append(compactor.attempts)
            storage.clock.advance(ms=CHECK_MS)
    assert attempts == [1, 2, 2, 3, 3]
    assert compaction.failures == 2
    assert log.segments.size_bytes < size_before


async def test_log_of_a_lone_broker_is_compacted_under_policy_os(broker: BrokerNode) -> None:
    """No retention asks for its flush."""
    await broker.topics.create(CALLER, TopicRequest(name="c", config=COMPACTED | {"flush.policy": "os"}))
    for _ in range(40):
        await publish(broker, ("c", 0))
    await broker.partitions.flusher.drain()
    log = broker.partitions.table.find("c", 0).log
    size_before = log.segments.size_bytes
    await broker.partitions.compaction.run_once()
    assert log.segments.size_bytes < size_before / 10


async def test_pauses_between_attempts_are_an_hour_at_most(compacted: BrokerNode, storage: Storage) -> None:
    compactor = KilledCompactor(storage, times=20)
    with ThreadPoolExecutor(1) as threads:
        compaction = compaction_of(compacted, storage, compactor, threads)
        for attempt in range(1, 21):
            await compaction.run_once()
            assert compactor.attempts == compaction.failures == attempt
            storage.clock.advance(ms=HOUR_MS)


async def test_batch_that_cannot_be_read_is_kept_and_counted_and_the_broker_goes_on(
    storage: Storage, broker: BrokerNode, caplog: pytest.LogCaptureFixture
) -> None:
    """The topic was plain when it stored the batch, so the broker did not check the records."""
    await broker.topics.create(CALLER, TopicRequest(name="c", config=COMPACTED | {"cleanup.policy": "delete"}))
    partition = broker.partitions.table.find("c", 0)
    partition.append(own_batch(poisoned(compression.ZSTD)), storage.clock.now_ms())
    for _ in range(40):
        await publish(broker, ("c", 0))
    await broker.partitions.flusher.drain()
    await broker.topics.replace_config(CALLER, "c", COMPACTED)
    size_before = partition.log.segments.size_bytes
    with caplog.at_level(logging.WARNING):
        await broker.partitions.compaction.run_once()
    assert (broker.partitions.compaction.failures, broker.partitions.compaction.unreadable_batches) == (0, 1)
    assert "batches kept uncompacted partition=c-0 count=1 first_offset=0" in caplog.text
    assert partition.log.segments.size_bytes < size_before


async def test_a_damaged_log_without_another_copy_stays_online_and_as_it_is(
    compacted: BrokerNode, storage: Storage
) -> None:
    partition = compacted.partitions.table.find("c", 0)
    storage.disk.flip(f"logs/c-0/{0:020}.log", -1, 0)
    before = {path: storage.disk.read(path) for path in storage.disk.paths() if path.startswith("logs/c-0")}
    await compacted.partitions.compaction.run_once()
    assert compacted.partitions.compaction.failures == 1
    assert partition.offline.reason is None
    assert {path: storage.disk.read(path) for path in before} == before


class FullDiskCompactor:
    """A compactor that finds the disk full halfway."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    async def compact(self, plan: CompactionPlan) -> CompactionResult:
        for path in segment_paths(plan.directory, plan.segments[0].base_offset, CLEANED):
            self._storage.disk.open(path, create=True).append([b"half"])
        raise StorageFailure(f"compaction of {plan.directory}: No space left on device")


async def test_a_compaction_that_fails_leaves_nothing_on_the_disk(compacted: BrokerNode, storage: Storage) -> None:
    before = storage.disk.list("logs/c-0")
    with ThreadPoolExecutor(1) as threads:
        await compaction_of(compacted, storage, FullDiskCompactor(storage), threads).run_once()
    assert storage.disk.list("logs/c-0") == before


async def test_a_compaction_waits_for_room_while_the_disk_is_low(compacted: BrokerNode, storage: Storage) -> None:
    compactor = KilledCompactor(storage, times=0)
    compacted.partitions.disk_room.is_low, compacted.partitions.disk_room.usable_bytes = True, 1000
    with ThreadPoolExecutor(1) as threads:
        compaction = compaction_of(compacted, storage, compactor, threads)
        await compaction.run_once()
        assert compactor.attempts == 0
        compacted.partitions.disk_room.usable_bytes = 1_000_000
        await compaction.run_once()
    assert compactor.attempts == 1
