"""The sockets of a service: their limit, their deadlines and the stop, over TCP."""

import asyncio
from collections.abc import AsyncIterator
from itertools import count

import pytest

from conveyor.http.engine.exchange import Service
from conveyor.http.engine.http_response import DateHeader
from conveyor.http.engine.site import Site
from conveyor.kernel.access.caller import HTTP, Caller
from conveyor.kernel.request_budget import RequestBudget
from conveyor.testing.manual_clock import ManualClock
from tests.unit.http.memory_wire import EchoApplication, parse_responses, until

GET = b"GET %b HTTP/1.1\r\nHost: h\r\n\r\n"


class Served:
    """A site on a socket of its own."""

    def __init__(self, idle_s: float) -> None:
        self.application = EchoApplication()
        date = DateHeader(ManualClock(0))
        self.service = Service(self.application, RequestBudget(10_000_000), date, idle_s, count(1))
        self.site = Site(self.service)
        self.server: asyncio.Server

    async def start(self) -> None:
        self.server = await asyncio.get_running_loop().create_server(self.site.connection, "127.0.0.1", 0)

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(*self.server.sockets[0].getsockname())

    async def waiting(self) -> None:
        """Wait until a request waits for its response."""
        await until(lambda: bool(self.application.waiting))

    async def stop(self) -> None:
        self.server.close()
        await self.site.close()
        await self.site.drain(20)


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    made = Served(60)
    await made.start()
    yield made
    await made.stop()


async def test_request_is_answered(served: Served) -> None:
    reader, writer = await served.connect()
    writer.write(GET % b"/a")
    writer.write_eof()
    assert parse_responses(await reader.read()) == [(200, b"GET /a ")]
    writer.close()


async def test_oldest_connections_make_room(served: Served) -> None:
    first, second = await served.connect(), await served.connect()
    await until(lambda: served.site.connection_count == 2)
    served.site.make_room(2)
    assert served.site.connection_count == 1
    assert await first[0].read() == b""
    second[1].write(GET % b"/a")
    assert (await second[0].read(4)) == b"HTTP"
    for _, writer in (first, second):
        writer.close()


async def test_idle_connection_is_closed() -> None:
    served = Served(0.01)
    await served.start()
    reader, writer = await served.connect()
    assert await reader.read() == b""
    writer.close()
    await served.stop()


async def test_stop_waits_for_requests_and_their_responses(served: Served) -> None:
    idle, working = await served.connect(), await served.connect()
    working[1].write(GET % b"/later")
    await served.waiting()
    stopping = asyncio.ensure_future(served.site.finish_requests(60))
    assert await idle[0].read() == b""
    assert not stopping.done()
    served.application.answer()
    await stopping
    await served.site.drain(60)
    assert served.site.connection_count == 0
    assert parse_responses(await working[0].read()) == [(200, b"GET /later ")]
    for _, writer in (idle, working):
        writer.close()


async def test_stop_waits_no_longer_than_it_may(served: Served) -> None:
    reader, writer = await served.connect()
    writer.write(GET % b"/later")
    await served.waiting()
    await served.site.finish_requests(0.01)
    await served.site.drain(0.01)
    await served.site.close()
    assert await reader.read() == b""
    writer.close()


async def test_the_requests_of_a_connection_share_one_caller(served: Served) -> None:
    callers: list[Caller] = []
    for _ in range(2):
        reader, writer = await served.connect()
        for _ in range(2):
            writer.write(GET % b"/later")
            await served.waiting()
            callers.append(served.application.waiting[0].caller)
            served.application.answer()
            await reader.readuntil(b"GET /later ")
        writer.close()
    assert [caller.connection_id for caller in callers] == [1, 1, 2, 2]
    assert callers[0] is callers[1]
    assert (str(callers[0]), callers[0].listener) == ("User:ANONYMOUS@127.0.0.1", HTTP)
