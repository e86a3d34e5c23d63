"""A client, without a socket, of a listener with SASL."""

import asyncio
from typing import Any

from conveyor.broker.broker_node import BrokerNode
from conveyor.kafka_api.authentication import Authentication
from conveyor.kernel.access.caller import Principal
from conveyor.settings.sasl_settings import MECHANISMS
from tests.unit.kafka_api.client import MemoryClient

HANDSHAKE, AUTHENTICATE = 17, 36


class LoginClient(MemoryClient):
    """See the module's docstring. users: as whom it has logged in. refused: set once it is to be disconnected."""

    def __init__(self, broker: BrokerNode, mechanisms: tuple[str, ...] = MECHANISMS) -> None:
        super().__init__(broker)
        self.users: list[str] = []
        self.refused = asyncio.Event()
        Authentication(broker, self.connection, mechanisms, self._logged_in, self.refused.set)

    def _logged_in(self, principal: Principal) -> None:
        self.users.append(str(principal))
        self.connection.authenticated(principal)

    async def handshake(self, mechanism: str) -> Any:
        return await self.ask(HANDSHAKE, 1, mechanism=mechanism)

    async def authenticate(self, message: bytes, version: int = 2) -> Any:
        return await self.ask(AUTHENTICATE, version, auth_bytes=message)
