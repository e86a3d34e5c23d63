"""Networks of brokers over TCP in one process, and strangers who connect to them."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import ClassVar

from conveyor.adapters.peers.handshake import NONCE_BYTES, DialerHandshake
from conveyor.adapters.peers.link_certificate import LinkCertificate, link_certificate
from conveyor.adapters.peers.tcp_peer_network import TcpPeerNetwork
from conveyor.kernel.errors import ProtocolViolation
from conveyor.kernel.ids import NodeId
from conveyor.kernel.peers import (
    PeerAddress,
    PeerCredentials,
    PeerIdentity,
    PeerLink,
    PeerService,
)
from conveyor.kernel.ports import Bytes

SECRET = b"0123456789abcdef0123456789abcdef"
FRAME_BYTES = 1 << 20


Connect = Callable[[], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]


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

    def __init__(self, node_id: int, secret: bytes, certificate: Callable[[], LinkCertificate]) -> None:
        bound = socket.create_server(("127.0.0.1", 0))
        self.bound = bound
        self.identity = PeerIdentity(NodeId(node_id), f"start-{node_id}")
        self.network = TcpPeerNetwork("127.0.0.1", bound.getsockname()[1], certificate)
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
async def running(
    node_id: int, secret: bytes = SECRET, certificate: Callable[[], LinkCertificate] = link_certificate
) -> AsyncIterator[Node]:
    node = Node(node_id, secret, certificate)
    await node.network.start(node.bound)
    yield node
    node.network.stop()
    await asyncio.sleep(0)


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


@contextlib.asynccontextmanager
async def passing_on(connect: Connect, context: ssl.SSLContext | None = None) -> AsyncIterator[tuple[str, int]]:
    """Listen, and pass all bytes on over connections of its own. Yields the address. context: to end TLS in between."""

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while content := await reader.read(1 << 16):
                writer.write(content)
        writer.close()

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        own_reader, own_writer = await connect()
        await asyncio.gather(pump(reader, own_writer), pump(own_reader, writer))

    server = await asyncio.start_server(pass_on, "127.0.0.1", 0, ssl=context)
    yield server.sockets[0].getsockname()
    server.close()


async def connect_plain(node: Node) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection(node.network.host, node.network.port)
