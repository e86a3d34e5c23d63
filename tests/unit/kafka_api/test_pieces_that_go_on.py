"""The pieces of long requests that wait for something, and that go on after their client has disconnected."""

import asyncio
from typing import Any

import pytest

from conveyor.broker.slices import SLICE_ITEMS
from conveyor.kafka_api.wire import connection, long_request
from conveyor.kafka_api.wire.call import KafkaCall
from conveyor.kafka_api.wire.connection import ITEM_BYTES
from tests.unit.kafka_api.client import MemoryClient
from tests.unit.kafka_api.requests import CREATE_TOPICS, DESCRIBE_GROUPS, ids, request
from tests.unit.kafka_api.test_long_requests import settled


def creation(*names: str) -> bytes:
    topics = [{"name": name, "num_partitions": 1, "replication_factor": 1, "assignments": []} for name in names]
    return request(CREATE_TOPICS, 5, 1, topics=[topic | {"configs": []} for topic in topics], timeout=9_000)


async def test_pieces_that_go_on_are_weighed_to_their_end_and_no_more_begin(client: MemoryClient) -> None:
    names = [f"new{number:02d}" for number in range(30)]
    client.send(creation(*names))
    image = client.broker.metadata
    async with asyncio.timeout(60):
        while "new00" not in image.image.topics:  # noqa: ASYNC110 - no event tells
            await asyncio.sleep(0)
        client.connection.end()
        assert client.connection.buffered_bytes
        while client.connection.buffered_bytes:  # noqa: ASYNC110 - no event tells
            await asyncio.sleep(0)
    assert "new09" in image.image.topics


@pytest.mark.parametrize("only_wait", [True, False])
async def test_only_some_pieces_wait_at_once(
    client: MemoryClient, monkeypatch: pytest.MonkeyPatch, only_wait: bool
) -> None:
    """What they wait for may come for all of them in one turn of the event loop."""
    monkeypatch.setattr(connection, "_SMALL_FRAME_BYTES", 10)
    pieces: list[KafkaCall] = []

    def handle(piece: KafkaCall) -> None:
        pieces.append(piece)
        if only_wait:
            piece.wait(lambda: None)

    handlers: Any = client.connection._handlers
    monkeypatch.setitem(handlers, DESCRIBE_GROUPS, handle)
    budget = client.broker.clients.request_budget
    client.connection.shares.append(budget.ask(1_000_000, lambda: None))
    client.send(ids(SLICE_ITEMS + 50))
    await settled()
    assert len(pieces) == long_request._PIECES_AT_ONCE
    assert budget.held_bytes == (0 if only_wait else 1_000_000)
    pieces[3].answer({"groups": ()})
    await settled()
    assert len(pieces) == long_request._PIECES_AT_ONCE + 1
    for piece in pieces:  # Others are appended meanwhile.
        if piece.response is None:
            piece.answer({"groups": ()})
            await settled()
    assert len(pieces) == SLICE_ITEMS + 50
    async with asyncio.timeout(60):
        while not client.connection.finished_requests:  # noqa: ASYNC110 - the response is encoded in a thread
            await asyncio.sleep(0)
    assert client.connection.finished_requests == 1


async def test_pieces_are_counted_once_whether_they_go_on_or_answer_late(
    client: MemoryClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some go on, as they say by their cancellation; some answer although they are cancelled, and some never."""
    pieces: list[KafkaCall] = []

    def handle(piece: KafkaCall) -> None:
        pieces.append(piece)
        piece.wait(lambda: setattr(piece, "cancel", None) if piece in pieces[:2] else None)

    handlers: Any = client.connection._handlers
    monkeypatch.setitem(handlers, DESCRIBE_GROUPS, handle)
    client.send(ids(SLICE_ITEMS + 50))
    await settled()
    assert len(pieces) > 4
    client.connection.end()
    weight_bytes = client.connection.buffered_bytes
    for piece in (pieces[2], pieces[0], pieces[3]):
        assert client.connection.buffered_bytes == weight_bytes > SLICE_ITEMS * ITEM_BYTES
        piece.answer({"groups": ()})
    await settled()
    assert client.connection.buffered_bytes == weight_bytes
    pieces[1].answer({"groups": ()})
    await settled()
    assert client.connection.buffered_bytes == 0
    pieces[4].answer({"groups": ()})
    await settled()
    assert client.connection.finished_requests == 1


async def test_large_request_keeps_its_share_while_pieces_go_on(
    client: MemoryClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "_SMALL_FRAME_BYTES", 10)
    pieces: list[KafkaCall] = []
    handlers: Any = client.connection._handlers
    monkeypatch.setitem(handlers, DESCRIBE_GROUPS, pieces.append)
    budget = client.broker.clients.request_budget
    client.connection.shares.append(budget.ask(1_000_000, lambda: None))
    client.send(ids(SLICE_ITEMS + 50))
    await settled()
    client.connection.end()
    for piece in pieces:
        assert budget.held_bytes == 1_000_000
        piece.answer({"groups": ()})
    await settled()
    assert budget.held_bytes == client.connection.buffered_bytes == 0
