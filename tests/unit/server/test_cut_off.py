"""Both doors of a broker that has lost its session: Kafka connections are closed, and REST requests refused."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from conveyor.kernel.errors import ERRORS, ErrorKind
from conveyor.server.server import Server
from conveyor.testing import MemoryDisk
from conveyor.testing.memory_store import MemoryStore
from tests.unit.kafka_api.requests import API_VERSIONS, SOFTWARE, framed, request
from tests.unit.server.memory_server import running, server

PING = framed(request(API_VERSIONS, 3, **SOFTWARE))


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(2_000)


@pytest.fixture
async def served(store: MemoryStore) -> AsyncIterator[Server]:
    async with running(server((MemoryDisk(), store))) as made:
        yield made


async def is_answered(made: Server) -> bool:
    """Whether a new connection of a Kafka client is answered, and not closed."""
    reader, writer = await asyncio.open_connection(*made.kafka_address)
    try:
        writer.write(PING)
        return len(await reader.read(4)) == 4
    except ConnectionError:
        return False
    finally:
        writer.close()


async def ask(made: Server, path: str) -> tuple[int, Any, Any]:
    """Return the status, the headers and the JSON of a response."""
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://{made.http_address}{path}", headers={"Connection": "close"}) as response,
    ):
        return response.status, response.headers, await response.json()


async def test_clients_are_sent_away_while_the_session_is_lost(served: Server, store: MemoryStore) -> None:
    assert await is_answered(served)
    reader, writer = await asyncio.open_connection(*served.kafka_address)
    store.cut()
    assert await is_answered(served), "the broker still has its place"
    store.expire()
    assert await reader.read() == b"", "open connections are closed"
    writer.close()
    assert not await is_answered(served)
    status, _, readiness = await ask(served, "/readyz")
    assert (status, readiness["cut_off"]) == (503, served.broker.liveness.isolation.reason)
    assert (await ask(served, "/healthz"))[0] == 200
    status, headers, problem = await ask(served, "/topics")
    assert (status, headers["Retry-After"]) == (ERRORS[ErrorKind.METADATA_UNAVAILABLE].http_status, "1")
    assert (problem["kind"], problem["retriable"]) == ("metadata_unavailable", True)
    store.reconnect()
    await served.broker.metadata.until(lambda _: served.broker.liveness.isolation.reason is None)
    assert await is_answered(served)
    assert [(await ask(served, path))[0] for path in ("/readyz", "/topics")] == [200, 200]
