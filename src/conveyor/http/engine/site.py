"""The sockets of one HTTP service: an asyncio protocol around each `HttpConnection`, their deadlines, and the stop."""

import asyncio
import logging
from collections.abc import Callable
from typing import cast

from msgspec.structs import replace

from conveyor.http.engine.exchange import Service
from conveyor.http.engine.http_connection import HttpConnection
from conveyor.http.engine.wire import ConnectionMachine
from conveyor.kernel.access.caller import ANONYMOUS, HTTP, Caller, Principal, client_address

log = logging.getLogger(__name__)

_MIN_SWEEP_S, _MAX_SWEEP_S = 0.05, 5.0


class Site:
    """The open connections of one service, oldest first."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._loop = asyncio.get_running_loop()
        self._connections: dict[HttpProtocol, None] = {}
        self._strangers: dict[HttpProtocol, None] = {}
        """Those of the connections whose clients have not proved who they are, the oldest first."""
        self._all_closed = asyncio.Event()
        self._all_closed.set()
        self._sweep: asyncio.TimerHandle | None = None

    @property
    def connection_count(self) -> int:
        return len(self._connections)

    def connection(self) -> "HttpProtocol":
        """Return the protocol for a newly accepted connection."""
        return HttpProtocol(self, self._service, self._loop)

    def make_room(self, limit: int) -> bool:
        """Close the oldest strangers until the number of connections is below the limit. Returns whether it is."""
        while len(self._connections) >= limit and self._strangers:
            oldest = next(iter(self._strangers))
            self.closed(oldest)
            oldest.abort()
        return len(self._connections) < limit

    async def finish_requests(self, seconds: float) -> None:
        """Accept no more requests, and wait for the received ones, at most this long."""
        service = self._service
        service.is_stopping = True
        for protocol in list(self._connections):
            protocol.http.finish()
        over = asyncio.Event()
        leave = service.quiet.listen(lambda _: over.set())
        try:
            async with asyncio.timeout(seconds):
                while service.in_progress:
                    over.clear()
                    await over.wait()
        except TimeoutError:
            return
        finally:
            leave()

    async def drain(self, seconds: float) -> None:
        """Wait until clients have read their responses, at most this long."""
        try:
            async with asyncio.timeout(seconds):
                await self._all_closed.wait()
        except TimeoutError:
            return

    async def close(self) -> None:
        """Close all connections at once, and end their requests."""
        for protocol in list(self._connections):
            protocol.abort()
        if self._sweep is not None:
            self._sweep.cancel()
        await self._service.application.close()

    def opened(self, protocol: "HttpProtocol") -> None:
        self._connections[protocol] = self._strangers[protocol] = None
        self._all_closed.clear()
        if self._sweep is None:
            self._sweep_later()
        self.entered(protocol)

    def closed(self, protocol: "HttpProtocol") -> None:
        if protocol in self._connections:
            del self._connections[protocol]
            self._strangers.pop(protocol, None)
            self.left(protocol)
        if not self._connections:
            self._all_closed.set()

    def known(self, protocol: "HttpProtocol") -> None:
        """Note that a client has proved who it is."""
        self._strangers.pop(protocol, None)

    def entered(self, protocol: "HttpProtocol") -> None:
        """A connection is open, until it has `left`."""

    def left(self, protocol: "HttpProtocol") -> None:
        """A connection that has `entered` is closed."""

    def _sweep_later(self) -> None:
        """End slow requests and idle connections. One timer serves all, so that no request sets one of its own."""
        shortest_s = min(self._service.idle_s, self._service.application.max_receive_ms / 1000)
        seconds = max(_MIN_SWEEP_S, min(_MAX_SWEEP_S, shortest_s / 4))
        self._sweep = self._loop.call_later(seconds, self._end_slow)

    def _end_slow(self) -> None:
        now = self._loop.time()
        for protocol in list(self._connections):
            protocol.http.advance(now)
        self._sweep = None
        if self._connections:
            self._sweep_later()


class HttpProtocol(asyncio.Protocol):
    """One socket. It is the wire of its `HttpConnection`."""

    def __init__(self, site: Site, service: Service, loop: asyncio.AbstractEventLoop) -> None:
        self._site = site
        self._service = service
        self._loop = loop
        self.time: Callable[[], float] = loop.time

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self.write: Callable[[bytes], None] = self._transport.write
        peer = transport.get_extra_info("peername") or ("?",)
        caller = Caller(ANONYMOUS, client_address(str(peer[0])), HTTP, next(self._service.connection_numbers))
        self.http: ConnectionMachine = HttpConnection(self._service, self, caller)
        self._site.opened(self)

    def authenticated(self, principal: Principal) -> None:
        """Note who the client is, before its first request."""
        self.http.caller = replace(self.http.caller, principal=principal)
        self.known()

    def known(self) -> None:
        self._site.known(self)

    def data_received(self, data: bytes) -> None:
        self.http.receive(data)

    def eof_received(self) -> bool:
        """Keep the transport open: the client may wait for responses."""
        self.http.end_of_input()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self.http.connection_lost()
        self._site.closed(self)
        del self.http  # It refers to this protocol.

    def pause_writing(self) -> None:
        self.http.pause_writing()

    def resume_writing(self) -> None:
        self.http.resume_writing()

    def later(self, work: Callable[[], None]) -> None:
        self._loop.call_soon(work)

    def set_reading(self, is_reading: bool) -> None:
        if is_reading:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def hand_over(self, machine: ConnectionMachine) -> None:
        self.http = machine

    def end(self) -> None:
        if self._transport.can_write_eof():  # By TLS nothing may follow, so the client goes by the response's length.
            self._transport.write_eof()

    def close(self) -> None:
        self._transport.close()

    def abort(self) -> None:
        self._transport.abort()
