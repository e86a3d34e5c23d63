"""The network between the clients of a story and the doors of its brokers: asyncio transports without sockets.

    network = ClientNetwork(loop, Random(seed))
    network.bind(host, port)                    in the context of a broker's process: its listener takes the address
    await network.connect(make, host, port)     a client's connection

Bytes arrive in order after a delay, in pieces that may end in the middle of a frame. Each end runs in the context of
its process, so that a paused process reads nothing and a killed one does nothing more.

    close       the other end reads what was sent before, then the end of the input (FIN)
    write_eof   the same, but this end reads on
    abort       the other end is reset (RST), and may lose what was on the way
    a process is killed     its connections are closed or reset
    a machine loses power   its clients hear nothing, until the machine is on again and resets the connections
"""

import asyncio
from collections import deque
from collections.abc import Callable
from contextvars import Context, copy_context
from random import Random
from typing import Any, Protocol, TypeVar

from simulation.virtual_loop import VirtualLoop

_LONGEST_HOP_S = 0.005
_CUT_SHARE = 0.15
"""The share of writes that arrive in two pieces."""
_HIGH_BYTES, _LOW_BYTES = 1 << 16, 1 << 14
_DIAL_LIMIT_S = 1.0
_AT_ONCE_S = 1e-6

ClientProtocol = TypeVar("ClientProtocol", bound=asyncio.Protocol)


class Disconnected(Exception):  # noqa: N818 - named for what it is
    """No reply came. The request may have been executed or not."""


class Tap(Protocol):
    """Watches one connection in the broker's process."""

    def arriving(self, count: int) -> None:
        """So many bytes are about to be passed to the broker."""

    def leaving(self, data: bytes) -> None:
        """The broker has just sent these bytes."""


class ClientNetwork:
    """See the module's docstring. chance: the source of all delays and cuts."""

    def __init__(self, loop: VirtualLoop, chance: Random) -> None:
        self.loop = loop
        self.chance = chance
        self._servers: dict[tuple[str, int], MemoryServer] = {}
        self._ends: dict[str, dict[MemoryTransport, None]] = {}
        """The brokers' open ends, by host."""
        self._silent: dict[str, list[MemoryTransport]] = {}
        """The clients' ends whose machine has no power, by its host."""

    def bind(self, host: str, port: int) -> "MemoryAddress":
        """Return an address for `VirtualLoop.create_server`. The machine is on: it resets connections of its past."""
        for end in self._silent.pop(host, ()):
            end.reset()
        return MemoryAddress(self, host, port)

    async def connect(self, make: Callable[[], ClientProtocol], host: str, port: int) -> ClientProtocol:
        """Connect a client. Raises Disconnected."""
        await asyncio.sleep(self.delay_s())
        server = self._servers.get((host, port))
        if server is None and host in self._silent:
            await asyncio.sleep(_DIAL_LIMIT_S)
            raise Disconnected(f"{host} does not answer")
        if server is None:
            await asyncio.sleep(self.delay_s())
            raise Disconnected(f"{host} refuses the connection")
        protocol = make()
        near = MemoryTransport(self, copy_context(), protocol, (host, port))
        far = MemoryTransport(self, server.context, None, ("client.example", 50_000))
        near.other, far.other = far, near
        self._ends.setdefault(host, {})[far] = None
        far.closed = lambda: self._ends[host].pop(far, None)
        protocol.connection_made(near)
        self.loop.call_soon(far.begin, server.make, context=server.context)
        await asyncio.sleep(self.delay_s())
        return protocol

    def leave(self, host: str, *, has_power: bool) -> None:
        """Note that the process that listens at a host dies. has_power: its machine goes on, and ends connections."""
        for address in [address for address in self._servers if address[0] == host]:
            del self._servers[address]
        ends = list(self._ends.pop(host, ()))
        if not has_power:
            self._silent[host] = [end.other for end in ends]
        for end in ends:
            end.vanish(is_noticed=has_power)

    def listen(self, server: "MemoryServer") -> None:
        self._servers[server.address] = server

    def unlisten(self, server: "MemoryServer") -> None:
        if self._servers.get(server.address) is server:
            del self._servers[server.address]

    def delay_s(self) -> float:
        return self.chance.uniform(0, _LONGEST_HOP_S)


class MemoryServer:
    """A listening address: what asyncio calls a server. make: returns the protocol of a new connection."""

    def __init__(self, network: ClientNetwork, address: tuple[str, int], make: Callable[[], Any]) -> None:
        self.address = address
        self.make = make
        self.context = copy_context()
        self._network = network
        network.listen(self)

    def close(self) -> None:
        self._network.unlisten(self)


class MemoryAddress:
    """A bound address without a listener so far."""

    def __init__(self, network: ClientNetwork, host: str, port: int) -> None:
        self._network = network
        self._address = (host, port)

    def listen(self, make: Callable[[], Any]) -> MemoryServer:
        return MemoryServer(self._network, self._address, make)


class _Mark:
    """Marks that arrive in place of bytes."""


_EOF, _RESET = _Mark(), _Mark()


class MemoryTransport(asyncio.Transport):
    """One end of a connection. See the module's docstring. tap: of a broker's end."""

    def __init__(
        self, network: ClientNetwork, context: Context, protocol: asyncio.Protocol | None, peer: tuple[str, int]
    ) -> None:
        super().__init__({"peername": peer})
        self.other: MemoryTransport
        self.tap: Tap | None = None
        self.closed: Callable[[], object] = lambda: None
        self._network, self._loop = network, network.loop
        self._context = context
        self._protocol = protocol
        self._arriving: deque[tuple[float, bytes | _Mark]] = deque()
        self._arriving_bytes = 0
        self._arrival: asyncio.TimerHandle | None = None
        self._last_arrival_s = 0.0
        self._is_reading = True
        self._is_closing = self._has_sent_eof = self._is_gone = self._is_silent = False
        self._is_held_back = False

    def begin(self, make: Callable[[], asyncio.Protocol]) -> None:
        """Give a broker's end its protocol. Runs in the broker's process."""
        self._protocol = make()
        self._protocol.connection_made(self)
        self._arrive_later()

    def is_closing(self) -> bool:
        return self._is_closing

    def write(self, data: Any) -> None:
        if self._is_closing or self._is_gone or self._has_sent_eof or not data:
            return
        content = bytes(data)
        if self.tap is not None:
            self.tap.leaving(content)
        self.other._send(content)
        if self.other._arriving_bytes > _HIGH_BYTES and not self._is_held_back:
            self._is_held_back = True
            assert self._protocol is not None
            self._protocol.pause_writing()

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        if not (self._has_sent_eof or self._is_closing or self._is_gone):
            self._has_sent_eof = True
            self.other._put(_EOF)

    def pause_reading(self) -> None:
        self._is_reading = False

    def resume_reading(self) -> None:
        self._is_reading = True
        self._arrive_later()

    def close(self) -> None:
        """Close once the other end has read everything."""
        if not (self._is_closing or self._is_gone):
            self.write_eof()
            self._is_closing = True
            if self.other._is_gone:
                self._loop.call_soon(self._end, None, context=self._context)

    def abort(self) -> None:
        if not self._is_gone:
            self._is_closing = True
            self.other._lose_some()
            self.other._put(_RESET)
            self._loop.call_soon(self._end, None, context=self._context)

    def reset(self) -> None:
        """Let this end hear that the other one does not know the connection."""
        self._put(_RESET)

    def vanish(self, *, is_noticed: bool) -> None:
        """End with the process. is_noticed: the kernel tells the other end, perhaps without the last bytes."""
        self._is_gone, self._is_silent = True, not is_noticed
        self._arriving.clear()
        if is_noticed:
            self.other._lose_some()
            self.other._put(_EOF if self._network.chance.random() < 0.5 else _RESET)

    def _send(self, content: bytes) -> None:
        """Let bytes travel to this end."""
        chance, position = self._network.chance, 0
        if len(content) > 1 and chance.random() < _CUT_SHARE:
            position = chance.randrange(1, len(content))
            self._put(content[:position])
        self._put(content[position:])

    def _put(self, item: bytes | _Mark) -> None:
        if self._is_gone:
            if not (isinstance(item, _Mark) or self._is_silent):
                self._loop.call_soon(self.other.reset, context=self.other._context)
            return
        self._last_arrival_s = max(self._last_arrival_s, self._loop.time() + self._network.delay_s())
        self._arriving.append((self._last_arrival_s, item))
        self._arriving_bytes += 0 if isinstance(item, _Mark) else len(item)
        self._arrive_later()

    def _lose_some(self) -> None:
        """Lose what is on the way to this end, by chance."""
        if self._network.chance.random() < 0.5:
            self._arriving.clear()
            self._arriving_bytes = 0

    def _arrive_later(self) -> None:
        is_waiting = self._arriving and not self._is_gone and (self._is_reading or self._arriving[0][1] is _RESET)
        if is_waiting and self._arrival is None and self._protocol is not None:
            when_s = max(self._loop.time(), self._arriving[0][0])
            self._arrival = self._loop.call_at(when_s, self._arrive, context=self._context)

    def _arrive(self) -> None:
        """Deliver what is due. Runs in the process of this end."""
        self._arrival = None
        pieces: list[bytes] = []
        until_s = self._loop.time() + _AT_ONCE_S
        while self._arriving and self._arriving[0][0] <= until_s and not self._is_gone:
            if isinstance(self._arriving[0][1], bytes):
                if not self._is_reading:
                    break
                pieces.append(self._arriving.popleft()[1])  # type: ignore[arg-type]
                continue
            if pieces:
                self._receive(b"".join(pieces))
                pieces = []
                continue
            _, mark = self._arriving.popleft()
            self._end_input(is_reset=mark is _RESET)
        if pieces:
            self._receive(b"".join(pieces))
        self._arrive_later()

    def _receive(self, data: bytes) -> None:
        self._arriving_bytes -= len(data)
        if not (self._is_closing or self._is_gone):
            assert self._protocol is not None
            if self.tap is not None:
                self.tap.arriving(len(data))
            self._protocol.data_received(data)
        sender = self.other
        if sender._is_held_back and self._arriving_bytes < _LOW_BYTES:
            sender._is_held_back = False
            self._loop.call_soon(sender._go_on_writing, context=sender._context)

    def _go_on_writing(self) -> None:
        if not (self._is_gone or self._is_held_back) and self._protocol is not None:
            self._protocol.resume_writing()

    def _end_input(self, *, is_reset: bool) -> None:
        if is_reset:
            self._arriving.clear()
            return self._end(ConnectionResetError("connection reset by peer"))
        self._let_other_end()
        if not self._is_closing:
            assert self._protocol is not None
            if not self._protocol.eof_received():
                self.close()

    def _end(self, error: Exception | None) -> None:
        if self._is_gone or self._protocol is None:
            return
        self._is_closing = self._is_gone = True
        self._arriving.clear()
        self.closed()
        self._protocol.connection_lost(error)
        self._let_other_end()

    def _let_other_end(self) -> None:
        """End the other end, if it only waits until this one has read everything."""
        if self.other._is_closing and not self.other._is_gone:
            self._loop.call_soon(self.other._end, None, context=self.other._context)
