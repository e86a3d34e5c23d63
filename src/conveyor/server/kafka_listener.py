"""The Kafka listener: the sockets of clients, and the limits on each client's memory and time.

- The broker reads no requests from a client that does not read its responses. It reads file slices from disk only when
  the socket accepts them (`SocketOutput`). Large responses in memory count until the socket has accepted them. If one
  more waits when they exceed the limit (`ResponseBudget`), the connection where they have waited longest is closed.
- If a read of stored records fails, the listener reports the failure to the partition and closes the connection,
  because the response has begun.
- Clients that send much are read in portions, so that other clients are served in between.
- The broker reads nothing from a client that exceeded its quota until the throttle time has passed.
- A large request waits for its share of the request budget (`RequestBudget`) before the rest of it is read. Small
  requests are only counted. If they exceed the limit, the connection with the most bytes is closed. Requests that go on
  after their connection are counted apart, because to close others would not end them.
- Strangers, who have to log in or to end a handshake of TLS and have not done so, never take the place of others: above
  `network.max_connections` the oldest stranger is closed, and strangers are the first to be closed for their bytes.
- A connection is closed if it finishes no request for `network.max_idle_ms`, or if a request is incomplete
  `network.max_receive_ms` after it began.
- A broker that is cut off from its cluster closes all connections, also new ones (`Isolation`).
- A stopping broker reads no more requests, and closes each connection when its client has read its responses.
"""

import asyncio
import logging
import socket
from collections.abc import Sequence
from functools import partial
from heapq import nlargest
from typing import TYPE_CHECKING, cast

from conveyor.adapters.socket_output import SocketOutput
from conveyor.broker.broker_node import BrokerNode
from conveyor.broker.clients.connection_counts import ConnectionOwner
from conveyor.kafka_api.authentication import Authentication
from conveyor.kafka_api.registry import handlers
from conveyor.kafka_api.wire.call import Part
from conveyor.kafka_api.wire.connection import KafkaConnection
from conveyor.kernel.access.caller import ANONYMOUS, Caller, Principal, client_address
from conveyor.kernel.access.refusal_log import RefusalLog
from conveyor.kernel.errors import ProtocolViolation, StorageFailure
from conveyor.kernel.response_budget import SMALL_BYTES, ResponseBudget
from conveyor.server.listeners import ListenerAddress
from conveyor.server.network_probe import NetworkProbe

if TYPE_CHECKING:  # Loaded only if the settings want it.
    from conveyor.adapters.tls.tls_acceptor import TlsAcceptor

log = logging.getLogger(__name__)

_BACKLOG = 1024
_BULK_BYTES = 1 << 16
"""Only clients that send much send chunks of this size."""

AUTHENTICATION_S = 30

_STRANGERS_AT_ONCE = 16
"""The largest strangers may be closed together, to make room for one client."""

_TURN_BYTES = 1 << 20
"""Bytes read from one client per tick of the loop. libuv alone would read up to 8 MB before it serves the next."""


class KafkaListener:
    """All connections of Kafka clients, on one listener or several."""

    def __init__(self, broker: BrokerNode, probe: NetworkProbe, max_connections: int) -> None:
        self.broker = broker
        self.max_connections = max_connections
        self.probe = probe
        self.connections: dict[_ClientProtocol, None] = {}
        """A set whose order does not depend on addresses in memory."""
        self.strangers: dict[_ClientProtocol, None] = {}
        """Those of the connections whose clients are not known yet, the oldest first."""
        self.unread: dict[_ClientProtocol, None] = {}
        """The connections with large responses that their clients have not read, those with the oldest first."""
        self.stranger_refusals = RefusalLog()
        self.response_budget = ResponseBudget(broker.settings.network.max_buffered_bytes)
        self._open_sockets = 0
        self._all_closed = asyncio.Event()
        self._all_closed.set()
        self._servers: list[asyncio.Server] = []
        self._sweep: asyncio.TimerHandle | None = None
        broker.liveness.isolation.cut_off.listen(self._send_away)
        broker.clients.credentials.changed.listen(self._log_out)

    async def listen(self, bound: socket.socket, listener: ListenerAddress, tls: "TlsAcceptor | None" = None) -> None:
        """Accept connections on the socket of a listener. tls: if clients connect by it."""

        def accept() -> asyncio.Protocol:
            client = _ClientProtocol(self, listener)
            return client if tls is None else tls.accept(client, client.has_certificate)

        loop = asyncio.get_running_loop()
        self._servers.append(await loop.create_server(accept, sock=bound, backlog=_BACKLOG))
        if self._sweep is None:
            self._sweep_later()

    def stop_reading(self) -> None:
        """Accept no more connections, and no more requests on open ones."""
        for server in self._servers:
            server.close()
        if self._sweep is not None:
            self._sweep.cancel()
        for connection in self.connections:
            connection.stop_reading()

    async def drain(self, seconds: float) -> None:
        """Close each connection once its client has read its responses, or after this time."""
        for connection in list(self.connections):
            connection.finish()
        try:
            async with asyncio.timeout(seconds):
                await self._all_closed.wait()
        except TimeoutError:
            for connection in list(self.connections):
                connection.close(
                    "the broker stops, and the client does not read its responses (network.drain_timeout_ms)"
                )

    def opened(self, connection: "_ClientProtocol") -> None:
        self.connections[connection] = None
        self.probe.connections_opened += 1
        self._open_sockets += 1
        self._all_closed.clear()

    def make_room(self, newest: "_ClientProtocol") -> None:
        """Above the limit, close the connection of the oldest stranger, or the newest one if there is no stranger."""
        if len(self.connections) > self.max_connections:
            refused = next(iter(self.strangers), newest)
            refused.close(f"more than {self.max_connections} connections (network.max_connections)")

    def closed(self) -> None:
        """Note that the socket of a connection is closed. The connection may have ended before."""
        self._open_sockets -= 1
        if not self._open_sockets:
            self._all_closed.set()

    def count(self, connection: "_ClientProtocol", change: int) -> None:
        """Count bytes of small requests. If they exceed the limit, close the strangers with the most bytes, and if that
        is not enough, the connection with the most.
        """
        budget = self.broker.clients.request_budget
        budget.count(change)
        if change > 0 and budget.is_over_limit:
            for stranger in nlargest(_STRANGERS_AT_ONCE, self.strangers, key=_counted):
                self._close_if_over_limit(stranger)
            self._close_if_over_limit(max(self.connections, key=_counted, default=connection))

    def _close_if_over_limit(self, largest: "_ClientProtocol") -> None:
        budget = self.broker.clients.request_budget
        if budget.is_over_limit and largest.counted_bytes:
            largest.close(
                f"small requests take {budget.small_bytes} bytes (network.max_buffered_bytes), of which"
                f" {largest.counted_bytes} on this connection"
            )

    def count_unread(self, connection: "_ClientProtocol", unread_bytes: int) -> None:
        """Note the bytes of large responses that a client has not read. If there is no room for more of them, close the
        connection where they have waited longest, as a client that reads has waited for a short time only; a response
        that alone exceeds the limit has room.
        """
        budget = self.response_budget
        if unread_bytes > connection.unread_bytes and budget.is_full:
            oldest = next(iter(self.unread))
            oldest.close(
                f"unread responses take {budget.used_bytes} bytes (network.max_buffered_bytes), of which"
                f" {oldest.unread_bytes} on this connection"
            )
            if oldest is connection:
                return
        if unread_bytes:
            self.unread.setdefault(connection)
        else:
            self.unread.pop(connection, None)
        budget.used_bytes += unread_bytes - connection.unread_bytes
        connection.unread_bytes = unread_bytes

    def _send_away(self, _: None) -> None:
        """Close all connections, so that the clients use other brokers."""
        log.warning("clients sent away connections=%d", len(self.connections))
        for connection in list(self.connections):
            connection.send_away()

    def _log_out(self, users: frozenset[str]) -> None:
        """Close the connections of users who are gone, or have another password."""
        for connection in [connection for connection in self.connections if connection.user in users]:
            connection.close("the credential of the user has changed", level=logging.INFO)

    def _sweep_later(self) -> None:
        network = self.broker.settings.network
        seconds = max(0.05, min(10.0, network.max_idle_ms / 4000, network.max_receive_ms / 4000))
        self._sweep = asyncio.get_running_loop().call_later(seconds, self._close_slow)

    def _close_slow(self) -> None:
        network = self.broker.settings.network
        now = asyncio.get_running_loop().time()
        for connection in list(self.connections):
            connection.close_if_nobody(now - AUTHENTICATION_S)
            connection.close_if_idle(now - network.max_idle_ms / 1000)
            connection.close_if_incomplete(now, network.max_receive_ms)
        self._sweep_later()


class _ClientProtocol(asyncio.Protocol):
    """One socket: feeds a `KafkaConnection` and writes its responses."""

    def __init__(self, listener: KafkaListener, address: ListenerAddress) -> None:
        self._listener = listener
        self._address = address
        self.user: str | None = None
        """Of a client that has logged in by SASL."""
        self._counted: list[tuple[ConnectionOwner, str]] = []
        self._loop = asyncio.get_running_loop()
        self._turn_bytes = 0
        self._reading = True
        self._ended = self._stopping = self._finishing = False
        self._finished_requests = self._received_requests = 0
        self._opened = self._last_progress = self._receiving_since = self._loop.time()
        self.counted_bytes = self.unread_bytes = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        peer = transport.get_extra_info("peername") or ("?", 0)
        self._peer = f"{peer[0]}:{peer[1]}"
        self._output = SocketOutput(self._transport, self._listener.probe, self._fail_read, self._unblock)
        failed = partial(self.close, level=logging.INFO)
        broker = self._listener.broker
        number = next(broker.clients.connection_numbers)
        caller = Caller(ANONYMOUS, client_address(str(peer[0])), self._address.name, number)
        self._connection = KafkaConnection(broker, handlers(broker), caller, self._send, self._go_on, failed)
        if self._address.protocol.has_users:
            mechanisms = tuple(broker.settings.network.sasl_mechanisms.split(","))
            Authentication(broker, self._connection, mechanisms, self._logged_in, self.finish)
        _tune(transport.get_extra_info("socket"))
        self._listener.opened(self)
        if self._address.protocol.has_users or self._address.protocol.is_encrypted:
            self._listener.strangers[self] = None
        crowd = self._count_as(ConnectionOwner.ADDRESS, caller.address)
        if broker.liveness.isolation.reason is not None:
            self.send_away()
        elif crowd is not None:
            self.close(crowd)
        elif not broker.clients.quotas.admits_connection(caller.address):
            self.close(f"more connections a second from {caller.address} than its quota (connection_creation_rate)")
        else:
            self._listener.make_room(self)

    def has_certificate(self, principal: Principal) -> None:
        """Note whom the client's certificate names. Where clients log in, only that counts."""
        if not self._address.protocol.has_users:
            self._become(principal)

    def _logged_in(self, principal: Principal) -> None:
        self.user = principal.name
        self._become(principal)

    def _become(self, principal: Principal) -> None:
        self._listener.strangers.pop(self, None)
        self._connection.authenticated(principal)
        is_counted = (ConnectionOwner.USER, principal.name) in self._counted  # By an earlier login.
        crowd = None if is_counted or principal == ANONYMOUS else self._count_as(ConnectionOwner.USER, principal.name)
        if crowd is not None:
            self._loop.call_soon(self.close, crowd)  # The login that goes on has to end first.

    def _count_as(self, owner: ConnectionOwner, name: str) -> str | None:
        """Count the connection until its end. Returns why it has to be closed."""
        self._counted.append((owner, name))
        return self._listener.broker.clients.connection_counts.enter(owner, name)

    def data_received(self, data: bytes) -> None:
        self._listener.probe.received_bytes += len(data)
        if len(data) >= _BULK_BYTES:
            self._count_bulk(len(data))
        try:
            self._connection.receive(data)
            self._account()
        except ProtocolViolation as violation:
            return self.close(str(violation))
        self._balance()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._ended:
            if not self._finishing:
                log.debug("connection closed peer=%s by=client", self._peer)
            self._end()
        self._listener.closed()

    def pause_writing(self) -> None:
        self._output.is_writable = False

    def resume_writing(self) -> None:
        self._output.is_writable = True
        self._write_more()
        self._balance()

    def close(self, reason: str, level: int = logging.WARNING) -> None:
        """Close the connection at once, and log the reason, of strangers once a minute: they must not fill the log."""
        if not self._ended:
            if self in self._listener.strangers and level > logging.DEBUG:
                level = min(level, self._listener.stranger_refusals.level(self._loop.time()))
            log.log(level, "connection closed peer=%s reason=%s", self._peer, reason)
            self._listener.probe.connections_refused += 1
            self._end()
            self._transport.abort()

    def send_away(self) -> None:
        """Close the connection at once, because this broker is cut off from its cluster."""
        self.close(self._listener.broker.liveness.isolation.reason or "this broker was cut off", level=logging.DEBUG)

    def stop_reading(self) -> None:
        self._stopping = True
        self._balance()

    def finish(self) -> None:
        """Close the connection once its output is sent."""
        self._finishing = True
        self._write_more()

    def close_if_nobody(self, oldest: float) -> None:
        """Close the connection of a client that has taken too long to log in."""
        if self._address.protocol.has_users and self.user is None and self._opened < oldest:
            self.close(f"not authenticated after {AUTHENTICATION_S} s", level=logging.INFO)

    def close_if_idle(self, oldest: float) -> None:
        finished = self._connection.finished_requests
        if finished != self._finished_requests or not self._connection.is_idle:
            self._finished_requests = finished
            self._last_progress = self._loop.time()
        elif self._last_progress < oldest:
            idle_ms = self._listener.broker.settings.network.max_idle_ms
            self.close(f"no finished request for {idle_ms} ms (network.max_idle_ms)")

    def close_if_incomplete(self, now: float, max_receive_ms: int) -> None:
        """Close the connection if a request takes too long to arrive. Waits for a share or a quota do not count."""
        connection = self._connection
        received = connection.received_requests
        is_held_back = not connection.is_granted or connection.is_muted
        if received != self._received_requests or not connection.is_receiving or is_held_back:
            self._received_requests = received
            self._receiving_since = now
        elif self._receiving_since < now - max_receive_ms / 1000:
            self.close(f"a request is incomplete after {max_receive_ms} ms (network.max_receive_ms)")

    def _end(self) -> None:
        self._ended = True
        self._output.end()
        self._connection.end()
        for owner, name in self._counted:
            self._listener.broker.clients.connection_counts.leave(owner, name)
        self._listener.connections.pop(self, None)
        self._listener.strangers.pop(self, None)
        self._listener.count(self, -self.counted_bytes)
        self.counted_bytes = 0
        self._listener.count_unread(self, 0)
        self._account()

    def _count_bulk(self, size: int) -> None:
        if not self._turn_bytes:
            self._listener.broker.partitions.tick.add_output(self._begin_tick)
        self._turn_bytes += size

    def _begin_tick(self) -> None:
        self._turn_bytes = 0
        self._balance()

    def _account(self) -> None:
        """Ask for a share for a large request, and count the small ones. Raises ProtocolViolation."""
        connection, budget = self._connection, self._listener.broker.clients.request_budget
        unshared_bytes = connection.unshared_bytes
        if unshared_bytes:
            connection.shares.append(budget.ask(unshared_bytes, self._granted))
        change = connection.buffered_bytes - self.counted_bytes
        if change:
            self.counted_bytes += change
            if self._ended:
                budget.count_lasting(change)
            else:
                self._listener.count(self, change)

    def _granted(self) -> None:
        self._receiving_since = self._loop.time()
        self._loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        """Resume: a large request has its share, which includes the bytes received before, or something has changed."""
        self._account()
        self._balance()

    def _send(self, parts: list[Part]) -> None:
        self._account()
        if self._ended:
            return
        self._write_more(parts)
        if not self._reading or self._connection.has_waiting:
            self._balance()

    def _write_more(self, parts: Sequence[Part] = ()) -> None:
        self._output.write(parts)
        unread_bytes = self._output.unread_bytes if self._output.unread_bytes > SMALL_BYTES else 0
        if unread_bytes != self.unread_bytes and not self._ended:
            self._listener.count_unread(self, unread_bytes)
        if self._finishing and self._output.is_empty and not self._ended:
            self._transport.close()

    def _fail_read(self, failure: StorageFailure) -> None:
        log.error("read failed peer=%s reason=%s", self._peer, failure)
        self.close("stored records could not be read")

    def _unblock(self) -> None:
        """Continue after parts of a response have waited for the disk."""
        self._write_more()
        self._balance()

    def _balance(self) -> None:
        """Read from the client only while it reads its responses, has few pending, and is within its quota."""
        if self._ended:
            return
        try:
            if self._takes_requests():
                self._connection.resume()
        except ProtocolViolation as violation:
            return self.close(str(violation))
        wanted = self._takes_requests() and self._connection.is_granted and not self._connection.is_full
        if wanted != self._reading and not self._ended:
            self._reading = wanted
            if wanted:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def _takes_requests(self) -> bool:
        """Return whether to start received requests. They may hold shares already, so they do not wait for one."""
        output = self._output
        if self._stopping or not output.is_writable or output.waits_for_disk or self._turn_bytes >= _TURN_BYTES:
            return False
        return not self._connection.is_muted


def _counted(connection: _ClientProtocol) -> int:
    return connection.counted_bytes


def _tune(connection: socket.socket | None) -> None:
    if connection is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
