"""What the event loop does at once is small, however large segments and their indexes are, and however many producers.

A wall clock would measure the machine's other work. So the CPU time of the loop's thread is compared with that of a
known piece of work on the same machine, and disk operations on the loop's thread are counted.
`python -m benchmarks --only stalls` measures what a quiet client waits, with segments of 1 GiB.
"""

import asyncio
import gc
import os
import time
from asyncio.events import Handle
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from struct import Struct

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from conveyor.cluster.topic_creation import TopicRequest
from conveyor.log.compaction.key_compaction import compact
from conveyor.log.flush import FlushJob
from conveyor.log.log import Log
from conveyor.queues.subscription.policy import StartPosition
from conveyor.records.checked_batch import own_batch
from conveyor.records.compression import ZSTD
from conveyor.records.record import encode_batch
from conveyor.server.server import Server
from conveyor.settings.tree import TopicSettings
from conveyor.testing import MemoryDisk
from tests.callers import CALLER
from tests.unit.broker.parts import publish
from tests.unit.log.compaction.test_key_compaction import keyed
from tests.unit.log.logs import NOW_MS, all_below, append, flush, idempotent_batch, open_topic_log
from tests.unit.server.memory_server import running, server

ENTRIES = 30_000
PRODUCERS = 50_000
UNITS = 30
"""Of the known work, which takes a millisecond or less: what the loop may do at once, with room for a busy machine."""

_ROW = Struct(">qI")


@pytest.fixture(autouse=True)
def no_garbage_collection() -> Iterator[None]:
    """What the collector looks through here is the tests' own, mostly. `conveyor serve` freezes what it has loaded."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


class CountingDisk(MemoryDisk):
    """A memory disk that counts its operations."""

    def __init__(self) -> None:
        super().__init__()
        self.operations = 0

    def check(self, operation: str, path: str) -> None:
        self.operations += 1
        super().check(operation, path)


def unit_s() -> float:
    """The known work: to pack so many rows. The shortest of a few times, in seconds of CPU."""
    return min(cpu_s(lambda: b"".join(_ROW.pack(number, number) for number in range(10_000))) for _ in range(5))


def cpu_s(work: Callable[[], object]) -> float:
    began = time.thread_time()
    work()
    return time.thread_time() - began


def filled(disk: MemoryDisk, entries: int) -> Log:
    """A log whose active segment has so many index entries."""
    log = open_topic_log(disk, TopicSettings(index_interval_bytes=0))
    content = keyed((b"key", b"value"))
    for _ in range(entries + 1):
        log.append(own_batch(content), 0, NOW_MS)
    flush(log)
    return log


def reopened(disk: CountingDisk, entries: int) -> tuple[int, float]:
    """Disk operations and CPU time of the first append after a clean stop."""
    filled(disk, entries).close()
    log = open_topic_log(disk, TopicSettings(index_interval_bytes=0))
    before = disk.operations
    seconds = cpu_s(lambda: append(log, keyed((b"key", b"value"))))
    return disk.operations - before, seconds


def test_first_append_after_a_clean_stop_costs_the_same_whatever_the_segment_holds() -> None:
    few, _ = reopened(CountingDisk(), 100)
    many, seconds = reopened(CountingDisk(), ENTRIES)
    assert many == few
    assert seconds < UNITS * unit_s()


def test_roll_leaves_the_encoding_of_indexes_and_producers_to_the_flush() -> None:
    disk = CountingDisk()
    log = filled(disk, ENTRIES)
    for producer_id in range(PRODUCERS):
        log.append(own_batch(idempotent_batch(0, b"v", producer_id=producer_id)), 0, NOW_MS)
    flush(log)
    log.use(TopicSettings(segment_bytes=1024))
    jobs: list[FlushJob] = []

    def roll() -> None:
        append(log, keyed((b"key", b"value")))
        jobs.append(log.flushes.begin())

    assert cpu_s(roll) < UNITS * unit_s()
    assert len(log.segments.all) == 2
    [job] = jobs
    job.run()
    assert cpu_s(lambda: log.flushes.complete(job)) < UNITS * unit_s()
    assert log.segments.all[0].sealed


def test_producers_that_were_not_silent_cost_nothing_to_keep() -> None:
    log = open_topic_log(MemoryDisk())
    for producer_id in range(PRODUCERS):
        log.append(own_batch(idempotent_batch(0, b"v", producer_id=producer_id)), 0, NOW_MS)
    assert cpu_s(lambda: log.producers.expire(NOW_MS + 1)) < unit_s()
    assert len(log.producers) == PRODUCERS


def test_swap_reads_no_index_on_the_loop() -> None:
    disk = CountingDisk()
    filled(disk, ENTRIES).close()
    log = open_topic_log(disk, TopicSettings(index_interval_bytes=0, segment_bytes=1024))
    append(log, keyed((b"key", b"value")))
    flush(log)
    log.close()
    log = open_topic_log(
        disk, TopicSettings(cleanup_policy="compact", min_cleanable_dirty_ratio=0, index_interval_bytes=0)
    )
    plan = log.compaction.plan(all_below(log.flushes.flushed_offset), NOW_MS, 10)
    assert plan is not None
    result = compact(disk, plan)
    before = disk.operations
    job = log.compaction.begin_swap(result)
    assert job is not None
    assert disk.operations == before
    new = job.run()
    before = disk.operations
    log.compaction.complete_swap(result, new)
    assert disk.operations == before


class Longest:
    """The callback of the event loop that took most of its thread's CPU."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seconds = 0.0
        self.callback = ""
        run = Handle._run

        def timed(handle: Handle) -> None:
            began = time.thread_time()
            run(handle)
            seconds = time.thread_time() - began
            if seconds > self.seconds:
                self.seconds, self.callback = seconds, repr(handle)

        monkeypatch.setattr(Handle, "_run", timed)


@asynccontextmanager
async def serving(directory: Path) -> AsyncIterator[Server]:
    made = server(directory)
    await made.start()
    await made.use_kernel_syncs()
    yield made
    await made.stop()


def produce(address: str, topic: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": address, "linger.ms": 1, "batch.size": 1000, "acks": "all"})
    for number in range(count):
        producer.produce(topic, bytes(900), key=b"%d" % (number % 100))
        producer.poll(0)
    assert producer.flush(60) == 0


def consume(address: str, topic: str, count: int, offset: int = 0) -> None:
    consumer = Consumer({"bootstrap.servers": address, "group.id": "reader", "auto.offset.reset": "earliest"})
    consumer.assign([TopicPartition(topic, 0, offset)])
    read = 0
    while read < count:
        read += sum(message.error() is None for message in consumer.consume(1000, 1))
    consumer.close()


def drop_page_cache(directory: Path) -> None:
    for path in directory.rglob("*.log"):
        with path.open("rb") as file:
            os.fsync(file.fileno())
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def lose_indexes(directory: Path) -> None:
    lost = list(directory.glob("*index"))
    assert len(lost) >= 4, "two segments have indexes"
    for path in lost:
        path.unlink()


async def test_loop_is_never_held_up_by_one_large_thing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments roll, the broker restarts, appends go on in a large segment, cold records are read, a log compacted."""
    count, config = 20_000, {"index.interval.bytes": "0", "segment.bytes": str(15 << 20)}
    compacted = {"cleanup.policy": "compact", "segment.bytes": "1048576", "min.cleanable.dirty.ratio": "0"}
    async with serving(tmp_path) as made:
        address = "{}:{}".format(*made.kafka_address)
        await made.broker.topics.create(CALLER, TopicRequest(name="t", config=config))
        await made.broker.topics.create(CALLER, TopicRequest(name="c", config=compacted))
        await asyncio.to_thread(produce, address, "c", 100)
        await asyncio.to_thread(consume, address, "c", 100)
        longest = Longest(monkeypatch)
        await asyncio.to_thread(produce, address, "t", count)
        await asyncio.to_thread(produce, address, "c", count // 4)
        await made.broker.partitions.compaction.run_once()
        assert made.broker.partitions.compaction.failures == 0
    async with serving(tmp_path) as made:
        address = "{}:{}".format(*made.kafka_address)
        await asyncio.to_thread(drop_page_cache, tmp_path)
        await asyncio.to_thread(produce, address, "t", 10)
        await asyncio.to_thread(consume, address, "t", count)
    assert longest.seconds < UNITS * unit_s(), longest.callback


async def test_loop_is_not_held_up_by_lost_indexes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A consumer begins in the middle of a large segment."""
    count, config = 30_000, {"segment.bytes": str(25 << 20)}
    async with serving(tmp_path) as made:
        address = "{}:{}".format(*made.kafka_address)
        await made.broker.topics.create(CALLER, TopicRequest(name="t", config=config))
        await asyncio.to_thread(produce, address, "t", count)
    lose_indexes(tmp_path / "logs" / "t-0")
    longest = Longest(monkeypatch)
    async with serving(tmp_path) as made:
        address = "{}:{}".format(*made.kafka_address)
        await asyncio.to_thread(consume, address, "t", count // 2, count // 2)
    assert longest.seconds < UNITS * unit_s(), longest.callback


async def test_loop_is_not_held_up_by_lookups_by_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each partition has one batch, large when it is decompressed, whose last record is what all look for."""
    partitions, count = 8, 19_000
    content = b"".join(b'{"level":"info","number":%d}' % number for number in range(15))
    large = encode_batch([(NOW_MS + number, None, content, ()) for number in range(count)], codec=ZSTD)
    newest = StartPosition(kind="timestamp", timestamp_ms=NOW_MS + count - 1)
    async with running(server(topics__max_message_bytes=16 << 20)) as made:
        broker = made.broker
        await broker.topics.create(CALLER, TopicRequest(name="t", partitions=partitions))
        await publish(broker, *[("t", number) for number in range(partitions)], batch=large)
        await broker.queues.lifecycle.create(CALLER, "t", "s", StartPosition(kind="latest"), {})
        longest = Longest(monkeypatch)
        client = AdminClient({"bootstrap.servers": "{}:{}".format(*made.kafka_address)})
        at_newest = OffsetSpec.for_timestamp(newest.timestamp_ms)
        wanted = {TopicPartition("t", number): at_newest for number in range(partitions)}
        found = await asyncio.to_thread(lambda: [asked.result() for asked in client.list_offsets(wanted).values()])
        browsed = await broker.fetch.browser.browse(CALLER, "t", None, newest, partitions)
        await broker.queues.lifecycle.seek(CALLER, "s", newest)
    assert {place.offset for place in found} == {message.offset for message in browsed} == {count - 1}
    assert longest.seconds < UNITS * unit_s(), longest.callback
