"""The doors of one broker process, which listen at addresses in memory."""

import asyncio
from functools import partial
from typing import Any, cast

from conveyor.broker.broker_node import BrokerNode
from conveyor.http_api.application import RestDoor, RestSite
from conveyor.http_api.requests.logins import Logins
from conveyor.http_api.requests.tokens import Tokens
from conveyor.kernel.access.caller import PLAINTEXT
from conveyor.server.addresses import Address
from conveyor.server.kafka_listener import KafkaListener
from conveyor.server.listeners import ListenerAddress, SecurityProtocol
from conveyor.server.network_probe import NetworkProbe
from simulation.doors.client_network import ClientNetwork

KAFKA_PORT, USERS_PORT, HTTP_PORT, HTTP_USERS_PORT = 9_092, 9_093, 8_080, 8_081
"""The clients of the second and the last one log in. They are not advertised."""

_LISTENERS = (
    ListenerAddress(PLAINTEXT, SecurityProtocol.PLAINTEXT, Address("", KAFKA_PORT)),
    ListenerAddress("USERS", SecurityProtocol.SASL_PLAINTEXT, Address("", USERS_PORT)),
)
_MAX_CONNECTIONS = 1_000
_HTTP_IDLE_S = 75.0
_DRAIN_S = 10.0


class UsersDoor(RestDoor):
    """The door of REST clients that log in by Basic, beside that of those that do not."""

    def __init__(self, broker: BrokerNode, network_probe: NetworkProbe) -> None:
        super().__init__(broker, network_probe, Tokens())
        self._logins = Logins(broker.clients, broker.clock)


class BrokerDoors:
    """See the module's docstring. An HTTP door is made for its first client, as in `HttpListener`."""

    def __init__(self, broker: BrokerNode, network: ClientNetwork, host: str) -> None:
        self._broker = broker
        self._network = network
        self._host = host
        self._probe = NetworkProbe()
        self._kafka = KafkaListener(broker, self._probe, _MAX_CONNECTIONS)
        self._sites: dict[int, RestSite] = {}
        """By their ports."""
        self._http_servers: list[Any] = []

    async def open(self) -> None:
        """Listen. The broker serves."""
        for listener in _LISTENERS:
            bound = self._network.bind(self._host, listener.address.port)
            await self._kafka.listen(cast("Any", bound), listener)
        for port in (HTTP_PORT, HTTP_USERS_PORT):
            self._http_servers.append(self._network.bind(self._host, port).listen(partial(self._accept, port)))

    async def close(self) -> None:
        """Answer all pending requests, and wait until clients have read the answers, as `Server` does."""
        self._broker.liveness.is_stopping = True
        self._kafka.stop_reading()
        for server in self._http_servers:
            server.close()
        sites = list(self._sites.values())
        for site in sites:
            await site.finish_requests(_DRAIN_S)
        await self._broker.finish_requests()
        await asyncio.gather(self._kafka.drain(_DRAIN_S), *(site.drain(_DRAIN_S) for site in sites))
        for site in sites:
            await site.close()

    def _accept(self, port: int) -> asyncio.Protocol:
        if port not in self._sites:
            has_users = port == HTTP_USERS_PORT
            door = UsersDoor(self._broker, self._probe) if has_users else RestDoor(self._broker, self._probe, Tokens())
            self._sites[port] = RestSite(door, _HTTP_IDLE_S)
        return self._sites[port].connection()
