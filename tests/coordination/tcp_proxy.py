"""A TCP proxy in front of a ZooKeeper, which a test cuts, stalls, or lets lose replies."""

import asyncio
import contextlib
import ssl
from collections.abc import Callable
from struct import unpack_from

CONNECT, SYNC, TRANSACTION = 0, 9, 14
"""Types of requests in ZooKeeper's protocol. A request is a length, a number, a type; the first has neither."""


class TcpProxy:
    """requests: the type of each request that was passed on, for each connection."""

    def __init__(self, server_port: int, tls: ssl.SSLContext | None = None) -> None:
        self.requests: list[list[int]] = []
        self._server_port = server_port
        self._tls = tls
        self._refuses = False
        self._loses_replies_to: int | None = None
        self._next_count: Callable[[], int] | None = None
        self._flows = asyncio.Event()
        self._flows.set()
        self._writers: set[asyncio.StreamWriter] = set()

    async def start(self) -> "TcpProxy":
        self._listener = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._tls)
        self.port: int = self._listener.sockets[0].getsockname()[1]
        return self

    async def stop(self) -> None:
        self._listener.close()
        self.cut()
        await self._listener.wait_closed()

    def cut(self) -> None:
        """Close all connections, and every new one at once."""
        self._refuses = True
        for writer in self._writers:
            writer.transport.abort()

    def accept(self) -> None:
        """Accept connections again after `cut`."""
        self._refuses = False

    def stall(self) -> None:
        """Keep the connections, accept new ones, and pass nothing on."""
        self._flows.clear()

    def lose_replies_to(self, request_type: int) -> None:
        """Pass on a request of this type, then nothing that the server sends on this connection."""
        self._loses_replies_to = request_type

    def cut_after(self, next_count: Callable[[], int]) -> None:
        """Close each connection after so many requests, when the server has got the last one."""
        self._next_count = next_count

    def send(self, garbage: bytes) -> None:
        """Send this to the client, as if the server had sent it."""
        for writer in self._writers:
            writer.write(garbage)

    def heal(self) -> None:
        self._refuses, self._loses_replies_to, self._next_count = False, None, None
        self._flows.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            if not self._refuses:
                await self._forward(reader, writer)
        self._writers.discard(writer)
        writer.transport.abort()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_server, to_server = await asyncio.open_connection("127.0.0.1", self._server_port)
        is_muted = asyncio.Event()
        self.requests.append([])
        replies = asyncio.create_task(self._forward_replies(from_server, writer, is_muted))
        try:
            await self._forward_requests(reader, to_server, self.requests[-1], is_muted)
        finally:
            replies.cancel()
            to_server.transport.abort()
            await asyncio.gather(replies, return_exceptions=True)

    async def _forward_requests(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, types: list[int], is_muted: asyncio.Event
    ) -> None:
        last = self._next_count() if self._next_count else None
        while last is None or len(types) < last:
            length = await reader.readexactly(4)
            request = await reader.readexactly(int.from_bytes(length))
            await self._flows.wait()
            types.append(unpack_from(">i", request, 4)[0] if types else CONNECT)
            if types[-1] == self._loses_replies_to:
                is_muted.set()
            writer.write(length + request)
            await writer.drain()

    async def _forward_replies(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, is_muted: asyncio.Event
    ) -> None:
        with contextlib.suppress(OSError):
            while content := await reader.read(1 << 16):
                await self._flows.wait()
                if not is_muted.is_set():
                    writer.write(content)
                    await writer.drain()
        writer.transport.abort()
