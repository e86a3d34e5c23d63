"""Large frames are counted and decoded in a thread."""

import asyncio
import tracemalloc
from collections.abc import AsyncIterator, Callable
from threading import Event, get_ident
from typing import Any

import pytest

from conveyor.cluster.topic_creation import TopicRequest
from conveyor.kafka_api.wire.codec import count_items, decode_body
from conveyor.records.record import encode_batch
from tests.callers import CALLER
from tests.unit.broker.parts import NOW_MS, Storage, running_parts
from tests.unit.kafka_api.client import MemoryClient
from tests.unit.kafka_api.requests import API_VERSIONS, PRODUCE, SOFTWARE, ids, produce, request, response

pytestmark = pytest.mark.slow


@pytest.fixture
async def client(storage: Storage) -> AsyncIterator[MemoryClient]:
    async with running_parts({}, storage) as broker:
        yield MemoryClient(broker)


def threads_of(monkeypatch: pytest.MonkeyPatch, *functions: Callable[..., Any]) -> list[int]:
    """Return a list that gets the thread of each call of these functions by long requests."""
    threads: list[int] = []
    for function in functions:

        def look(*arguments: Any, function: Callable[..., Any] = function) -> Any:
            threads.append(get_ident())
            return function(*arguments)

        monkeypatch.setattr(f"conveyor.kafka_api.wire.long_request.{function.__name__}", look)
    return threads


async def test_large_frames_are_counted_and_decoded_in_a_thread(
    client: MemoryClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = threads_of(monkeypatch, count_items, decode_body)
    for count, is_apart in ((1_000, False), (5_000, True)):
        client.send(ids(count), request(API_VERSIONS, 3, 2, **SOFTWARE))
        assert [await client.next_id() for _ in range(2)] == [1, 2]
        assert [thread != get_ident() for thread in threads] == [is_apart] * 2
        threads.clear()


async def test_large_frame_with_a_field_of_a_newer_client_is_decoded_in_a_thread(
    client: MemoryClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is copied without the tagged field, which is at the end here."""
    threads = threads_of(monkeypatch, decode_body)
    await client.broker.topics.create(CALLER, TopicRequest(name="t", config={"max.message.bytes": "3000000"}))
    for size, is_apart in ((1_000, False), (2 << 20, True)):
        frame = produce(1, encode_batch([(NOW_MS, None, b"x" * size, ())]))
        client.send(frame[:-1] + b"\x01\x63\x01x")
        answer = response(PRODUCE, 9, await client.answers.get())
        assert int(answer.responses[0].partition_responses[0].error_code) == 0
        assert [thread != get_ident() for thread in threads] == [True] * is_apart


async def test_frame_that_waits_for_a_thread_ends_with_its_connection(client: MemoryClient) -> None:
    """The memory for its request is given back, too."""
    frame, busy, release = ids(2_000, padding="x" * 1_000), asyncio.Event(), Event()
    loop = asyncio.get_running_loop()
    working = asyncio.create_task(
        client.broker.slices.in_thread(lambda: (loop.call_soon_threadsafe(busy.set), release.wait()))
    )
    await busy.wait()
    tracemalloc.start()
    try:
        client.send(frame)
        await asyncio.sleep(0)
        assert tracemalloc.get_traced_memory()[0] > len(frame)
        client.connection.end()
        await asyncio.sleep(0)
        assert tracemalloc.get_traced_memory()[0] < len(frame) / 10
    finally:
        tracemalloc.stop()
        release.set()
    await working
