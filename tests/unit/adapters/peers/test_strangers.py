"""Strangers who connect to a broker, stand between two, or are dialled: they open no link, and keep nobody out."""

import asyncio
import contextlib
import logging
import ssl
from collections.abc import AsyncIterator
from functools import partial

import pytest

from conveyor.adapters.peers import peer_connection
from conveyor.adapters.peers.handshake import NONCE_BYTES, AcceptorHandshake
from conveyor.adapters.peers.link_certificate import link_certificate
from conveyor.adapters.peers.peer_connection import PeerConnection
from conveyor.adapters.peers.peer_framing import LENGTH
from conveyor.adapters.peers.tcp_peer_network import UNPROVED_CONNECTIONS
from conveyor.kernel.ids import NodeId
from conveyor.kernel.peers import (
    PeerAddress,
    PeerIdentity,
    PeerUnreachable,
)
from conveyor.kernel.ports import Bytes
from tests.unit.adapters.client_contexts import context_of_older_tls
from tests.unit.adapters.peers.nodes import Node, Recorder, connect, connect_plain, hello, linked, passing_on
from tests.unit.broker.markers.producers import until


@pytest.mark.usefixtures("impatience")
async def test_a_slow_hello_is_refused(two: Node, caplog: pytest.LogCaptureFixture) -> None:
    reader, writer = await connect(two)
    writer.write(hello(two)[:20])

    assert await reader.read() == b""
    assert "the handshake has taken" in caplog.text
    writer.close()


async def test_strangers_who_connect_keep_no_broker_out(one: Node, two: Node) -> None:
    """They do not even begin TLS."""
    strangers = [await connect_plain(two) for _ in range(3 * UNPROVED_CONNECTIONS)]

    dialled, accepted = await linked(one, two)
    dialled.link.send(b"heard")

    assert await accepted.frames.get() == b"heard"
    assert await strangers[0][0].read() == b""
    assert len(two.network._unproved) <= UNPROVED_CONNECTIONS
    for _, writer in strangers:
        writer.close()


class DeafTransport(asyncio.Transport):
    """To a stranger who does not read: what is written stays, so that a close has no end."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        super().__init__({"tls": None})

    def write(self, data: Bytes) -> None:
        self.calls.append("write")

    def close(self) -> None:
        self.calls.append("close")

    def abort(self) -> None:
        self.calls.append("abort")


async def test_stranger_who_does_not_read_why_he_is_refused_keeps_no_connection(
    two: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_connection, "_REFUSAL_S", 0.0)
    transport = DeafTransport()
    handshake = AcceptorHandshake(None, b"certificate", bytes(NONCE_BYTES))
    connection = PeerConnection(two.network, handshake, lambda link, _: Recorder(link))
    connection.connection_made(transport)
    connection.refuse("no", b"no")
    assert transport.calls[-2:] == ["write", "close"]
    await until(lambda: transport.calls[-1] == "abort")


async def strange(node: Node, sent: bytes) -> None:
    """Connect as a stranger, send some bytes, and wait for the end."""
    reader, writer = await connect(node)
    writer.write(sent)
    with contextlib.suppress(ConnectionResetError):
        assert await reader.read() == b""
    writer.close()


async def test_a_stranger_without_tls_is_refused_with_one_line(two: Node, caplog: pytest.LogCaptureFixture) -> None:
    for sent in (b"CVPR\x02\x00\x03hey", b"GET / HTTP/1.0\r\n\r\n", bytes(400)):
        reader, writer = await connect_plain(two)
        writer.write(sent)
        with contextlib.suppress(ConnectionResetError):
            await reader.read()
        writer.close()
    refusals = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(refusals) == 1
    assert "TLS has failed" in refusals[0]


@pytest.mark.parametrize("sent", [b"\0" * 400, b"GET / HTTP/1.0\r\n\r\n", LENGTH.pack(1 << 31)])
async def test_a_stranger_is_refused_with_one_line(two: Node, sent: bytes, caplog: pytest.LogCaptureFixture) -> None:
    await strange(two, sent)
    refusals = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert [record.getMessage().partition("reason=")[2] for record in refusals] == ["the peer is not a broker"]


async def test_many_strangers_are_refused_with_one_line(two: Node, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    for _ in range(5):
        await strange(two, b"CVPR\x02\x00\x03\x91\xa1\xff")
    refusals = [record for record in caplog.records if "peer refused" in record.getMessage()]
    assert [record.levelno for record in refusals] == [logging.WARNING] + 4 * [logging.DEBUG]
    assert "refused=5 reason=the peer sent a malformed message: " in refusals[-1].getMessage()


async def test_a_stranger_cannot_announce_a_large_hello(two: Node) -> None:
    reader, writer = await connect(two)
    writer.write(b"CVPR\x02\xff\xff")

    assert await reader.read() == b""
    writer.close()


@contextlib.asynccontextmanager
async def impostor(target: Node, context: ssl.SSLContext | None = None) -> AsyncIterator[PeerAddress]:
    """Listen at the address of broker 2, and pass all bytes on to another broker. context: to end TLS in between."""
    async with passing_on(partial(connect_plain if context is None else connect, target), context) as address:
        yield PeerAddress(PeerIdentity(NodeId(2), "start-2"), *address)


async def test_a_reflected_dial_opens_no_link(one: Node) -> None:
    """The impostor passes what it receives to the dialer's own listener."""
    async with impostor(one) as address:
        with pytest.raises(PeerUnreachable, match="refused"):
            await one.dial(address)
    assert one.accepted.empty()


async def test_whoever_ends_tls_between_two_brokers_is_found_out(one: Node, two: Node) -> None:
    between = link_certificate.__wrapped__()
    async with impostor(two, between.acceptor) as address:
        with pytest.raises(PeerUnreachable, match="does not know the secret"):
            await one.dial(address)
    assert two.accepted.empty()


async def test_whoever_passes_encrypted_bytes_on_sees_no_frame(one: Node, two: Node) -> None:
    async with impostor(two) as address:
        dialled = await one.dial(address)
        accepted = await two.accepted.get()
        dialled.link.send(b"frame")
        assert await accepted.frames.get() == b"frame"
        dialled.link.close("enough")
        await accepted.end


async def test_links_speak_tls_1_3_with_a_certificate_of_this_start(two: Node) -> None:
    _, writer = await connect(two)
    tls = writer.get_extra_info("ssl_object")
    assert (tls.version(), tls.getpeercert(True)) == ("TLSv1.3", link_certificate().der)
    assert link_certificate.__wrapped__().der != link_certificate().der
    writer.close()


async def test_older_tls_is_refused(two: Node) -> None:
    host, port = two.network.host, two.network.port
    with pytest.raises(ssl.SSLError):
        await asyncio.open_connection(host, port, ssl=context_of_older_tls(), server_hostname="")
