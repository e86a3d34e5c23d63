"""Connections of Kafka clients: their limits, and what happens beyond these."""

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Callable
from threading import Event, get_ident
from typing import ClassVar

import pytest

from conveyor.cluster.topic_creation import TopicRequest
from conveyor.kafka_api.wire.connection import KafkaConnection
from conveyor.kafka_api.wire.framing import LENGTH
from conveyor.kernel.errors import StorageFailure
from conveyor.kernel.response_budget import ResponseBudget
from conveyor.records.record import encode_batch
from conveyor.server.server import Server
from conveyor.testing import MemoryDisk
from conveyor.testing.memory_disk import MemoryFile
from conveyor.testing.memory_store import MemoryStore
from tests.callers import CALLER
from tests.unit.kafka_api.requests import (
    API_VERSIONS,
    FETCH,
    JOIN_GROUP,
    METADATA,
    SOFTWARE,
    fetch,
    framed,
    produce,
    request,
    response,
)
from tests.unit.server.memory_server import running, server

LARGE_BYTES = 100_000
PING = framed(request(API_VERSIONS, 3, **SOFTWARE))


@pytest.fixture
async def served() -> AsyncIterator[Server]:
    async with running(server(network__max_connections=2)) as made:
        yield made


async def connect(made: Server) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection(*made.kafka_address, limit=1 << 24)


class ColdFile(MemoryFile):
    """A file with nothing in the page cache: every read waits for the disk."""

    readers: ClassVar[list[tuple[int, int]]] = []
    """Pairs of the number of bytes read and the thread."""

    def read_cached(self, position: int, length: int) -> bytes:
        return b""

    def read(self, position: int, length: int) -> bytes:
        self.readers.append((length, get_ident()))
        return super().read(position, length)


class BrokenFile(MemoryFile):
    """A file with readable headers and unreadable records."""

    def read(self, position: int, length: int) -> bytes:
        if length > LARGE_BYTES:
            raise StorageFailure(f"{self.path}: Input/output error")
        return super().read(position, length)


class BrokenColdFile(BrokenFile):
    def read_cached(self, position: int, length: int) -> bytes:
        return b""


class ShortFile(ColdFile):
    """A file that was truncated from outside."""

    def read(self, position: int, length: int) -> bytes:
        return super().read(position, length)[:LARGE_BYTES]


class DiskOf(MemoryDisk):
    """A memory disk whose files have the given class."""

    def __init__(self, kind: type[MemoryFile]) -> None:
        super().__init__()
        self._kind = kind

    def open(self, path: str, *, create: bool = False) -> MemoryFile:
        if create:
            self._files.setdefault(path, self._kind(path, self))
        return super().open(path)


async def read_frame(reader: asyncio.StreamReader) -> bytes:
    return await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))


async def is_closed(reader: asyncio.StreamReader) -> bool:
    """Wait until the broker closes or resets the connection."""
    try:
        return await reader.read() == b""
    except ConnectionResetError:
        return True


async def test_a_connection_beyond_the_limit_is_closed(served: Server, caplog: pytest.LogCaptureFixture) -> None:
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


async def test_a_connection_with_a_pending_request_is_not_idle() -> None:
    async with running(server(network__max_idle_ms=200)) as made:
        await made.broker.topics.create(CALLER, TopicRequest(name="t"))
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


async def test_a_slow_client_gets_all_responses_in_order() -> None:
    """Responses of 16 MB wait until they are read, and only `max_in_flight` requests are in progress."""
    made = server(network__max_in_flight=4)
    async with running(made):
        await made.broker.topics.create(CALLER, TopicRequest(name="t", config={"max.message.bytes": "2000000"}))
        reader, writer = await connect(made)
        writer.write(framed(produce(0, encode_batch([(1, None, bytes(1_000_000), [])]))))
        assert await read_frame(reader)
        writer.write(b"".join(framed(fetch(number)) for number in range(1, 17)))
        frames = [await read_frame(reader) for _ in range(16)]
        assert [int.from_bytes(frame[:4], "big") for frame in frames] == list(range(1, 17))
        assert {len(frame) > 1_000_000 for frame in frames} == {True}
        writer.close()


async def test_cold_records_are_read_on_threads_and_sent_in_order() -> None:
    async with running(server((DiskOf(ColdFile), MemoryStore()))) as made:
        await made.broker.topics.create(CALLER, TopicRequest(name="t", config={"max.message.bytes": "4000000"}))
        reader, writer = await connect(made)
        for number in range(3):
            content = encode_batch([(1, None, bytes([number]) * 3_000_000, [])])
            writer.write(framed(produce(number, content)))
            assert await read_frame(reader)
        ColdFile.readers.clear()
        writer.write(b"".join(framed(fetch(number, offset=number % 3)) for number in range(9)))
        for number in range(9):
            frame = await read_frame(reader)
            assert frame[:4] == number.to_bytes(4, "big")
            assert frame.count(number % 3) >= 3_000_000
        large = [thread for length, thread in ColdFile.readers if length > LARGE_BYTES]
        assert len(large) >= 27
        assert get_ident() not in large
        writer.close()


@pytest.mark.parametrize(
    ("kind", "reason"),
    [(BrokenFile, "Input/output error"), (BrokenColdFile, "Input/output error"), (ShortFile, "within its records")],
)
async def test_unreadable_records_take_their_partition_offline(kind: type[MemoryFile], reason: str) -> None:
    """Otherwise the client would repeat the request forever, and be disconnected each time."""
    async with running(server((DiskOf(kind), MemoryStore()))) as made:
        await made.broker.topics.create(CALLER, TopicRequest(name="t"))
        reader, writer = await connect(made)
        writer.write(framed(produce(0, encode_batch([(1, None, bytes(2 * LARGE_BYTES), [])]))))
        assert await read_frame(reader)
        writer.write(framed(fetch(1)))
        with contextlib.suppress(ConnectionResetError):
            assert len(await reader.read()) < 2 * LARGE_BYTES
        writer.close()
        again, writer = await connect(made)
        writer.write(framed(fetch(2)))
        [topic] = response(FETCH, 4, await read_frame(again)).responses
        assert topic.partitions[0].error_code.name == "kafka_storage_error"
        assert reason in str(made.broker.partitions.table.offline_reason("t", 0))
        writer.close()


LARGE = framed(produce(1, encode_batch([(1, None, bytes(1_500_000), [])])))
TOPIC = TopicRequest(name="t", config={"max.message.bytes": "2000000"})


def small_budget(**settings: object) -> Server:
    """Return a server with room for one large request at a time."""
    limits: dict[str, object] = {"network__max_request_bytes": 2_000_000, "network__max_buffered_bytes": 2_500_000}
    return server(None, **limits | {"topics__max_message_bytes": 2_000_000} | settings)


def connections(made: Server) -> list[KafkaConnection]:
    return [connection._connection for connection in made._kafka.connections]


async def has_come(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds."""
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.001)


async def test_large_requests_wait_for_their_turn_while_small_ones_do_not() -> None:
    async with running(small_budget()) as made:
        await made.broker.topics.create(CALLER, TOPIC)
        (reader1, writer1), (reader2, writer2), (reader3, writer3) = [await connect(made) for _ in range(3)]
        writer1.write(LARGE[:1_000_000])
        await has_come(lambda: made.broker.clients.request_budget.held_bytes == len(LARGE))
        assert made.broker.clients.request_budget.small_bytes == 0
        writer2.write(LARGE)
        await has_come(lambda: made.broker.clients.request_budget.waiting_count == 1)
        writer3.write(PING)
        assert await read_frame(reader3)
        assert made.broker.clients.request_budget.waiting_count == 1
        writer1.write(LARGE[1_000_000:])
        assert await read_frame(reader1)
        assert await read_frame(reader2)
        await has_come(lambda: made.broker.clients.request_budget.held_bytes == 0)
        assert made.broker.clients.request_budget.small_bytes == 0
        for writer in (writer1, writer2, writer3):
            writer.close()


async def test_large_requests_of_one_connection_do_not_block_each_other_forever() -> None:
    async with running(small_budget(network__max_in_flight=1)) as made:
        await made.broker.topics.create(CALLER, TOPIC)
        pairs = [await connect(made) for _ in range(3)]
        for _, writer in pairs:
            writer.write(LARGE * 3 + PING)
        for reader, writer in pairs:
            for _ in range(4):
                assert await read_frame(reader)
            writer.close()
        await has_come(lambda: made.broker.clients.request_budget.held_bytes == 0)


def fetch_that_forgets(size_bytes: int) -> bytes:
    """A fetch that waits for ten minutes, and ends a session that has never been."""
    limits = {"max_wait": 600_000, "min_bytes": 1 << 30, "max_bytes": 1000, "session_epoch": -1}
    partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1000}
    forgotten = [{"topic": "x" * 32_000, "partitions": []}] * (size_bytes // 32_000)
    topics = [{"topic": "t", "partitions": [partition]}]
    return request(FETCH, 11, rack_id="", topics=topics, forgotten_topics_data=forgotten, **limits)


def join(metadata_bytes: int) -> bytes:
    """A new member of a group, which waits for further members."""
    protocols = [{"name": "range", "metadata": bytes(metadata_bytes)}]
    timeouts = {"session_timeout": 60_000, "rebalance_timeout": 60_000}
    return request(JOIN_GROUP, 3, group_id="g", member_id="", protocol_type="consumer", protocols=protocols, **timeouts)


WAITING = {
    "fetch": [fetch_that_forgets(560_000)],
    "join": [join(560_000)],
    "behind a fetch": [fetch(1, wait_ms=600_000, offset=0, topic="empty"), LARGE[LENGTH.size :]],
    "refused version": [request(API_VERSIONS, 3, **SOFTWARE)[:2] + b"\x7f\xff" + bytes(560_000)],
}


@pytest.mark.parametrize("requests", WAITING.values(), ids=WAITING)
async def test_large_request_holds_no_share_while_it_waits(requests: list[bytes]) -> None:
    """Otherwise a client that waits for days blocks the large requests of all others."""
    groups = {"groups__offsets_partitions": 1, "groups__initial_rebalance_delay_ms": 600_000}
    async with running(small_budget(network__max_buffered_bytes=9_500_000, **groups)) as made:
        for topic in (TOPIC, TopicRequest(name="empty")):
            await made.broker.topics.create(CALLER, topic)
        await made.broker.coordinators.groups.find_coordinator(CALLER, "g")
        (_, writer1), (reader2, writer2) = [await connect(made) for _ in range(2)]
        writer1.write(b"".join(map(framed, requests)))
        await has_come(lambda: any(connection.received_requests == len(requests) for connection in connections(made)))
        await has_come(lambda: made.broker.clients.request_budget.held_bytes == 0)
        is_kept = requests in (WAITING["fetch"], WAITING["join"])
        assert (made.broker.clients.request_budget.small_bytes >= sum(map(len, requests))) == is_kept
        writer2.write(LARGE)
        assert await read_frame(reader2)
        writer1.close()
        await has_come(lambda: made.broker.clients.request_budget.small_bytes == 0)
        assert made.broker.clients.request_budget.held_bytes == 0
        writer2.close()


class HungFile(MemoryFile):
    """A file of the topic `slow` is not flushed before the event is set."""

    goes_on: ClassVar[Event] = Event()

    def sync(self) -> None:
        if "slow-0" in self.path:
            assert self.goes_on.wait(60)
        super().sync()


async def test_requests_that_go_on_close_no_other_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """Producers whose disk hangs send more than the limit, a part of it on connections that they have left."""
    monkeypatch.setattr(HungFile, "goes_on", Event())
    limits = {"network__max_buffered_bytes": 1 << 20, "network__max_request_bytes": 1 << 20}
    made = server((DiskOf(HungFile), MemoryStore()), topics__max_message_bytes=1 << 19, **limits)
    batch = encode_batch([(1, None, bytes(400_000), [])])
    async with running(made):
        for name in ("slow", "t"):
            await made.broker.topics.create(CALLER, TopicRequest(name=name))
        budget, log = made.broker.clients.request_budget, made.broker.partitions.table.find("slow", 0).log
        consumer, asks = await connect(made)
        asks.write(framed(fetch(1, wait_ms=600_000, offset=0, topic="t")))
        writers = []
        for number in range(8):
            _, writer = await connect(made)
            writers.append(writer)
            writer.write(framed(produce(1, batch, topic="slow")))
            await has_come(lambda: log.log_end_offset == number + 1)  # noqa: B023 - it is called now
            if number % 2:
                writer.close()
        await has_come(lambda: len(made._kafka.connections) == 5)
        assert 0 < budget.lasting_bytes < 4_000
        assert 0 < budget.small_bytes < 5_000
        HungFile.goes_on.set()
        await has_come(lambda: budget.lasting_bytes == 0)
        made.broker.fetch.fetcher.finish_all()
        assert await read_frame(consumer)
        for writer in (asks, *writers):
            writer.close()


async def ask_unread(made: Server, size_bytes: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect a client that asks for a response of this size, of which its socket and the broker's take little."""
    known = list(made._kafka.connections)
    ours = socket.socket()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    ours.connect(made.kafka_address)
    reader, writer = await asyncio.open_connection(sock=ours, limit=1)
    await has_come(lambda: len(made._kafka.connections) > len(known))
    [connection] = [connection for connection in made._kafka.connections if connection not in known]
    connection._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    names = [{"name": f"{number:02}" * 5_000} for number in range(size_bytes // 10_000)]
    writer.write(framed(request(METADATA, 4, topics=names, allow_auto_topic_creation=False)))
    await has_come(lambda: connection._connection.finished_requests == 1)
    await made.broker.partitions.tick.end()
    return reader, writer


async def test_client_that_has_left_its_responses_unread_for_longest_is_closed_if_they_exceed_the_limit(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """80 requests of 25 bytes could take 600 MB, if their clients do not read what they have asked for."""
    async with running(server()) as made:
        budget = made._kafka.response_budget = ResponseBudget(400_000)
        pairs = []
        for size_bytes, used_bytes in ((200_000, 200_000), (300_000, 500_000), (200_000, 500_000)):
            pairs.append(await ask_unread(made, size_bytes))
            assert used_bytes < budget.used_bytes < used_bytes + 20_000
        assert "unread responses take 50" in caplog.text
        assert len(made._kafka.connections) == 2
        for reader, writer in pairs[1:]:
            assert len(await read_frame(reader)) > 200_000
            writer.close()
        pairs[0][1].close()
        await has_come(lambda: budget.used_bytes == 0)


async def test_response_above_the_limit_is_sent_if_no_other_is_unread() -> None:
    async with running(server()) as made:
        budget = made._kafka.response_budget = ResponseBudget(100_000)
        reader, writer = await ask_unread(made, 300_000)
        assert budget.used_bytes > 300_000
        other, asks = await connect(made)
        asks.write(PING)
        assert await read_frame(other)
        assert len(await read_frame(reader)) > 300_000
        await has_come(lambda: budget.used_bytes == 0)
        _, leaves = await ask_unread(made, 300_000)
        assert budget.used_bytes > 300_000
        for connection in list(made._kafka.connections):
            connection.close("the client has gone")
        assert budget.used_bytes == 0
        for open_writer in (writer, asks, leaves):
            open_writer.close()


@pytest.mark.parametrize("sent", [5, 100, 1_000_000], ids=["length", "some", "most"])
async def test_an_incomplete_request_is_closed_and_releases_its_share(
    sent: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(small_budget(network__max_receive_ms=200)) as made:
        await made.broker.topics.create(CALLER, TOPIC)
        (reader1, writer1), (reader2, writer2) = [await connect(made) for _ in range(2)]
        writer1.write(LARGE[:sent])
        await has_come(lambda: any(connection.is_receiving for connection in connections(made)))
        writer2.write(LARGE)
        assert await read_frame(reader2)
        assert await is_closed(reader1)
        writer1.close()
        writer2.close()
    assert "a request is incomplete after 200 ms (network.max_receive_ms)" in caplog.text


async def test_a_large_request_that_decodes_to_more_than_the_budget_is_refused(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with running(small_budget()) as made:
        reader, writer = await connect(made)
        writer.write(framed(request(METADATA, 4, topics=None, allow_auto_topic_creation=False) + bytes(1_000_000)))
        assert await is_closed(reader)
        writer.close()
    assert "takes 160" in caplog.text


async def test_a_slow_client_gets_all_pending_responses_at_a_stop() -> None:
    """When the broker stops, fifteen responses of 1 MB are pending, and the client has read 4 bytes of them."""
    made = server()
    await made.start()
    await made.broker.topics.create(CALLER, TOPIC)
    reader, writer = await asyncio.open_connection(*made.kafka_address, limit=1 << 16)
    writer.write(framed(produce(0, encode_batch([(1, None, bytes(1_000_000), [])]))))
    assert await read_frame(reader)
    writer.write(b"".join(framed(fetch(number)) for number in range(1, 16)))
    size = int.from_bytes(await reader.readexactly(4), "big")
    await has_come(lambda: all(connection.finished_requests == 16 for connection in connections(made)))
    stopping = asyncio.ensure_future(made.stop())
    read = 0
    while data := await reader.read(1 << 16):
        read += len(data)
    await stopping
    writer.close()
    assert read == 15 * (4 + size) - 4


async def test_a_client_that_does_not_read_does_not_delay_the_stop_forever(
    caplog: pytest.LogCaptureFixture,
) -> None:
    made = server(network__drain_timeout_ms=50)
    await made.start()
    await made.broker.topics.create(CALLER, TOPIC)
    _, writer = await asyncio.open_connection(*made.kafka_address, limit=1)
    writer.write(framed(produce(0, encode_batch([(1, None, bytes(1_000_000), [])]))))
    writer.write(b"".join(framed(fetch(number)) for number in range(1, 33)))
    await has_come(lambda: all(connection.finished_requests > 1 for connection in connections(made)))
    async with asyncio.timeout(30):
        await made.stop()
    assert "the broker stops, and the client does not read its responses (network.drain_timeout_ms)" in caplog.text
    writer.close()
