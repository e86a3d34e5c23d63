"""Proxies for the links between brokers: one in front of each broker. The links are encrypted, and pass as they are."""

import asyncio
import contextlib
import socket
from collections import defaultdict
from functools import partial

_READ_BYTES = 1 << 18

FIRST_CLONE = 100
Pair = frozenset[int]


def broker_at(host: str) -> int:
    """Return the id of the broker that listens at an address and dials from it, or whose clone does."""
    return int(host.rpartition(".")[2]) % FIRST_CLONE


class PeerLinks:
    """All links of a cluster, by the ids of the brokers, and their faults. Call its methods on the proxies' loop."""

    def __init__(self) -> None:
        self._cut: set[Pair] = set()
        self._delay_s: dict[Pair, float] = {}
        self._flows: dict[tuple[int, int], asyncio.Event] = defaultdict(_set_event)
        self._writers: dict[Pair, set[asyncio.StreamWriter]] = defaultdict(set)

    def reset(self, one: int, other: int) -> None:
        """Abort all connections between two brokers."""
        for writer in self._writers[frozenset((one, other))]:
            writer.transport.abort()

    def cut(self, one: int, other: int) -> None:
        """Abort all connections between two brokers, and each new one."""
        self._cut.add(frozenset((one, other)))
        self.reset(one, other)

    def mute(self, sender: int, receiver: int) -> None:
        """Pass on nothing from one broker to another. What the other one sends still arrives."""
        self._flows[sender, receiver].clear()

    def delay(self, one: int, other: int, seconds: float) -> None:
        """Hold back each portion of bytes between two brokers for a while."""
        self._delay_s[frozenset((one, other))] = seconds

    def heal(self) -> None:
        self._cut.clear()
        self._delay_s.clear()
        for flows in self._flows.values():
            flows.set()

    def add(self, pair: Pair, writer: asyncio.StreamWriter) -> bool:
        """Add the writer of a connection. Returns whether the brokers may connect."""
        self._writers[pair].add(writer)
        return pair not in self._cut

    def remove(self, pair: Pair, writer: asyncio.StreamWriter) -> None:
        self._writers[pair].discard(writer)

    async def pump(
        self, sender: int, receiver: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Pass on what one broker sends to another, until either closes the connection."""
        flows, pair = self._flows[sender, receiver], frozenset((sender, receiver))
        with contextlib.suppress(OSError):
            while content := await reader.read(_READ_BYTES):
                if seconds := self._delay_s.get(pair):
                    await asyncio.sleep(seconds)
                await flows.wait()
                writer.write(content)
                await writer.drain()


class PeerProxy:
    """In front of one broker, at the same port of another address of this machine."""

    def __init__(self, node_id: int, target: tuple[str, int], own: tuple[str, int], links: PeerLinks) -> None:
        self._node_id = node_id
        self._target = target
        self._own = own
        self._links = links
        self._listener: socket.socket | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Accept connections, before the broker starts."""
        if self._listener is None:
            self._listener = socket.create_server(self._own)
            self._listener.setblocking(False)
            asyncio.get_running_loop().add_reader(self._listener, self._accept, self._listener)

    async def close(self) -> None:
        """Refuse connections, and end those that are open, as the system does for a process that has died."""
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener)
            self._listener.close()
            self._listener = None
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _accept(self, listener: socket.socket) -> None:
        """Not by a server of asyncio, which leaves a connection open that arrives while it is closed."""
        with contextlib.suppress(BlockingIOError):
            connection, _ = listener.accept()
            connection.setblocking(False)
            task = asyncio.create_task(self._serve(connection))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            task.add_done_callback(partial(_closed, connection))

    async def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError):
            reader, writer = await asyncio.open_connection(sock=connection)
            try:
                await self._connect(reader, writer)
            finally:
                writer.transport.abort()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        dialer = broker_at(writer.get_extra_info("peername")[0])
        pair = frozenset((dialer, self._node_id))
        try:
            if self._links.add(pair, writer):
                await self._forward(dialer, reader, writer)
        finally:
            self._links.remove(pair, writer)

    async def _forward(self, dialer: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_broker, to_broker = await asyncio.open_connection(*self._target)
        pumps = [
            asyncio.create_task(self._links.pump(dialer, self._node_id, reader, to_broker)),
            asyncio.create_task(self._links.pump(self._node_id, dialer, from_broker, writer)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            to_broker.transport.abort()


def _closed(connection: socket.socket, _: asyncio.Task[None]) -> None:
    """Close a connection, also if the task that serves it was cancelled before it had begun."""
    connection.close()


def _set_event() -> asyncio.Event:
    event = asyncio.Event()
    event.set()
    return event
