"""The doors of one broker process, which listen at addresses in memory."""

import asyncio
from typing import Any, cast

from conveyor.broker.broker_node import BrokerNode
from conveyor.http_api.application import RestDoor, RestSite
from conveyor.http_api.requests.tokens import Tokens
from conveyor.kernel.access.caller import PLAINTEXT
from conveyor.server.addresses import Address
from conveyor.server.kafka_listener import KafkaListener
from conveyor.server.listeners import ListenerAddress, SecurityProtocol
from conveyor.server.network_probe import NetworkProbe
from simulation.doors.client_network import ClientNetwork

KAFKA_PORT, USERS_PORT, HTTP_PORT = 9_092, 9_093, 8_080
"""The clients of the second one log in. It is not advertised."""

_LISTENERS = (
    ListenerAddress(PLAINTEXT, SecurityProtocol.PLAINTEXT, Address("", KAFKA_PORT)),
    ListenerAddress("USERS", SecurityProtocol.SASL_PLAINTEXT, Address("", USERS_PORT)),
)
_MAX_CONNECTIONS = 1_000
_HTTP_IDLE_S = 75.0
_DRAIN_S = 10.0


class BrokerDoors:
    """See the module's docstring. The HTTP door is made for its first client, as in `HttpListener`."""

    def __init__(self, broker: BrokerNode, network: ClientNetwork, host: str) -> None:
        self._broker = broker
        self._network = network
        self._host = host
        self._probe = NetworkProbe()
        self._kafka = KafkaListener(broker, self._probe, _MAX_CONNECTIONS)
        self._rest: RestSite | None = None
        self._http_server: Any = None

    async def open(self) -> None:
        """Listen. The broker serves."""
        for listener in _LISTENERS:
            bound = self._network.bind(self._host, listener.address.port)
            await self._kafka.listen(cast("Any", bound), listener)
        self._http_server = self._network.bind(self._host, HTTP_PORT).listen(self._accept)

    async def close(self) -> None:
        """Answer all pending requests, and wait until clients have read the answers, as `Server` does."""
        self._broker.liveness.is_stopping = True
        self._kafka.stop_reading()
        self._http_server.close()
        if self._rest is not None:
            await self._rest.finish_requests(_DRAIN_S)
        await self._broker.finish_requests()
        drains = [self._kafka.drain(_DRAIN_S)] + ([] if self._rest is None else [self._rest.drain(_DRAIN_S)])
        await asyncio.gather(*drains)
        if self._rest is not None:
            await self._rest.close()

    def _accept(self) -> asyncio.Protocol:
        if self._rest is None:
            self._rest = RestSite(RestDoor(self._broker, self._probe, Tokens()), _HTTP_IDLE_S)
        return self._rest.connection()
