"""Fetching, with and without a wait."""

import asyncio
from collections.abc import Callable, Sequence

from conveyor.broker.broker_node import BrokerNode
from conveyor.broker.fetch.fetcher import Fetched, FetchPosition, FetchWait
from conveyor.broker.slices import SLICE_ITEMS
from conveyor.kernel.errors import ErrorKind
from tests.unit.broker.parts import BATCH, Storage, publish

AT_ONCE = FetchWait(0, 1, 1 << 20)
PATIENT = FetchWait(500, 1, 1 << 20)


def at(partition: int, offset: int, topic: str = "t", max_bytes: int = 1 << 20, epoch: int = -1) -> FetchPosition:
    return FetchPosition(topic, partition, offset, max_bytes, epoch)


def fetch_now(broker: BrokerNode, *positions: FetchPosition, wait: FetchWait = AT_ONCE) -> Sequence[Fetched]:
    answers: list[Sequence[Fetched]] = []
    assert broker.fetcher.fetch(positions, wait, answers.append) is None
    return answers[0]


def start_fetch(
    broker: BrokerNode, *positions: FetchPosition, wait: FetchWait = PATIENT
) -> "tuple[asyncio.Future[Sequence[Fetched]], Callable[[], None]]":
    """Start a fetch that must wait. Returns its future result and the function that cancels it."""
    done: asyncio.Future[Sequence[Fetched]] = asyncio.get_running_loop().create_future()
    cancel = broker.fetcher.fetch(positions, wait, done.set_result)
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
    await broker.loop_tick.end()
    assert not done.done()
    await publish(broker, ("t", 0))
    assert sizes(await done) == [2 * len(BATCH)]


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
    await broker.loop_tick.end()
    assert not done.done()


async def test_fetch_ends_when_its_topic_is_deleted(broker: BrokerNode) -> None:
    done, _ = start_fetch(broker, at(0, 0))
    await broker.topics.delete("t")
    [fetched] = await done
    assert fetched.error is not None
    assert fetched.error.kind is ErrorKind.UNKNOWN_TOPIC


async def test_fetch_ends_when_the_broker_stops(broker: BrokerNode) -> None:
    done, _ = start_fetch(broker, at(0, 0))
    broker.fetcher.finish_all()
    assert sizes(await done) == [0]


async def test_long_fetch_leaves_nothing_behind_if_it_is_cancelled_before_it_begins(broker: BrokerNode) -> None:
    positions = [at(number, 0) for number in range(SLICE_ITEMS + 1)]
    done, cancel = start_fetch(broker, *positions)
    cancel()
    await broker.tasks.stop()
    waiting = broker.fetcher._waiting
    assert not waiting
    assert not done.done()


async def test_fetch_of_nothing_is_answered(broker: BrokerNode) -> None:
    assert fetch_now(broker, wait=PATIENT) == []


async def test_fetch_from_a_failing_disk_takes_the_partition_offline(broker: BrokerNode, storage: Storage) -> None:
    done, _ = start_fetch(broker, at(0, 0))
    storage.disk.fail("append")
    await publish(broker, ("t", 0))
    [fetched] = await done
    assert fetched.error is not None
    assert fetched.error.kind is ErrorKind.PARTITION_OFFLINE
