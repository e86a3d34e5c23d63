"""Connections of Kafka clients: what one of them may take, and what happens when it takes more."""

import asyncio
import logging
from collections.abc import AsyncIterator

import pytest

from conveyor.cluster.topic_creation import TopicRequest
from conveyor.log.records import encode_batch
from conveyor.server.server import Server
from tests.unit.kafka_api.requests import API_VERSIONS, SOFTWARE, fetch, framed, produce, request
from tests.unit.server.memory_server import running, server

PING = framed(request(API_VERSIONS, 3, **SOFTWARE))


@pytest.fixture
async def served() -> AsyncIterator[Server]:
    async with running(server(network__max_connections=2)) as made:
        yield made


async def connect(made: Server) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection(*made.kafka_address, limit=1 << 24)


async def read_frame(reader: asyncio.StreamReader) -> bytes:
    return await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))


async def is_closed(reader: asyncio.StreamReader) -> bool:
    """Wait until the broker closes, politely or not."""
    try:
        return await reader.read() == b""
    except ConnectionResetError:
        return True


async def test_one_connection_too_many_is_closed(served: Server, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        pairs = [await connect(served) for _ in range(3)]
        assert await is_closed(pairs[2][0])
    assert "more than 2 connections (network.max_connections)" in caplog.text
    pairs[0][1].write(PING)
    assert await read_frame(pairs[0][0])
    for _, writer in pairs:
        writer.close()


async def test_a_silent_connection_is_closed(caplog: pytest.LogCaptureFixture) -> None:
    async with running(server(network__max_idle_ms=1)) as made:
        with caplog.at_level(logging.WARNING):
            reader, writer = await connect(made)
            assert await is_closed(reader)
        writer.close()
    assert "no finished request for 1 ms (network.max_idle_ms)" in caplog.text


async def test_a_connection_that_waits_for_its_answer_is_not_idle() -> None:
    async with running(server(network__max_idle_ms=200)) as made:
        await made.broker.topics.create(TopicRequest(name="t"))
        reader, writer = await connect(made)
        writer.write(framed(fetch(1, wait_ms=500)))
        assert (await read_frame(reader))[:4] == b"\0\0\0\1"
        writer.close()


async def test_a_failed_produce_without_acks_closes_the_connection_with_one_line(
    served: Server, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "conveyor"):
        reader, writer = await connect(served)
        writer.write(framed(produce(1, encode_batch([(1, None, b"x", [])]), acks=0, topic="nothing")))
        assert await is_closed(reader)
    [line] = caplog.records
    assert line.levelno == logging.INFO
    assert "client 'unit' produced with acks=0: UNKNOWN_TOPIC: topic 'nothing'" in line.message
    writer.close()


async def test_a_violation_closes_the_connection_with_one_line(
    served: Server, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        reader, writer = await connect(served)
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        assert await is_closed(reader)
    assert len(caplog.records) == 1
    assert "a request of 1195725856 bytes" in caplog.text
    writer.close()


async def test_a_client_that_reads_late_gets_everything_in_order() -> None:
    """Answers of 16 MB wait until they are read, and no more requests are taken than may be in flight."""
    made = server(network__max_in_flight=4)
    async with running(made):
        await made.broker.topics.create(TopicRequest(name="t", config={"max.message.bytes": "2000000"}))
        reader, writer = await connect(made)
        writer.write(framed(produce(0, encode_batch([(1, None, bytes(1_000_000), [])]))))
        assert await read_frame(reader)
        writer.write(b"".join(framed(fetch(number)) for number in range(1, 17)))
        frames = [await read_frame(reader) for _ in range(16)]
        assert [int.from_bytes(frame[:4], "big") for frame in frames] == list(range(1, 17))
        assert {len(frame) > 1_000_000 for frame in frames} == {True}
        writer.close()
