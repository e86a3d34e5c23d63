"""Links between brokers over TCP: honest peers, dead peers, and strangers."""

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import AsyncIterator
from typing import ClassVar

import pytest

from conveyor.adapters.peers import peer_connection, tcp_peer_network
from conveyor.adapters.peers.handshake import NONCE_BYTES, DialerHandshake
from conveyor.adapters.peers.link_certificate import link_certificate
from conveyor.adapters.peers.peer_framing import LENGTH
from conveyor.adapters.peers.tcp_peer_network import UNPROVED_CONNECTIONS, TcpPeerNetwork
from conveyor.kernel.errors import ProtocolViolation, StorageFailure
from conveyor.kernel.ids import NodeId
from conveyor.kernel.peers import (
    PeerAddress,
    PeerCredentials,
    PeerIdentity,
    PeerLink,
    PeerService,
    PeerUnreachable,
)
from conveyor.kernel.ports import Bytes, FileSlice
from conveyor.testing.memory_disk import MemoryDisk, MemoryFile

SECRET = b"0123456789abcdef0123456789abcdef"
MAX_FRAME_BYTES = 1 << 20


class Recorder:
    """An end that stores what it receives."""

    violation: ClassVar[bytes] = b"not a frame"

    def __init__(self, link: PeerLink) -> None:
        self.link = link
        self.frames: asyncio.Queue[bytes] = asyncio.Queue()
        self.end: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def received(self, frame: Bytes) -> None:
        assert not self.end.done(), "a frame after the end"
        if frame == self.violation:
            raise ProtocolViolation("what is that")
        self.frames.put_nowait(bytes(frame))

    def ended(self, reason: str) -> None:
        self.end.set_result(reason)


class Node:
    """One broker's network, and the ends of the links that others have opened."""

    def __init__(self, node_id: int, secret: bytes) -> None:
        bound = socket.create_server(("127.0.0.1", 0))
        self.bound = bound
        self.identity = PeerIdentity(NodeId(node_id), f"start-{node_id}")
        self.network = TcpPeerNetwork("127.0.0.1", bound.getsockname()[1], MAX_FRAME_BYTES, link_certificate())
        self.network.open(PeerCredentials("cluster", secret, lambda: self.identity))
        self.accepted: asyncio.Queue[Recorder] = asyncio.Queue()
        self.network.accept(self._accept)

    @property
    def address(self) -> PeerAddress:
        return PeerAddress(self.identity, self.network.host, self.network.port)

    async def dial(self, address: PeerAddress) -> Recorder:
        recorders: list[Recorder] = []

        def answer(link: PeerLink) -> Recorder:
            recorders.append(Recorder(link))
            return recorders[0]

        link = await self.network.dial(address, PeerService.CALLS, answer)
        assert recorders[0].link is link
        return recorders[0]

    def _accept(self, link: PeerLink, service: PeerService) -> Recorder:
        assert service is PeerService.CALLS
        recorder = Recorder(link)
        self.accepted.put_nowait(recorder)
        return recorder


@contextlib.asynccontextmanager
async def running(node_id: int, secret: bytes = SECRET) -> AsyncIterator[Node]:
    node = Node(node_id, secret)
    await node.network.start(node.bound)
    yield node
    node.network.stop()
    await asyncio.sleep(0)


@pytest.fixture
async def one() -> AsyncIterator[Node]:
    async with running(1) as node:
        yield node


@pytest.fixture
async def two() -> AsyncIterator[Node]:
    async with running(2) as node:
        yield node


@pytest.fixture
def impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten all limits of time."""
    monkeypatch.setattr(tcp_peer_network, "HANDSHAKE_LIMIT_S", 0.2)
    monkeypatch.setattr(tcp_peer_network, "_CHECK_S", 0.05)
    monkeypatch.setattr(peer_connection, "PEER_SILENCE_LIMIT_S", 0.2)


async def linked(one: Node, two: Node) -> tuple[Recorder, Recorder]:
    dialled = await one.dial(two.address)
    return dialled, await two.accepted.get()


def hello(node: Node) -> bytes:
    """Return the first bytes of a genuine dial."""
    own = PeerCredentials("cluster", SECRET, lambda: PeerIdentity(NodeId(9), "stranger"))
    return DialerHandshake(own, node.identity, PeerService.CALLS, bytes(NONCE_BYTES)).begin()


async def connect(node: Node) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Speak TLS with a broker."""
    host, port = node.network.host, node.network.port
    return await asyncio.open_connection(host, port, ssl=link_certificate().dialer, server_hostname="")


async def connect_plain(node: Node) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection(node.network.host, node.network.port)


async def test_frames_arrive_in_both_directions_and_in_order(one: Node, two: Node) -> None:
    dialled, accepted = await linked(one, two)
    sent = [b"%d" % number * (1 + number * 37 % 9_000) for number in range(300)]

    for frame in sent:
        dialled.link.send(frame[:1], memoryview(frame)[1:])
        accepted.link.send(frame)

    assert [await accepted.frames.get() for _ in sent] == sent
    assert [await dialled.frames.get() for _ in sent] == sent
    assert (dialled.link.peer, accepted.link.peer) == (two.identity, one.identity)
    assert dialled.link.unsent_bytes == 0


async def test_a_closed_link_ends_at_both_ends(one: Node, two: Node) -> None:
    dialled, accepted = await linked(one, two)

    dialled.link.close("enough")

    assert dialled.end.result() == "enough"
    assert await accepted.end
    accepted.link.send(b"late")
    accepted.link.close("again")


async def test_a_violation_of_the_protocol_ends_the_link(one: Node, two: Node) -> None:
    dialled, accepted = await linked(one, two)

    dialled.link.send(Recorder.violation)

    assert "what is that" in await accepted.end
    await dialled.end


async def test_a_link_for_an_unknown_purpose_is_refused(one: Node, two: Node) -> None:
    def refuse(link: PeerLink, service: PeerService) -> Recorder:
        raise ProtocolViolation("no such service")

    two.network.accept(refuse)

    assert await (await one.dial(two.address)).end


async def test_a_process_that_does_not_listen_is_gone(one: Node, two: Node) -> None:
    two.network.stop()
    await asyncio.sleep(0.01)

    with pytest.raises(PeerUnreachable) as unreachable:
        await one.dial(two.address)

    assert unreachable.value.is_gone


async def test_a_dial_of_another_start_is_refused(one: Node, two: Node) -> None:
    earlier = PeerAddress(PeerIdentity(NodeId(2), "earlier"), two.network.host, two.network.port)

    with pytest.raises(PeerUnreachable, match="start start-2 of broker 2") as unreachable:
        await one.dial(earlier)

    assert not unreachable.value.is_gone


async def test_a_broker_with_another_secret_is_refused(two: Node, caplog: pytest.LogCaptureFixture) -> None:
    async with running(1, secret=bytes(32)) as stranger:
        with pytest.raises(PeerUnreachable, match="does not know the secret"):
            await stranger.dial(two.address)
        await asyncio.sleep(0.01)

    assert two.accepted.empty()
    assert "peer refused address=127.0.0.1:" in caplog.text


async def test_a_broker_that_has_not_joined_refuses_links(one: Node) -> None:
    bound = socket.create_server(("127.0.0.1", 0))
    network = TcpPeerNetwork("127.0.0.1", bound.getsockname()[1], MAX_FRAME_BYTES, link_certificate())
    await network.start(bound)
    address = PeerAddress(PeerIdentity(NodeId(2), "start"), network.host, network.port)

    with pytest.raises(PeerUnreachable, match="not joined"):
        await one.dial(address)
    with pytest.raises(PeerUnreachable):
        await network.dial(one.address, PeerService.CALLS, Recorder)

    network.stop()


async def test_a_cancelled_dial_leaves_no_link(one: Node, two: Node) -> None:
    dial = asyncio.ensure_future(one.dial(two.address))
    await asyncio.sleep(0)
    dial.cancel()

    with pytest.raises(asyncio.CancelledError):
        await dial
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0.1):
            await (await two.accepted.get()).end


@pytest.mark.usefixtures("impatience")
async def test_an_idle_link_lives_on_keep_alives(one: Node, two: Node) -> None:
    dialled, accepted = await linked(one, two)

    await asyncio.wait([dialled.end, accepted.end], timeout=0.6)

    assert not dialled.end.done()
    assert not accepted.end.done()


@pytest.mark.usefixtures("impatience")
async def test_a_peer_whose_loop_hangs_is_dead(one: Node, two: Node) -> None:
    """The loop of both brokers is this one, so the peer hangs in that it sends no keep-alives."""
    dialled, _ = await linked(one, two)
    check = two.network._check
    assert check is not None
    check.cancel()

    assert "silent" in await dialled.end


@pytest.mark.usefixtures("impatience")
async def test_a_dial_that_is_not_answered_gives_up(one: Node) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = PeerAddress(PeerIdentity(NodeId(3), "start"), "127.0.0.1", silent.getsockname()[1])
        with pytest.raises(PeerUnreachable, match="does not answer"):
            await one.dial(address)


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

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while content := await reader.read(1 << 16):
                writer.write(content)
        writer.close()

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        own_reader, own_writer = await (connect_plain(target) if context is None else connect(target))
        await asyncio.gather(pump(reader, own_writer), pump(own_reader, writer))

    server = await asyncio.start_server(pass_on, "127.0.0.1", 0, ssl=context)
    yield PeerAddress(PeerIdentity(NodeId(2), "start-2"), *server.sockets[0].getsockname())
    server.close()


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
    older = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    older.check_hostname, older.verify_mode, older.maximum_version = False, ssl.CERT_NONE, ssl.TLSVersion.TLSv1_2
    with pytest.raises(ssl.SSLError):
        await asyncio.open_connection(two.network.host, two.network.port, ssl=older, server_hostname="")


async def test_half_a_frame_is_never_received(one: Node, two: Node) -> None:
    reader, writer = await connect(two)
    own = PeerCredentials("cluster", SECRET, lambda: PeerIdentity(NodeId(9), "start-9"))
    shake = DialerHandshake(own, two.identity, PeerService.CALLS, bytes(NONCE_BYTES))
    shake.certificate = link_certificate().der
    writer.write(shake.begin())
    while not shake.is_done:
        writer.write(shake.receive(await reader.read(4_096)))
    writer.write(LENGTH.pack(3) + b"all" + LENGTH.pack(10) + b"half")
    accepted = await two.accepted.get()
    assert await accepted.frames.get() == b"all"
    writer.close()

    await accepted.end
    assert accepted.frames.empty()


async def test_a_frame_beyond_the_limit_ends_the_link(one: Node, two: Node) -> None:
    dialled, accepted = await linked(one, two)
    two.network.max_frame_bytes = 1
    accepted.link._frames._max_bytes = 10  # type: ignore[attr-defined]

    dialled.link.send(bytes(11))

    assert "a frame of 11 bytes" in await accepted.end


async def test_a_peer_that_does_not_read_is_ended(one: Node, two: Node) -> None:
    dialled, accepted = await linked(one, two)
    accepted.link._transport.pause_reading()  # type: ignore[attr-defined]

    while not dialled.end.done():
        dialled.link.send(bytes(MAX_FRAME_BYTES))
        await asyncio.sleep(0)

    assert "does not read" in dialled.end.result()


class ColdFile(MemoryFile):
    """A file with nothing in the page cache."""

    def read_cached(self, position: int, length: int) -> bytes:
        return b""


async def test_slices_are_sent_in_order_from_the_cache_and_from_the_disk(one: Node, two: Node) -> None:
    dialled, accepted = await linked(one, two)
    disk = MemoryDisk()
    cold, cached = ColdFile("cold", disk), disk.open("cached", create=True)
    cold.append([bytes(range(256)) * 3_000])
    cached.append([b"0123456789"])

    dialled.link.send(b"<", FileSlice(cold, 10, 700_000), b">")
    dialled.link.send(FileSlice(cached, 2, 3), b"!")

    assert await accepted.frames.get() == b"<" + bytes(cold.written[10:700_010]) + b">"
    assert await accepted.frames.get() == b"234!"
    assert dialled.link.unsent_bytes == 0


@pytest.mark.parametrize("kind", [ColdFile, MemoryFile])
async def test_a_slice_that_cannot_be_read_ends_the_link(one: Node, two: Node, kind: type[MemoryFile]) -> None:
    dialled, accepted = await linked(one, two)
    disk = MemoryDisk()
    file = kind("log", disk)
    file.append([b"0123456789"])
    disk.faults.fail("read")
    failures: list[StorageFailure] = []

    dialled.link.send(b"header", FileSlice(file, 0, 10, failures.append))

    assert await dialled.end == "stored records could not be read"
    await accepted.end
    assert (len(failures), accepted.frames.empty()) == (1, True)
