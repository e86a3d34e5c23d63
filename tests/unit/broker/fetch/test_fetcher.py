"""Fetching, with and without a wait."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from itertools import pairwise

import pytest

from conveyor.broker.broker_node import BrokerNode
from conveyor.broker.fetch import fetcher
from conveyor.broker.fetch.fetcher import Fetched, FetchPosition, FetchWait
from conveyor.broker.slices import SLICE_ITEMS
from conveyor.cluster.topic_creation import TopicRequest
from conveyor.kernel.errors import ErrorKind
from tests.callers import CALLER
from tests.unit.broker.parts import BATCH, Storage, calls_of, publish, running_parts

AT_ONCE = FetchWait(0, 1, 1 << 20)
PATIENT = FetchWait(500, 1, 1 << 20)
WIDE = SLICE_ITEMS + 10


@pytest.fixture
async def wide(storage: Storage) -> AsyncIterator[BrokerNode]:
    """A broker with one topic, `t`, of many partitions."""
    async with running_parts(storage=storage) as running:
        await running.topics.create(CALLER, TopicRequest(name="t", partitions=WIDE))
        yield running


async def settled() -> None:
    """Let other work take all turns that it needs."""
    for _ in range(50):
        await asyncio.sleep(0)


async def change(broker: BrokerNode) -> None:
    """Publish a record and let fetches look at it."""
    await publish(broker, ("t", 0))
    await settled()


def at(partition: int, offset: int, topic: str = "t", max_bytes: int = 1 << 20, epoch: int = -1) -> FetchPosition:
    return FetchPosition(topic, partition, offset, max_bytes, epoch)


def fetch_now(broker: BrokerNode, *positions: FetchPosition, wait: FetchWait = AT_ONCE) -> Sequence[Fetched]:
    answers: list[Sequence[Fetched]] = []
    assert broker.fetch.fetcher.fetch(CALLER, positions, wait, answers.append) is None
    return answers[0]


def start_fetch(
    broker: BrokerNode, *positions: FetchPosition, wait: FetchWait = PATIENT
) -> "tuple[asyncio.Future[Sequence[Fetched]], Callable[[], None]]":
    """Start a fetch that must wait. Returns its future result and the function that cancels it."""
    done: asyncio.Future[Sequence[Fetched]] = asyncio.get_running_loop().create_future()
    cancel = broker.fetch.fetcher.fetch(CALLER, positions, wait, done.set_result)
    assert cancel is not None
    assert not done.done()
    return done, cancel


def sizes(results: Sequence[Fetched]) -> list[int]:
    return [0 if result.records is None else result.records.length for result in results]


async def test_fetch_finds_what_was_published(broker: BrokerNode) -> None:
    await publish(broker, ("t", 0), ("t", 0))
    [fetched] = fetch_now(broker, at(0, 1))
    assert fetched.records is not None
    read = fetched.records.file.read(fetched.records.position, fetched.records.length)
    assert read[17:] == BATCH[17:]
    assert (fetched.high_watermark, fetched.log_start_offset) == (2, 0)


async def test_fetch_reports_each_partitions_error_at_once(broker: BrokerNode) -> None:
    results = fetch_now(broker, at(0, 5), at(7, 0), at(0, 0, epoch=3), at(1, 0), wait=PATIENT)
    kinds = [result.error and result.error.kind for result in results]
    unknown = [ErrorKind.OFFSET_OUT_OF_RANGE, ErrorKind.UNKNOWN_TOPIC, ErrorKind.UNKNOWN_LEADER_EPOCH]
    assert kinds == [*unknown, None]


async def test_fetch_divides_the_answers_room_among_partitions(broker: BrokerNode) -> None:
    await publish(broker, ("t", 0), ("t", 1))
    room = FetchWait(0, 1, len(BATCH))
    assert sizes(fetch_now(broker, at(0, 0), at(1, 0), wait=room)) == [len(BATCH), 0]
    assert sizes(fetch_now(broker, at(0, 1), at(1, 0), wait=room)) == [0, len(BATCH)]


async def test_fetch_returns_a_batch_that_is_larger_than_the_room(broker: BrokerNode) -> None:
    await publish(broker, ("t", 0))
    assert sizes(fetch_now(broker, at(0, 0, max_bytes=1), wait=FetchWait(0, 1, 1))) == [len(BATCH)]


async def test_fetch_waits_for_the_next_record(broker: BrokerNode) -> None:
    done, _ = start_fetch(broker, at(0, 0), at(1, 0))
    await publish(broker, ("t", 1))
    assert sizes(await done) == [0, len(BATCH)]


async def test_fetch_waits_for_as_many_bytes_as_it_wants(broker: BrokerNode) -> None:
    done, _ = start_fetch(broker, at(0, 0), wait=FetchWait(500, len(BATCH) + 1, 1 << 20))
    await publish(broker, ("t", 0))
    await broker.partitions.tick.end()
    assert not done.done()
    await publish(broker, ("t", 0))
    assert sizes(await done) == [2 * len(BATCH)]


async def test_fetch_waits_for_no_more_bytes_than_it_may_have(broker: BrokerNode) -> None:
    done, _ = start_fetch(broker, at(0, 0), wait=FetchWait(500, 1 << 30, 2 * len(BATCH)))
    await publish(broker, ("t", 0))
    await broker.partitions.tick.end()
    assert not done.done()
    await change(broker)
    assert sizes(done.result()) == [2 * len(BATCH)]


@pytest.mark.slow
async def test_fetch_reads_only_changed_partitions_again(wide: BrokerNode) -> None:
    """Otherwise fetches for more bytes than there are cost the same again for each record."""
    few, many = [[at(number, 0) for number in range(count)] for count in (2, 200)]
    wait = FetchWait(60_000, 1 << 20, 1 << 20)
    start_fetch(wide, *few, wait=wait)
    lower = await calls_of(change(wide))
    start_fetch(wide, *many, wait=wait)
    assert await calls_of(change(wide)) < lower + 100


@pytest.mark.slow
async def test_long_fetch_reads_only_changed_partitions_again(wide: BrokerNode) -> None:
    wait = FetchWait(60_000, 4 * len(BATCH), 1 << 20)
    lower = await calls_of(change(wide))
    done, _ = start_fetch(wide, *(at(number, 0) for number in range(WIDE)), wait=wait)
    await settled()
    assert await calls_of(change(wide)) < lower + 200
    await publish(wide, ("t", 1), ("t", 2))
    assert sizes(await done)[:3] == [2 * len(BATCH), len(BATCH), len(BATCH)]


@pytest.mark.parametrize("count", [2, SLICE_ITEMS + 1])
async def test_fetch_that_names_a_partition_repeatedly_does_not_wait(broker: BrokerNode, count: int) -> None:
    """It would read the partition as often for each change."""
    done: asyncio.Future[Sequence[Fetched]] = asyncio.get_running_loop().create_future()
    broker.fetch.fetcher.fetch(CALLER, [at(0, 0)] * count, PATIENT, done.set_result)
    await settled()
    assert sizes(done.result()) == [0] * count


@pytest.mark.slow
@pytest.mark.parametrize("count", [3, WIDE])
async def test_records_that_were_deleted_during_a_wait_are_not_returned(
    wide: BrokerNode, storage: Storage, count: int
) -> None:
    done, _ = start_fetch(wide, *(at(number, 0) for number in range(count)), wait=FetchWait(500, 200, 1 << 20))
    await publish(wide, ("t", 0), ("t", 1))
    await settled()
    await wide.partitions.retention.delete_records(CALLER, "t", 0, 1, 1_000)
    await publish(wide, ("t", 2))
    results = await done
    assert results[0].error is not None
    assert results[0].error.kind is ErrorKind.OFFSET_OUT_OF_RANGE
    assert sizes(results)[:3] == [0, len(BATCH), len(BATCH)]


async def test_many_fetches_that_wake_at_once_look_in_slices(broker: BrokerNode) -> None:
    fetches = [start_fetch(broker, at(0, 0))[0] for _ in range(3 * SLICE_ITEMS)]
    broker.produce.publisher.publish(CALLER, [("t", 0, BATCH)], 1, lambda _published: None)
    counts = [0]
    while counts[-1] < len(fetches):
        await asyncio.sleep(0)
        counts.append(sum(done.done() for done in fetches))
    assert max(after - before for before, after in pairwise(counts)) == SLICE_ITEMS


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of partitions that were read in each turn of the event loop while `most_reads` counts them."""
    counts = [0]
    read_one = fetcher._Reading.read

    def read(self: fetcher._Reading, number: int) -> None:
        counts[-1] += 1
        read_one(self, number)

    monkeypatch.setattr(fetcher._Reading, "read", read)
    return counts


async def most_reads(reads: list[int], fetches: "list[asyncio.Future[Sequence[Fetched]]]") -> int:
    """Return the most partitions that were read in one turn until all fetches are answered."""
    reads[:] = [0]
    while not all(done.done() for done in fetches):
        await asyncio.sleep(0)
        reads.append(0)
    return max(reads)


def start_fetches(
    broker: BrokerNode, count: int, partitions: int, min_bytes: int
) -> "list[asyncio.Future[Sequence[Fetched]]]":
    positions = [at(number, 0) for number in range(partitions)]
    return [start_fetch(broker, *positions, wait=FetchWait(500, min_bytes, 1 << 20))[0] for _ in range(count)]


@pytest.mark.slow
@pytest.mark.parametrize("partitions", [50, WIDE])
async def test_fetches_that_have_enough_at_once_read_the_others_again_in_slices(
    wide: BrokerNode, reads: list[int], partitions: int
) -> None:
    await publish(wide, ("t", 1))
    fetches = start_fetches(wide, 40, partitions, 2 * len(BATCH))
    for _ in range(4):
        await settled()
    await publish(wide, ("t", 0))
    assert 0 < await most_reads(reads, fetches) <= 2 * SLICE_ITEMS
    assert sizes(fetches[-1].result())[:3] == [len(BATCH), len(BATCH), 0]


@pytest.mark.slow
async def test_many_long_fetches_read_many_changed_partitions_in_slices(wide: BrokerNode, reads: list[int]) -> None:
    fetches = start_fetches(wide, 20, WIDE, 200 * len(BATCH))
    await settled()
    wide.produce.publisher.publish(CALLER, [("t", number, BATCH) for number in range(200)], 1, lambda _published: None)
    assert 0 < await most_reads(reads, fetches) <= 2 * SLICE_ITEMS


@pytest.mark.slow
async def test_fetches_that_end_at_once_read_in_slices(wide: BrokerNode, storage: Storage, reads: list[int]) -> None:
    await publish(wide, ("t", 1))
    fetches = start_fetches(wide, 40, 50, 2 * len(BATCH))
    reads[:] = [0]
    storage.clock.advance(ms=500)
    assert reads == [0]
    assert 0 < await most_reads(reads, fetches) <= 2 * SLICE_ITEMS
    assert sizes(fetches[-1].result())[:3] == [0, len(BATCH), 0]


async def test_fetches_of_many_partitions_that_end_at_once_are_answered_in_slices(
    wide: BrokerNode, storage: Storage
) -> None:
    fetches = start_fetches(wide, 40, 50, 1)
    storage.clock.advance(ms=500)
    counts = [0]
    while counts[-1] < len(fetches):
        counts.append(sum(done.done() for done in fetches))
        await asyncio.sleep(0)
    assert max(after - before for before, after in pairwise(counts)) == SLICE_ITEMS // 50


async def test_fetch_that_ends_as_a_partition_changes_is_answered_once(broker: BrokerNode, storage: Storage) -> None:
    done, _ = start_fetch(broker, at(0, 0))
    broker.partitions.table.find("t", 0).changed.emit(None)
    storage.clock.advance(ms=500)
    assert not done.done()
    assert sizes(await done) == [0]
    await change(broker)


async def test_fetch_with_nothing_to_read_again_ends_at_once(broker: BrokerNode, storage: Storage) -> None:
    done, _ = start_fetch(broker, at(0, 0), at(1, 0))
    storage.clock.advance(ms=500)
    assert sizes(done.result()) == [0, 0]


async def test_fetch_ends_when_its_time_is_over(broker: BrokerNode, storage: Storage) -> None:
    done, _ = start_fetch(broker, at(0, 0))
    storage.clock.advance(ms=499)
    assert not done.done()
    storage.clock.advance(ms=1)
    assert sizes(await done) == [0]


async def test_fetch_that_is_cancelled_answers_nobody(broker: BrokerNode, storage: Storage) -> None:
    done, cancel = start_fetch(broker, at(0, 0))
    cancel()
    storage.clock.advance(ms=1000)
    await publish(broker, ("t", 0))
    await broker.partitions.tick.end()
    assert not done.done()


async def test_fetch_ends_when_its_topic_is_deleted(broker: BrokerNode) -> None:
    done, _ = start_fetch(broker, at(0, 0))
    await broker.topics.delete(CALLER, "t")
    [fetched] = await done
    assert fetched.error is not None
    assert fetched.error.kind is ErrorKind.UNKNOWN_TOPIC


async def test_fetch_ends_when_the_broker_stops(broker: BrokerNode) -> None:
    done, _ = start_fetch(broker, at(0, 0))
    broker.fetch.fetcher.finish_all()
    assert sizes(await done) == [0]


async def test_long_fetch_leaves_nothing_behind_if_it_is_cancelled_before_it_begins(broker: BrokerNode) -> None:
    positions = [at(number, 0) for number in range(SLICE_ITEMS + 1)]
    done, cancel = start_fetch(broker, *positions)
    cancel()
    await broker.tasks.stop()
    waiting = broker.fetch.fetcher._waiting
    assert not waiting
    assert not done.done()


async def test_fetch_of_nothing_is_answered(broker: BrokerNode) -> None:
    assert fetch_now(broker, wait=PATIENT) == []


async def test_fetch_from_a_failing_disk_takes_the_partition_offline(broker: BrokerNode, storage: Storage) -> None:
    done, _ = start_fetch(broker, at(0, 0))
    storage.disk.faults.fail("append")
    await publish(broker, ("t", 0))
    [fetched] = await done
    assert fetched.error is not None
    assert fetched.error.kind is ErrorKind.PARTITION_OFFLINE
