"""The memory that a connection is charged for, and a response that cannot be encoded."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from conveyor.broker.slices import SLICE_ITEMS
from conveyor.cluster.topic_creation import TopicRequest
from conveyor.kafka_api.apis.topics import k03_metadata
from conveyor.kafka_api.wire import connection
from conveyor.records.record import encode_batch
from tests.callers import CALLER
from tests.unit.kafka_api.client import MemoryClient
from tests.unit.kafka_api.requests import FETCH, fetch, framed, produce, request


async def test_waiting_requests_are_counted_until_they_are_answered(client: MemoryClient) -> None:
    assert client.connection.buffered_bytes == 0
    client.send(fetch(1, wait_ms=60_000))
    waiting = client.connection.buffered_bytes
    assert waiting > len(fetch(1))
    client.send(*[fetch(number, wait_ms=60_000) for number in (2, 3, 4)])
    assert client.connection.buffered_bytes > 3 * waiting, "requests beyond the limit count too"
    client.broker.fetch.fetcher.finish_all()
    await client.broker.partitions.tick.end()
    client.connection.resume()
    client.broker.fetch.fetcher.finish_all()
    await client.broker.partitions.tick.end()
    assert client.connection.buffered_bytes == 0


async def test_small_requests_that_wait_count_as_what_they_take(client: MemoryClient) -> None:
    """Each of 12 bytes is kept as an object of its own."""
    client.send(fetch(1, wait_ms=60_000))
    before = client.connection.buffered_bytes
    client.send(*[b"\0\x03\0\x01" + bytes(4)] * 5_000)
    assert client.connection.buffered_bytes - before > 200 * 5_000
    assert client.connection.is_full
    client.connection.end()
    assert client.connection.buffered_bytes == 0


async def test_partly_received_requests_are_counted(client: MemoryClient) -> None:
    client.connection.receive(framed(fetch(1))[:20])
    assert client.connection.buffered_bytes == 20


async def session_of(client: MemoryClient, partitions: int) -> bytes:
    """Open a fetch session of a new topic. Returns a request of some bytes that waits for all its partitions."""
    await client.broker.topics.create(CALLER, TopicRequest(name="wide", partitions=partitions))
    limits: dict[str, Any] = {"min_bytes": 1, "max_bytes": 1, "forgotten_topics_data": ()}
    places = [{"partition": number, "fetch_offset": 0, "partition_max_bytes": 1} for number in range(partitions)]
    topics = [{"topic": "wide", "partitions": places}]
    opened = await client.ask(FETCH, 7, max_wait=0, session_id=0, session_epoch=0, topics=topics, **limits)
    return request(FETCH, 7, max_wait=600_000, session_id=opened.session_id, session_epoch=1, topics=(), **limits)


@pytest.mark.parametrize("partitions", [1, SLICE_ITEMS, SLICE_ITEMS + 1])
async def test_waiting_fetch_counts_with_all_partitions_of_its_session(client: MemoryClient, partitions: int) -> None:
    """A request of 47 bytes may wait with 173 KB, for as long as its client wants."""
    waiting = await session_of(client, partitions)
    await client.broker.partitions.tick.end()
    assert client.connection.buffered_bytes == 0
    client.send(waiting)
    assert client.connection.buffered_bytes == 16 * len(waiting) + 2_048 + 700 * partitions
    client.broker.fetch.fetcher.finish_all()
    await comes(lambda: client.connection.buffered_bytes == 0)


async def test_response_counts_while_it_waits_for_that_of_an_earlier_request(client: MemoryClient) -> None:
    client.send(fetch(1, wait_ms=600_000))
    before, failing = client.connection.buffered_bytes, fetch(2, topic="x" * 10_000)
    client.send(failing)
    assert client.connection.finished_requests == 1
    assert client.connection.buffered_bytes >= before + 16 * len(failing) + 10_000
    client.broker.fetch.fetcher.finish_all()
    await client.broker.partitions.tick.end()
    assert (client.connection.buffered_bytes, client.answers.qsize()) == (0, 2)


async def test_end_of_a_connection_cancels_many_waiting_fetches_in_parts(
    client: MemoryClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They count until then."""
    monkeypatch.setattr(connection, "_ENDED_BYTES", 1_000)
    client.send(*[fetch(number, wait_ms=60_000) for number in range(3)])
    waiting, before = client.broker.fetch.fetcher._waiting, client.connection.buffered_bytes
    client.connection.end()
    seen = [(len(waiting), client.connection.buffered_bytes)]
    while waiting:
        await asyncio.sleep(0)
        seen += [(len(waiting), client.connection.buffered_bytes)] if len(waiting) < seen[-1][0] else []
    assert seen == [(count, before * count // 3) for count in (3, 2, 1, 0)]


async def test_end_of_a_connection_cancels_all_at_once_if_ended_connections_take_much(
    client: MemoryClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise clients that come and go could take any memory."""
    monkeypatch.setattr(connection, "_ENDED_BYTES", 1_000)
    client.broker.clients.request_budget.lasting_bytes = client.broker.settings.network.max_buffered_bytes
    client.send(*[fetch(number, wait_ms=60_000) for number in range(3)])
    client.connection.end()
    assert client.connection.buffered_bytes == len(client.broker.fetch.fetcher._waiting) == 0


async def test_ended_connection_counts_nothing(client: MemoryClient) -> None:
    client.send(fetch(1, wait_ms=60_000))
    client.connection.end()
    assert client.connection.buffered_bytes == 0


async def comes(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds."""
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - no event tells
            await asyncio.sleep(0)


def held(client: MemoryClient) -> int:
    """Return the bytes of records that requests in progress refer to."""
    calls = client.connection._calls
    partitions = [one for call in calls for topic in call.request.topic_data for one in topic.partition_data]
    return sum(len(partition.records or b"") for partition in partitions)


@pytest.mark.parametrize("ends", [False, True], ids=["connected", "gone"])
@pytest.mark.parametrize("size", [1, 600_000], ids=["small", "large"])
async def test_produce_that_waits_for_the_disk_counts_without_its_records(
    client: MemoryClient, size: int, *, ends: bool
) -> None:
    """Otherwise producers that send again, while a disk or a follower hangs, fill the memory with what is stored."""
    budget = client.broker.clients.request_budget
    share_bytes = 0 if size == 1 else size
    if share_bytes:
        client.connection.shares.append(budget.ask(share_bytes, lambda: None))
    frame = produce(1, encode_batch([(1, None, bytes(size), [])]))
    client.send(frame)
    assert client.broker.partitions.table.find("t", 0).log.log_end_offset == 1
    assert held(client) < 1_000
    if ends:
        client.connection.end()
    assert 0 < client.connection.buffered_bytes < 1_000
    assert budget.held_bytes == 0
    await comes(lambda: client.connection.buffered_bytes == 0)
    assert client.answers.qsize() == (not ends)


async def test_produce_keeps_its_records_and_its_share_until_all_are_appended(client: MemoryClient) -> None:
    """Two of its batches have to be unpacked, in a thread."""
    budget, config = client.broker.clients.request_budget, {"dedup.enable": "true"}
    for name in ("first", "second"):
        await client.broker.topics.create(CALLER, TopicRequest(name=name, config=config))
    batch = encode_batch([(1, None, bytes(200_000), [])])
    topics = [{"name": name, "partition_data": [{"index": 0, "records": batch}]} for name in ("first", "t", "second")]
    client.connection.shares.append(budget.ask(600_000, lambda: None))
    client.send(request(0, 9, acks=-1, timeout=1_000, topic_data=topics))
    client.connection.end()
    assert budget.held_bytes == 600_000
    assert held(client) == 3 * len(batch)
    await comes(lambda: budget.held_bytes == 0)
    ends = [client.broker.partitions.table.find(name, 0).log.log_end_offset for name in ("first", "second")]
    assert ends == [1, 1]
    assert held(client) == 0
    await comes(lambda: client.connection.buffered_bytes == 0)


async def test_refused_batches_are_not_kept_either(client: MemoryClient) -> None:
    batch, wrong = encode_batch([(1, None, bytes(2_000), [])]), bytes(2_000)
    partitions = [{"index": index, "records": records} for index, records in ((0, batch), (0, wrong), (9, batch))]
    client.send(request(0, 9, acks=-1, timeout=1_000, topic_data=[{"name": "t", "partition_data": partitions}]))
    assert held(client) == 0


async def test_large_request_that_goes_on_keeps_its_share(
    client: MemoryClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients that connect again and again take turns as well. A request that has not begun keeps nothing."""
    monkeypatch.setattr(connection, "_SMALL_FRAME_BYTES", 10)
    budget = client.broker.clients.request_budget
    topic = {"name": "new", "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
    creation = request(19, 5, topics=[topic], timeout=9_000)
    for _ in range(2):
        client.connection.shares.append(budget.ask(600_000, lambda: None))
    client.send(creation, creation)
    client.connection.end()
    assert budget.held_bytes == 600_000
    await comes(lambda: budget.held_bytes == 0)
    assert "new" in client.broker.metadata.image.topics
    await comes(lambda: client.connection.buffered_bytes == 0)


async def test_unencodable_response_closes_one_connection(
    client: MemoryClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The bug is injected. The broker keeps running, and closes the client's connection."""
    reasons: list[str] = []
    client.connection._failed = reasons.append
    monkeypatch.setattr(
        k03_metadata, "_described", lambda *_: {"name": "t", "error_code": "nonsense", "partitions": ()}
    )
    client.send(request(3, 4, topics=None, allow_auto_topic_creation=False))
    await client.broker.partitions.tick.end()
    assert len(reasons) == 1
    assert "response cannot be encoded" in caplog.text
