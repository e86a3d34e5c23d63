"""The requests of a connection take effect, and are answered, in order."""

import asyncio
import gc
from struct import pack
from typing import Any

import pytest

from conveyor.cluster.topic_creation import TopicRequest
from conveyor.kafka_api.wire import connection
from conveyor.kafka_api.wire.call import KafkaCall
from conveyor.kafka_api.wire.versions import SASL_HANDSHAKE_KEY, SERVED_APIS
from conveyor.kernel.errors import ProtocolViolation
from conveyor.kernel.request_budget import SMALL_REQUEST_BYTES
from conveyor.records.record import encode_batch
from tests.callers import CALLER
from tests.unit.broker.parts import BATCH, Storage, running_parts
from tests.unit.kafka_api.client import MemoryClient
from tests.unit.kafka_api.requests import (
    API_VERSIONS,
    CREATE_TOPICS,
    FETCH,
    LIST_OFFSETS,
    PRODUCE,
    SOFTWARE,
    fetch,
    framed,
    produce,
    request,
    response,
)


def ping(correlation_id: int) -> bytes:
    """Encode a request that is answered at once."""
    return request(API_VERSIONS, 3, correlation_id, **SOFTWARE)


async def test_requests_are_answered_in_order(client: MemoryClient) -> None:
    client.send(ping(1), ping(2))
    assert await client.answered_ids() == [1, 2]
    assert client.connection.is_idle


async def test_a_request_may_come_byte_by_byte(client: MemoryClient) -> None:
    stream = framed(ping(1)) + framed(ping(2))
    for number in range(len(stream)):
        client.connection.receive(stream[number : number + 1])
    assert await client.answered_ids() == [1, 2]
    assert client.connection.buffered_bytes == 0


async def test_later_requests_wait_for_an_earlier_one(client: MemoryClient, storage: Storage) -> None:
    client.send(fetch(1), ping(2))
    assert await client.answered_ids() == []
    assert client.connection.finished_requests == 0
    assert client.connection.has_waiting
    storage.clock.advance(ms=500)
    assert await client.answered_ids() == [1, 2]
    assert not client.connection.has_waiting


async def test_a_batch_is_appended_while_earlier_requests_wait(client: MemoryClient) -> None:
    """The fetch waits for the records of the produce requests behind it."""
    client.send(fetch(1, wait_ms=60_000), produce(2, BATCH), produce(3, BATCH))
    assert client.broker.partitions.table.find("t", 0).log.log_end_offset == 2
    assert [await client.next_id() for _ in range(3)] == [1, 2, 3]


async def test_only_produce_and_fetch_overlap() -> None:
    overlaps = {(earlier, key) for key, api in SERVED_APIS.items() for earlier in api.overlaps}
    assert overlaps == {(PRODUCE, PRODUCE), (FETCH, FETCH), (FETCH, PRODUCE)}


async def test_a_fetch_waits_for_the_batch_before_it(client: MemoryClient, storage: Storage) -> None:
    """It would otherwise find no records: these are visible once they are on the disk."""
    client.send(produce(1, BATCH), fetch(2, wait_ms=0))
    assert await client.next_id() == 1
    body = response(FETCH, 4, await client.answers.get())
    assert body.responses[0].partitions[0].high_watermark == 1
    assert body.responses[0].partitions[0].records


async def test_an_answer_that_takes_a_task_keeps_its_place(client: MemoryClient) -> None:
    creatable = {"name": "made", "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
    making = request(CREATE_TOPICS, 2, 1, topics=[creatable], timeout=1000, validate_only=False)
    client.send(making, ping(2))
    assert [await client.next_id(), await client.next_id()] == [1, 2]


async def test_request_that_waited_leaves_no_garbage_for_the_collector(client: MemoryClient, storage: Storage) -> None:
    """At thousands of requests a second, pauses of the collector would dominate the highest latencies."""
    gc.collect()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        client.send(fetch(1, wait_ms=60_000), produce(2, BATCH), produce(3, BATCH))
        assert [await client.next_id() for _ in range(3)] == [1, 2, 3]
        storage.clock.advance(seconds=61)
        gc.collect()
        assert not [call for call in gc.garbage if isinstance(call, KafkaCall)]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()


async def test_connections_do_not_wait_for_each_other(client: MemoryClient) -> None:
    client.send(fetch(1))
    other = MemoryClient(client.broker)
    other.send(ping(2))
    assert await other.answered_ids() == [2]


@pytest.mark.parametrize(("counted_bytes", "most"), [(4096, 16), (100, 4)])
async def test_many_requests_of_a_client_leave_turns_to_others(
    client: MemoryClient, monkeypatch: pytest.MonkeyPatch, counted_bytes: int, most: int
) -> None:
    monkeypatch.setattr(connection, "_RESPONSE_BYTES", counted_bytes)
    client.send(*(ping(number) for number in range(100)))
    finished = client.connection.finished_requests
    assert 0 < finished <= most
    turns = 1
    while client.connection.finished_requests < 100:
        await asyncio.sleep(0)
        assert client.connection.finished_requests - finished <= most
        turns += client.connection.finished_requests > finished
        finished = client.connection.finished_requests
    assert turns >= 100 / most
    assert [await client.next_id() for _ in range(100)] == list(range(100))


async def test_slow_requests_of_a_client_leave_turns_to_others(
    client: MemoryClient, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    handlers: Any = client.connection._handlers
    answer = handlers[API_VERSIONS]

    def work(call: KafkaCall) -> None:
        storage.clock.advance(ms=5)
        answer(call)

    monkeypatch.setitem(handlers, API_VERSIONS, work)
    finished = 0
    client.send(*(ping(number) for number in range(20)))
    while finished < 20:
        assert client.connection.finished_requests <= finished + 2
        finished = client.connection.finished_requests
        await asyncio.sleep(0)


async def test_requests_that_wait_for_a_turn_end_with_their_connection(client: MemoryClient) -> None:
    client.send(*(ping(number) for number in range(100)))
    finished = client.connection.finished_requests
    client.connection.end()
    for _ in range(3):
        await asyncio.sleep(0)
    assert client.connection.finished_requests == finished


async def test_no_response_is_sent_for_acks_none(client: MemoryClient) -> None:
    client.send(produce(1, BATCH, acks=0), ping(2))
    assert await client.answered_ids() == [2]
    assert client.connection.is_idle


async def test_stored_records_are_sent_as_produced(client: MemoryClient) -> None:
    client.send(produce(1, BATCH))
    await client.answers.get()
    client.send(fetch(2))
    body = response(1, 4, await client.answers.get())
    assert body.responses[0].partitions[0].records[17:] == BATCH[17:]


async def test_a_full_connection_takes_requests_again_after_responses(client: MemoryClient, storage: Storage) -> None:
    client.send(fetch(1), fetch(2), fetch(3), ping(4))
    assert client.connection.is_full
    assert client.connection.finished_requests == 0
    storage.clock.advance(ms=500)
    assert await client.answered_ids() == [1, 2, 3, 4]
    assert client.connection.is_idle


async def test_requests_that_wait_for_their_turn_fill_a_connection(client: MemoryClient, storage: Storage) -> None:
    fullness = []
    for frame in (fetch(1), ping(2), ping(3)):
        client.send(frame)
        fullness.append(client.connection.is_full)
    assert fullness == [False, False, True]
    storage.clock.advance(ms=500)
    assert await client.answered_ids() == [1, 2, 3]
    assert not client.connection.is_full


async def test_a_connection_is_full_when_its_waiting_requests_take_much_memory() -> None:
    """Otherwise a client that sends faster than it is served would be disconnected for the memory that it takes."""
    async with running_parts() as broker:
        await broker.topics.create(CALLER, TopicRequest(name="t"))
        client = MemoryClient(broker)
        batch = encode_batch([(1, None, bytes(SMALL_REQUEST_BYTES // 2), [])])
        client.send(fetch(1, wait_ms=60_000), ping(2))
        fullness = []
        for number in (3, 4):
            client.send(produce(number, batch))
            fullness.append(client.connection.is_full)
        assert fullness == [False, True]
        broker.fetch.fetcher.finish_all()
        assert [await client.next_id() for _ in range(4)] == [1, 2, 3, 4]


async def test_the_end_of_a_connection_cancels_its_pending_requests(client: MemoryClient, storage: Storage) -> None:
    client.send(fetch(1), ping(2))
    client.connection.end()
    storage.clock.advance(seconds=60)
    assert await client.answered_ids() == []
    assert client.connection.finished_requests == 0


async def test_a_response_after_the_end_is_discarded(client: MemoryClient) -> None:
    client.send(produce(1, BATCH))
    client.connection.end()
    await client.broker.partitions.flusher.drain()
    assert await client.answered_ids() == []


@pytest.mark.parametrize(
    ("api_key", "version", "reason"),
    [
        (PRODUCE, 2, "message formats 0 and 1 are not supported: use a client of Kafka 0.11 or newer"),
        (FETCH, 3, "message formats 0 and 1 are not supported: use a client of Kafka 0.11 or newer"),
        (LIST_OFFSETS, 0, "the client is too old: use producers and consumers of Kafka 0.11 or newer"),
        (PRODUCE, 14, "versions 3 to 13 are served"),
    ],
)
async def test_a_version_that_is_not_served_is_refused_with_its_reason(
    client: MemoryClient, api_key: int, version: int, reason: str
) -> None:
    with pytest.raises(ProtocolViolation, match=reason):
        client.send(pack(">hhih", api_key, version, 1, -1))


@pytest.mark.parametrize("version", [SERVED_APIS[API_VERSIONS].max_version + 1, 2**15 - 1, -1])
async def test_a_version_of_api_versions_that_is_not_served_is_answered_with_the_served_ones(
    client: MemoryClient, version: int
) -> None:
    """The body is of v0 and has no other API, so that clients ask again (KIP-511)."""
    client.send(pack(">hhih", API_VERSIONS, version, 7, -1) + b"anything")
    newest = SERVED_APIS[API_VERSIONS].max_version
    assert await client.answers.get() == pack(">ihihhh", 7, 35, 1, API_VERSIONS, 0, newest)


async def test_produce_and_sasl_handshake_are_advertised_from_0_on(client: MemoryClient) -> None:
    """Otherwise old librdkafka compresses nothing, and does not log in."""
    answer = await client.ask(API_VERSIONS, 3, **SOFTWARE)
    assert {api.api_key: api.min_version for api in answer.api_keys} == {
        key: 0 if key in (PRODUCE, SASL_HANDSHAKE_KEY) else api.min_version for key, api in SERVED_APIS.items()
    }


@pytest.mark.parametrize(
    ("frame", "error"),
    [
        (produce(2, BATCH, acks=0, topic="nothing"), "UNKNOWN_TOPIC: topic 'nothing'"),
        (produce(2, BATCH[:-1] + b"!", acks=0), "CORRUPT_BATCH: "),
        (produce(2, encode_batch([(1, None, bytes(2 << 20), [])]), acks=0), "MESSAGE_TOO_LARGE: "),
    ],
    ids=["unknown topic", "malformed", "too large"],
)
async def test_a_failed_produce_without_acks_closes_the_connection(
    client: MemoryClient, frame: bytes, error: str
) -> None:
    client.send(ping(1), frame, ping(3))
    assert await client.answered_ids() == [1], "earlier requests are answered"
    [reason] = client.failures
    assert reason.startswith(f"client 'unit' produced with acks=0: {error}")


async def test_requests_before_a_violation_are_answered(client: MemoryClient) -> None:
    with pytest.raises(ProtocolViolation):
        client.send(ping(1), b"\x03\xe7\x00\x00\x00\x00\x00\x02")
    assert await client.answered_ids() == [1]
