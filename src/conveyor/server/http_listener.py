"""The HTTP listener. Its socket listens from the start; the first connection loads the HTTP door.

Loading the door takes time and memory, which brokers without HTTP clients, such as one inside a test, never pay. A
thread loads the door, so that Kafka clients are served meanwhile. The first HTTP client waits.

Strangers do not keep clients out: where clients have to prove who they are, the oldest connection of one that has not
makes room for a new one. Operators' probes are always answered. A connection beyond `network.max_http_connections`, or
to a stopping broker, is served by an application that has only `/healthz`, `/readyz` and `/metrics` and answers other
requests with 503. The number of such connections is small: a new one replaces the oldest, and one that sends no request
for a second is closed. Other connections are closed if they send no complete request header for `_IDLE_S` seconds.
"""

import asyncio
import socket
from typing import TYPE_CHECKING, Any

from conveyor.broker.broker_node import BrokerNode
from conveyor.http_api.requests.tokens import Tokens
from conveyor.server.network_probe import NetworkProbe

if TYPE_CHECKING:  # The door is loaded late, see the docstring; TLS, if the settings want it.
    from conveyor.adapters.tls.tls_acceptor import TlsAcceptor
    from conveyor.http_api.application import RestSite

OPERATIONS_CONNECTIONS = 64
"""Connections beyond the limit that may use the operators' endpoints."""

_BACKLOG = 1024
_IDLE_S = 75
"""Longer than load balancers keep idle connections, so that load balancers close them before the broker does."""
_OPERATIONS_IDLE_S = 1


class HttpListener:
    def __init__(
        self, broker: BrokerNode, probe: NetworkProbe, bound: socket.socket, max_connections: int, tokens: Tokens
    ) -> None:
        self._broker = broker
        self._probe = probe
        self._socket = bound
        self._max_connections = max_connections
        self._tokens = tokens
        self._loop = asyncio.get_running_loop()
        self._clients: RestSite | None = None
        self._operators: RestSite | None = None
        self._server: asyncio.Server | None = None

    def start(self, tls: "TlsAcceptor | None") -> None:
        """Start waiting for the first connection, which loads the HTTP door. tls: if clients connect by it."""
        self._tls = tls
        self._loop.add_reader(self._socket.fileno(), self._first_connection)

    async def finish_requests(self, seconds: float) -> None:
        """Accept only operators' requests, answer waiting requests at once and finish the others, within this time."""
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
        application = await self._loop.run_in_executor(None, _load)
        door = application.RestDoor(self._broker, self._probe, self._tokens)
        operations_door = application.OperationsDoor(self._broker, self._probe, self._tokens, self._max_connections)
        self._clients = application.RestSite(door, _IDLE_S)
        self._operators = application.RestSite(operations_door, _OPERATIONS_IDLE_S)
        self._server = await self._loop.create_server(self._accept, sock=self._socket, backlog=_BACKLOG)

    def _accept(self) -> asyncio.Protocol:
        assert self._clients is not None
        assert self._operators is not None
        if not self._broker.liveness.is_stopping and self._clients.admits(self._max_connections):
            connection = self._clients.connection()
        else:
            self._operators.make_room(OPERATIONS_CONNECTIONS)
            connection = self._operators.connection()
        return connection if self._tls is None else self._tls.accept(connection, connection.authenticated)


def _load() -> Any:
    from conveyor.http_api import application

    return application
