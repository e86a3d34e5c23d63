"""Sends messages to push targets by HTTP/1.1, on connections that it keeps for a while.

It takes no proxy and no other setting from the environment, and follows no redirect. A connection serves the requests
of one host and port, and of targets that may or may not have addresses that are not public. It is closed after
MAX_AGE_S, so that a changed address of a target counts. A request on a kept connection that the target closes without a
byte of an answer is made once more, on a new one.
"""

import asyncio
import ssl
from collections import OrderedDict
from typing import NamedTuple

from conveyor.adapters.push.target_addresses import LookUp, TargetAddresses, system_addresses
from conveyor.adapters.push.target_connection import TargetConnection, request_bytes
from conveyor.broker.queues.pushing.push_client import PushAnswer, PushFailed, PushRequest
from conveyor.settings.push_settings import PushSettings

IDLE_S, MAX_AGE_S = 30.0, 60.0
_REST_S = 1.0
"""The time that the rest of an answer may take before its connection is closed."""
_MAX_ATTEMPTS = 3
"""Addresses of a target that are tried for a request."""


class _Place(NamedTuple):
    host: str
    port: int
    is_encrypted: bool
    allows_private: bool


class _Kept(NamedTuple):
    connection: TargetConnection
    opened_s: float
    timer: asyncio.TimerHandle


class HttpPushClient:
    """A `PushClient`."""

    def __init__(self, settings: PushSettings, look_up: LookUp = system_addresses) -> None:
        self._max_connections = settings.max_connections
        self._ca_file = settings.ca_file
        self._addresses = TargetAddresses(look_up)
        self._context: asyncio.Future[ssl.SSLContext] | None = None
        self._kept: OrderedDict[TargetConnection, tuple[_Place, _Kept]] = OrderedDict()
        """Connections that wait for a request, the one that has waited longest first."""
        self._open_count = 0
        self._is_closed = False

    async def post(self, request: PushRequest) -> PushAnswer:
        url, content = request.url, request_bytes(request)
        place = _Place(url.host, url.port, url.is_encrypted, request.allows_private)
        self._open_count += 1
        try:
            kept = self._take(place)
            if kept is not None:
                try:
                    return await self._exchange(content, place, kept.connection, kept.opened_s)
                except PushFailed:
                    if kept.connection.has_received:
                        raise
            connection = await self._connect_in_time(request)
            return await self._exchange(content, place, connection, asyncio.get_running_loop().time())
        finally:
            self._open_count -= 1

    def close(self) -> None:
        self._is_closed = True
        while self._kept:
            self._drop(next(iter(self._kept)))
        self._addresses.close()

    async def _exchange(
        self, content: bytes, place: _Place, connection: TargetConnection, opened_s: float
    ) -> PushAnswer:
        """Make a request on a connection, and keep it if it can be used again."""
        try:
            answer = await connection.post(content)
        except BaseException:
            connection.close()
            raise
        try:
            await connection.complete(_REST_S)
        except asyncio.CancelledError:  # The answer counts: only the rest of it comes too late.
            connection.close()
            return answer
        self._keep(place, connection, opened_s)
        return answer

    async def _connect_in_time(self, request: PushRequest) -> TargetConnection:
        """Connect, after as many kept connections are closed as the limit demands. Raises PushFailed, also if the
        caller's time is over: the target has got nothing.
        """
        self._make_room_beside(self._open_count)
        try:
            return await self._connect(request)
        except asyncio.CancelledError:
            raise PushFailed("no connection to the target in time", is_sent=False) from None

    async def _connect(self, request: PushRequest) -> TargetConnection:
        """Connect to one of the target's addresses. Raises PushFailed."""
        url = request.url
        found = await self._addresses.of(url, allows_private=request.allows_private)
        context = await self._tls_context() if url.is_encrypted else None
        failure: Exception | None = None
        for address in found[:_MAX_ATTEMPTS]:
            try:
                _, connection = await asyncio.get_running_loop().create_connection(
                    TargetConnection,
                    address,
                    url.port,
                    ssl=context,
                    server_hostname=url.host if context is not None else None,
                )
            except (OSError, ssl.SSLError, ssl.CertificateError) as error:
                failure = error
            else:
                return connection
        raise PushFailed(_reason(failure), is_sent=False) from failure

    async def _tls_context(self) -> ssl.SSLContext:
        """Return the context that checks certificates and names, made by the first call, in a thread. Raises PushFailed
        if the file of authorities cannot be used.
        """
        if self._context is None:
            self._context = asyncio.ensure_future(
                asyncio.to_thread(ssl.create_default_context, cafile=self._ca_file or None)
            )
        try:
            return await asyncio.shield(self._context)
        except OSError as error:
            self._context = None
            raise PushFailed("push.ca_file of this broker cannot be used", is_sent=False) from error

    def _take(self, place: _Place) -> _Kept | None:
        """Return the kept connection that was used last, and keep it no longer."""
        for connection in reversed(self._kept):
            of_place, kept = self._kept[connection]
            if of_place == place and connection.is_reusable:
                del self._kept[connection]
                kept.timer.cancel()
                return kept
        return None

    def _keep(self, place: _Place, connection: TargetConnection, opened_s: float) -> None:
        loop = asyncio.get_running_loop()
        left_s = opened_s + MAX_AGE_S - loop.time()
        if self._is_closed or not connection.is_reusable or left_s <= 0:
            return connection.close()
        timer = loop.call_later(min(left_s, IDLE_S), self._drop, connection)
        self._kept[connection] = place, _Kept(connection, opened_s, timer)
        self._make_room_beside(self._open_count - 1)  # This one is counted still.

    def _make_room_beside(self, open_count: int) -> None:
        """Close kept connections that are too many beside those that are open."""
        while self._kept and len(self._kept) + open_count > self._max_connections:
            self._drop(next(iter(self._kept)))

    def _drop(self, connection: TargetConnection) -> None:
        _, kept = self._kept.pop(connection)
        kept.timer.cancel()
        connection.close()


def _reason(failure: Exception | None) -> str:
    """Return why there is no connection, in words that tell nothing about the broker's network."""
    if isinstance(failure, ssl.CertificateError):
        return f"the certificate of the target is not valid: {failure.verify_message}"
    if isinstance(failure, ssl.SSLError):
        return "the target does not speak TLS as this broker does"
    return "no connection to the target"
