"""The memory that a connection is charged for, and a response that cannot be encoded."""

import pytest

from conveyor.kafka_api.apis.topics import k03_metadata
from tests.unit.kafka_api.client import MemoryClient
from tests.unit.kafka_api.requests import fetch, framed, request


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


async def test_partly_received_requests_are_counted(client: MemoryClient) -> None:
    client.connection.receive(framed(fetch(1))[:20])
    assert client.connection.buffered_bytes == 20


async def test_ended_connection_counts_nothing(client: MemoryClient) -> None:
    client.send(fetch(1, wait_ms=60_000))
    client.connection.end()
    assert client.connection.buffered_bytes == 0


async def test_unencodable_response_closes_one_connection(
    client: MemoryClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The bug is injected. The broker keeps running, and closes the client's connection."""
    reasons: list[str] = []
    client.connection._failed = reasons.append
    monkeypatch.setattr(k03_metadata, "_described", lambda *_: {"name": "t", "error_code": "nonsense"})
    client.send(request(3, 4, topics=None, allow_auto_topic_creation=False))
    await client.broker.partitions.tick.end()
    assert len(reasons) == 1
    assert "response cannot be encoded" in caplog.text
