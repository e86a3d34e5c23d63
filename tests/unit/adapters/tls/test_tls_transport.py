"""The transport that encrypts, over real connections: a protocol sees its connection at once, and plain bytes later."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from typing import cast

import pytest

from conveyor.adapters.peers.link_certificate import link_certificate
from conveyor.adapters.tls.tls_channel import TlsFailed
from conveyor.adapters.tls.tls_transport import TlsTransport
from tests.unit.adapters.client_contexts import context_of_older_tls
from tests.unit.broker.markers.producers import until


class Recorder(asyncio.Protocol):
    """Notes what happens to its connection."""

    def __init__(self) -> None:
        self.made: asyncio.Future[asyncio.Transport] = asyncio.get_running_loop().create_future()
        self.lost: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        self.received = bytearray()
        self.changed = asyncio.Event()
        self.has_eof = False
        self.pauses: list[str] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.made.set_result(cast("asyncio.Transport", transport))

    def data_received(self, data: bytes) -> None:
        assert data
        self.received += data
        self.changed.set()

    def eof_received(self) -> bool | None:
        self.has_eof = True
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set_result(exc)

    def pause_writing(self) -> None:
        self.pauses.append("pause")

    def resume_writing(self) -> None:
        self.pauses.append("resume")

    async def has(self, content: bytes) -> None:
        while self.received != content:
            assert content.startswith(self.received)
            self.changed.clear()
            await self.changed.wait()


class Site:
    """A listener, and the protocols of what has connected."""

    def __init__(self) -> None:
        self.accepted: asyncio.Queue[Recorder] = asyncio.Queue()
        self.server: asyncio.Server

    @property
    def port(self) -> int:
        return int(self.server.sockets[0].getsockname()[1])

    def accept(self) -> TlsTransport:
        recorder = Recorder()
        self.accepted.put_nowait(recorder)
        return TlsTransport(link_certificate().acceptor, recorder, is_server=True)

    async def connect(self) -> tuple[Recorder, Recorder]:
        """Return both ends."""
        dialler = Recorder()
        context = link_certificate().dialer
        loop = asyncio.get_running_loop()
        await loop.create_connection(lambda: TlsTransport(context, dialler, is_server=False), "127.0.0.1", self.port)
        return dialler, await self.accepted.get()


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    site = Site()
    site.server = await asyncio.get_running_loop().create_server(site.accept, "127.0.0.1", 0)
    yield site
    site.server.close()


async def test_bytes_pass_in_both_directions(site: Site) -> None:
    one, two = await site.connect()
    large = bytes(range(256)) * 8_000
    (await one.made).write(large)
    (await two.made).write(b"answer")
    await one.has(b"answer")
    await two.has(large)
    assert (await one.made).get_extra_info("tls").version == "TLSv1.3"
    assert (await one.made).get_extra_info("peername")[1] == site.port
    assert (await one.made).get_write_buffer_size() == 0
    (await one.made).close()
    assert (await one.lost, await two.lost, two.has_eof) == (None, None, True)


async def test_what_is_written_before_the_end_arrives(site: Site) -> None:
    one, two = await site.connect()
    await one.made
    (await two.made).write(b"x")
    await one.has(b"x")
    large = bytes(3_000_000)
    (await one.made).write(large)
    (await one.made).close()
    (await one.made).write(b"too late")
    await two.has(large)
    await two.lost


async def test_protocol_sees_its_connection_before_the_handshake_and_can_end_it(site: Site) -> None:
    with socket.create_connection(("127.0.0.1", site.port)) as silent:
        accepted = await site.accepted.get()
        transport = await accepted.made
        transport.write(b"waits for the handshake")
        assert transport.get_write_buffer_size() == 23
        transport.abort()
        await accepted.lost
        silent.setblocking(False)
        assert await asyncio.get_running_loop().sock_recv(silent, 100) == b""
    assert not accepted.received


async def test_failed_handshake_is_the_reason_of_the_end_and_an_alert_tells_the_peer(site: Site) -> None:
    with pytest.raises(ssl.SSLError, match="alert protocol version"):
        await asyncio.open_connection("127.0.0.1", site.port, ssl=context_of_older_tls(), server_hostname="")
    accepted = await site.accepted.get()
    assert isinstance(await accepted.lost, TlsFailed)


async def test_connection_that_is_cut_is_no_end_of_the_peer(site: Site) -> None:
    """Whoever cuts a connection on its way cannot make a short message look whole."""
    one, two = await site.connect()
    (await one.made).write(b"half")
    await two.has(b"half")
    (await one.made).get_extra_info("socket").shutdown(socket.SHUT_WR)
    await two.lost
    assert not two.has_eof


async def test_writer_is_paused_while_the_peer_does_not_read(site: Site) -> None:
    one, two = await site.connect()
    (await two.made).write(b"x")
    await one.has(b"x")
    (await two.made).pause_reading()
    while "pause" not in one.pauses:
        (await one.made).write(bytes(1 << 18))
        await asyncio.sleep(0)
    (await two.made).resume_reading()
    await until(lambda: "resume" in one.pauses)
    (await one.made).abort()
    await two.lost
