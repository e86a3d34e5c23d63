"""ListOffsets by time waits for threads; its client may leave meanwhile, and other requests are answered."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from conveyor.broker.slices import SLICE_ITEMS
from conveyor.broker.time_lookups import TimeLookups
from tests.callers import CALLER
from tests.unit.broker.partitions.test_flusher import HeldThreads, turns
from tests.unit.broker.parts import NOW_MS, publish
from tests.unit.kafka_api.client import MemoryClient
from tests.unit.kafka_api.requests import LIST_OFFSETS, request, response

EARLIEST, NEWEST = -2, -3


@pytest.fixture
def threads(client: MemoryClient) -> HeldThreads:
    """The threads that look up, and nothing else."""
    held = HeldThreads()
    client.broker.fetch.offsets._lookups = TimeLookups(held)
    return held


def by_time(*places: tuple[int, int], others: Sequence[dict[str, Any]] = ()) -> bytes:
    """Ask for offsets by partition and timestamp, and for other topics."""
    partitions = [{"partition_index": n, "timestamp": timestamp, "current_leader_epoch": -1} for n, timestamp in places]
    topics = [{"name": "t", "partitions": partitions}, *others]
    return request(LIST_OFFSETS, 7, replica_id=-1, isolation_level=0, topics=topics)


async def answered(client: MemoryClient) -> list[tuple[Any, int]]:
    [topic] = response(LIST_OFFSETS, 7, await client.answers.get()).topics
    return [(partition.error_code, partition.offset) for partition in topic.partitions]


async def test_partitions_of_a_request_are_looked_up_one_after_the_other(
    client: MemoryClient, threads: HeldThreads
) -> None:
    await client.broker.topics.add_partitions(CALLER, "t", 4, None)
    await publish(client.broker, ("t", 0), ("t", 1), ("t", 2))
    client.send(by_time((0, NOW_MS + 1), (1, EARLIEST), (2, NOW_MS), (3, NEWEST), (4, NOW_MS)))
    for _ in range(3):
        await turns(10)
        assert client.answers.empty()
        assert len(threads.held) == 1
        threads.run_all()
    assert await answered(client) == [
        (ErrorCode.none, -1), (ErrorCode.none, 0), (ErrorCode.none, 0), (ErrorCode.none, -1),
        (ErrorCode.unknown_topic_or_partition, -1),
    ]  # fmt: skip
    assert not threads.held


async def test_offset_without_a_time_and_a_partition_named_twice_need_no_thread(
    client: MemoryClient, threads: HeldThreads
) -> None:
    client.send(by_time((0, EARLIEST)))
    assert await answered(client) == [(ErrorCode.none, 0)]
    client.send(by_time((0, NOW_MS), (0, NOW_MS)))
    assert await answered(client) == [(ErrorCode.invalid_request, -1)] * 2
    assert not threads.held


@pytest.mark.parametrize("count", [4, SLICE_ITEMS + 1])
async def test_lookups_of_a_client_that_left_are_withdrawn(
    client: MemoryClient, threads: HeldThreads, count: int
) -> None:
    await client.broker.topics.add_partitions(CALLER, "t", count, None)
    client.send(by_time(*[(number, NOW_MS) for number in range(count)]))
    await turns(50)
    assert len(threads.held) == 1
    client.connection.end()
    threads.run_all()
    await turns(50)
    assert not threads.held
    assert client.answers.empty()


async def test_answer_to_a_long_request_is_complete(client: MemoryClient) -> None:
    count = SLICE_ITEMS + 1
    await client.broker.topics.add_partitions(CALLER, "t", count, None)
    await publish(client.broker, ("t", 0), ("t", count - 1))
    client.send(by_time(*[(number, NOW_MS) for number in range(count)]))
    nothing = [(ErrorCode.none, -1)] * (count - 2)
    assert await answered(client) == [(ErrorCode.none, 0), *nothing, (ErrorCode.none, 0)]


async def test_large_request_that_waits_for_lookups_leaves_room_for_others(
    client: MemoryClient, threads: HeldThreads
) -> None:
    count = SLICE_ITEMS + 1
    await client.broker.topics.add_partitions(CALLER, "t", count, None)
    long_names = [{"name": f"{number:05d}" * 6_000, "partitions": []} for number in range(20)]
    budget = client.broker.clients.request_budget
    client.connection.shares.append(budget.ask(1_000_000, lambda: None))
    client.send(by_time(*[(number, NOW_MS) for number in range(count)], others=long_names))
    assert budget.held_bytes == 1_000_000
    while budget.held_bytes:  # noqa: ASYNC110 - no event tells; the frame is decoded in a thread
        await asyncio.sleep(0)
    assert threads.held
