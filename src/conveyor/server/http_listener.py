"""The HTTP listener. Its socket listens from the start; the web framework is loaded when somebody first connects.

Loading it takes some hundreds of milliseconds and 20 MiB, which a broker inside a test, or one that nobody asks over
HTTP, need not pay. It is loaded on a thread, so that Kafka clients are served meanwhile; the first HTTP client waits.

A connection beyond `network.max_http_connections` is answered with 503. A request's line and each of its headers are
limited to 8 KiB, and a connection that sends no whole request header for a while is closed.
"""

import asyncio
import logging
import socket
from functools import partial
from typing import Any, cast

from conveyor.broker.broker import Broker
from conveyor.http_api.tokens import Tokens
from conveyor.server.probe import NetworkProbe

log = logging.getLogger(__name__)

_BACKLOG = 1024
_IDLE_S = 75
"""Longer than load balancers keep their own idle connections, so that it is they who close them."""
_LIMITS = {"max_line_size": 8190, "max_field_size": 8190, "max_headers": 128, "keepalive_timeout": _IDLE_S}
_REFUSAL_S = 1


class HttpListener:
    """See the module's docstring."""

    def __init__(
        self, broker: Broker, probe: NetworkProbe, bound: socket.socket, max_connections: int, tokens: Tokens
    ) -> None:
        self._broker = broker
        self._probe = probe
        self._socket = bound
        self._max_connections = max_connections
        self._tokens = tokens
        self._loop = asyncio.get_running_loop()
        self._runner: Any = None
        self._server: asyncio.Server | None = None

    def start(self) -> None:
        """Wait for the first connection."""
        self._loop.add_reader(self._socket.fileno(), self._first_connection)

    async def stop(self) -> None:
        self._loop.remove_reader(self._socket.fileno())
        if self._server is not None:
            self._server.close()
        if self._runner is not None:
            await self._runner.cleanup()

    def _first_connection(self) -> None:
        self._loop.remove_reader(self._socket.fileno())
        self._broker.tasks.start(self._serve())

    async def _serve(self) -> None:
        application, connection, request_log, web = await self._loop.run_in_executor(None, _load)
        made = application.make_application(self._broker, self._probe, self._tokens)
        self._runner = web.AppRunner(made, handler_cancellation=True)
        await self._runner.setup()
        self._connection = partial(
            connection.Connection,
            self._runner.server,
            loop=self._loop,
            access_log=None,
            logger=request_log.RequestLog(),
            auto_decompress=False,  # Who reads a body unpacks it, and tells what is wrong with it.
            **_LIMITS,
        )
        self._refusal = connection.refusal(self._max_connections)
        self._server = await self._loop.create_server(self._accept, sock=self._socket, backlog=_BACKLOG)

    def _accept(self) -> asyncio.Protocol:
        if len(self._runner.server.connections) < self._max_connections:
            return cast("asyncio.Protocol", self._connection())
        self._probe.connections_refused += 1
        return _Refusal(self._max_connections, self._refusal)


class _Refusal(asyncio.Protocol):
    """A connection too many: its first request is answered with 503, and it is closed."""

    def __init__(self, limit: int, answer: bytes) -> None:
        self._limit = limit
        self._answer = answer

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        peer = transport.get_extra_info("peername") or ("?", 0)
        reason = f"more than {self._limit} connections (network.max_http_connections)"
        log.warning("connection closed peer=%s:%s reason=%s", peer[0], peer[1], reason)
        self._timeout = asyncio.get_running_loop().call_later(_REFUSAL_S, self._transport.abort)

    def data_received(self, data: bytes) -> None:
        self._transport.write(self._answer)
        self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._timeout.cancel()


def _load() -> tuple[Any, Any, Any, Any]:
    from aiohttp import web

    from conveyor.http_api import application, connection, request_log

    return application, connection, request_log, web
