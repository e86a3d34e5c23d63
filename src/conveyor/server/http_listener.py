"""The HTTP listener. Its socket listens from the start; the HTTP door is loaded at the first connection.

Loading the door and its web framework takes some hundreds of milliseconds and 20 MiB, which a broker without HTTP
clients, such as one inside a test, need not pay. It is loaded on a thread, so that Kafka clients are served meanwhile;
the first HTTP client waits.

Operators' probes are answered whatever the clients do: a connection beyond `network.max_http_connections`, or to a
broker that is stopping, is served by an application of `/healthz`, `/readyz` and `/metrics`, which answers every other
request with 503. The number of such connections is small: a new one replaces the oldest, and one that sends no request
for a second is closed. The request line and each header are limited to 8 KiB. Any other connection that sends no whole
request header for a while is closed, too.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from conveyor.broker.broker_node import BrokerNode
from conveyor.http_api.requests.tokens import Tokens
from conveyor.server.network_probe import NetworkProbe

if TYPE_CHECKING:  # The only part of the broker that is loaded late: see the docstring.
    from aiohttp import web

    from conveyor.http_api.engine.site import Site

OPERATIONS_CONNECTIONS = 64
"""The number of connections beyond the limit that may use the operators' endpoints."""

_BACKLOG = 1024
_IDLE_S = 75
"""Longer than load balancers keep idle connections, so that they close them, not the broker."""
_OPERATIONS_IDLE_S = 1


class HttpListener:
    """See the module's docstring."""

    def __init__(
        self, broker: BrokerNode, probe: NetworkProbe, bound: socket.socket, max_connections: int, tokens: Tokens
    ) -> None:
        self._broker = broker
        self._probe = probe
        self._socket = bound
        self._max_connections = max_connections
        self._tokens = tokens
        self._loop = asyncio.get_running_loop()
        self._clients: Site | None = None
        self._operators: Site | None = None
        self._server: asyncio.Server | None = None

    def start(self) -> None:
        """Wait for the first connection, which loads the HTTP door."""
        self._loop.add_reader(self._socket.fileno(), self._first_connection)

    async def finish_requests(self, seconds: float) -> None:
        """Take no more requests but operators', answer waiting requests, and finish the others, within this time."""
        self._loop.remove_reader(self._socket.fileno())
        if self._clients is not None:
            await self._clients.finish_requests(seconds)

    async def drain(self, seconds: float) -> None:
        """Wait until clients have read their responses, within this time."""
        if self._clients is not None:
            await self._clients.drain(seconds)

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for site in (self._clients, self._operators):
            if site is not None:
                await site.close()

    def _first_connection(self) -> None:
        self._loop.remove_reader(self._socket.fileno())
        self._broker.tasks.start(self._serve())

    async def _serve(self) -> None:
        make_site, application, operations = await self._loop.run_in_executor(None, _load)
        self._clients = await make_site(application(self._broker, self._probe, self._tokens), _IDLE_S)
        self._operators = await make_site(
            operations(self._broker, self._probe, self._max_connections, self._tokens), _OPERATIONS_IDLE_S
        )
        self._server = await self._loop.create_server(self._accept, sock=self._socket, backlog=_BACKLOG)

    def _accept(self) -> asyncio.Protocol:
        assert self._clients is not None
        assert self._operators is not None
        if not self._broker.is_stopping and self._clients.connection_count < self._max_connections:
            return self._clients.connection()
        self._operators.make_room(OPERATIONS_CONNECTIONS)
        return self._operators.connection()


def _load() -> "tuple[Callable[[web.Application, float], Awaitable[Site]], Any, Any]":
    from conveyor.http_api import application
    from conveyor.http_api.engine import site

    return site.make_site, application.make_application, application.make_operations_application
