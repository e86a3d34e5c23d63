"""WebSockets of a real client over real sockets, without TLS and with it: messages, pings, closes, and the stop."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path

import aiohttp
import pytest

from conveyor.adapters.tls.client_names import ClientNames
from conveyor.adapters.tls.development_authority import DevelopmentAuthority
from conveyor.adapters.tls.server_certificate import ServerCertificate
from conveyor.adapters.tls.tls_acceptor import TlsAcceptor
from conveyor.http.engine.exchange import Service
from conveyor.http.engine.http_response import DateHeader
from conveyor.http.engine.site import Site
from conveyor.kernel.request_budget import RequestBudget
from conveyor.testing.manual_clock import ManualClock
from tests.certificates import tls_settings
from tests.unit.http.memory_wire import LIMIT_BYTES, EchoApplication, until


class EchoServer:
    """A site on a socket of its own. tls: what accepts its connections."""

    def __init__(self, tls: TlsAcceptor | None, idle_s: float = 60) -> None:
        self.application = EchoApplication()
        budget, date = RequestBudget(10_000_000), DateHeader(ManualClock(0))
        self.service = Service(self.application, budget, date, idle_s, count(1))
        self.site = Site(self.service)
        self._tls = tls
        self._server: asyncio.Server

    async def start(self, session: aiohttp.ClientSession) -> None:
        self._server = await asyncio.get_running_loop().create_server(self._accept, "127.0.0.1", 0)
        self._session = session
        scheme = "http" if self._tls is None else "https"
        self.url = f"{scheme}://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def _accept(self) -> asyncio.Protocol:
        connection = self.site.connection()
        return connection if self._tls is None else self._tls.accept(connection, connection.authenticated)

    async def connect(self, path: str = "/websocket") -> aiohttp.ClientWebSocketResponse:
        return await self._session.ws_connect(self.url + path, max_msg_size=0)

    async def stop(self) -> None:
        self._server.close()
        await self.site.close()
        await self.site.drain(20)


def acceptor(directory: Path) -> tuple[TlsAcceptor, ssl.SSLContext]:
    """Return what accepts connections by TLS, and the context of clients that trust it."""
    authority = DevelopmentAuthority.create()
    certificate = ServerCertificate(tls_settings(directory, authority))
    context = ssl.create_default_context(cadata=authority.issued.certificate.decode())
    return TlsAcceptor(lambda: certificate.context, ClientNames("DEFAULT").principal, lambda: None), context


@pytest.fixture(params=["plain", "tls"])
async def server(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[EchoServer]:
    tls, context = acceptor(tmp_path) if request.param == "tls" else (None, None)
    made = EchoServer(tls)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context or True)) as session:
        await made.start(session)
        yield made
    await made.stop()


async def test_real_client_talks(server: EchoServer) -> None:
    client = await server.connect()
    await client.send_str("Grüße")
    await client.send_bytes(b"\x00\xff")
    await client.ping(b"p")
    await client.send_bytes(bytes(LIMIT_BYTES))
    assert await client.receive_str() == "Grüße"
    assert [await client.receive_bytes(), await client.receive_bytes()] == [b"\x00\xff", bytes(LIMIT_BYTES)]
    await client.close(code=4001)
    [handler] = server.application.websockets
    assert (client.close_code, handler.codes) == (4001, [4001])
    await until(lambda: server.site.connection_count == 0)
    assert server.service.in_progress == 0


async def test_real_client_is_closed_by_the_application(server: EchoServer) -> None:
    client = await server.connect()
    server.application.websockets[0].websocket.close(4002, "enough")
    message = await client.receive()
    assert (message.type, message.data, message.extra) == (aiohttp.WSMsgType.CLOSE, 4002, "enough")
    await until(lambda: server.site.connection_count == 0)


async def test_real_client_hears_what_was_wrong(server: EchoServer) -> None:
    client = await server.connect()
    await client.send_bytes(bytes(LIMIT_BYTES + 1))
    message = await client.receive()
    assert (message.data, message.extra) == (1009, f"a message has at most {LIMIT_BYTES} bytes")
    assert server.application.websockets[0].codes == [1009]


async def test_real_client_that_does_not_read_holds_the_application_up(server: EchoServer) -> None:
    client = await server.connect()
    [handler] = server.application.websockets
    sent = 0
    while not handler.paces:
        handler.websocket.send(bytes(60_000))
        sent += 1
        await asyncio.sleep(0)
    for _ in range(sent):
        assert len(await client.receive_bytes()) == 60_000
    await until(lambda: handler.paces == ["pause", "resume"])
    assert server.service.response_budget.used_bytes == 0
    await client.close()


async def test_stop_closes_websockets_and_waits_for_them(server: EchoServer) -> None:
    idle, working = await server.connect(), await server.connect("/websocket/works")
    await working.send_str("a")
    await until(lambda: bool(server.application.websockets[1].messages))
    stopping = asyncio.ensure_future(server.site.finish_requests(60))
    for client in (idle, working):
        assert (await client.receive()).data == 1001
    await until(lambda: server.site.connection_count == 0)
    assert not stopping.done(), "the application still works on a message"
    server.application.websockets[1].websocket.resume_reading()
    await stopping
    assert server.service.in_progress == 0


async def test_stop_waits_no_longer_than_it_may_for_websockets(server: EchoServer) -> None:
    client = await server.connect()
    await server.site.finish_requests(0.01)
    await server.site.close()
    await until(lambda: server.application.websockets[0].codes == [1001])
    await client.close()


async def test_refused_upgrade_is_an_ordinary_response(server: EchoServer) -> None:
    with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
        await server.connect("/refused")
    assert refused.value.status == 401


async def test_real_client_that_answers_pings_stays() -> None:
    server = EchoServer(None, idle_s=0.05)
    async with aiohttp.ClientSession() as session:
        await server.start(session)
        client = await session.ws_connect(server.url + "/websocket", autoping=False)
        for _ in range(3):
            assert (await client.receive()).type is aiohttp.WSMsgType.PING
            await client.pong()
        message = await client.receive()
        while message.type is aiohttp.WSMsgType.PING:
            message = await client.receive()
        assert message.data == 1008
    await server.stop()
