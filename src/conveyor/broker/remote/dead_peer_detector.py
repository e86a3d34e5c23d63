"""Notices the death of another broker's process before its session ends: some tenths of a second after a kill.

    linked with an incarnation -> the link ends -> two dials in a row are refused -> the incarnation is declared dead

Its machine refuses a connection if no process listens on the port. A machine that does not answer proves nothing, and
neither does an incarnation that this broker has never reached: its address may be wrong.
"""

import logging
from collections.abc import Awaitable, Callable

import msgspec

from conveyor.broker.tasks import Tasks
from conveyor.kernel.errors import StorageFailure
from conveyor.kernel.ids import NodeId
from conveyor.kernel.peers import (
    Accept,
    PeerAddress,
    PeerCredentials,
    PeerEnd,
    PeerIdentity,
    PeerLink,
    PeerNetwork,
    PeerService,
    PeerUnreachable,
)

log = logging.getLogger(__name__)

_ENOUGH_REFUSALS = 2


class _Reached(msgspec.Struct):
    """The last incarnation of a broker that was reached, and how many dials were refused since."""

    identity: PeerIdentity
    refusals_count: int = 0


class DeadPeerDetector:
    """A network that also declares brokers dead; see the module's docstring, and `PeerNetwork`.

    declare_dead: see `BrokerSession.declare_dead`.
    """

    def __init__(
        self, network: PeerNetwork, declare_dead: Callable[[PeerIdentity], Awaitable[None]], tasks: Tasks
    ) -> None:
        self._network = network
        self._declare_dead = declare_dead
        self._tasks = tasks
        self._reached: dict[NodeId, _Reached] = {}

    @property
    def host(self) -> str:
        return self._network.host

    @property
    def port(self) -> int:
        return self._network.port

    def open(self, credentials: PeerCredentials) -> None:
        self._network.open(credentials)

    def accept(self, accept: Accept) -> None:
        self._network.accept(accept)

    async def dial(self, address: PeerAddress, service: PeerService, answer: Callable[[PeerLink], PeerEnd]) -> PeerLink:
        try:
            link = await self._network.dial(address, service, answer)
        except PeerUnreachable as failure:
            self._failed(address.identity, is_refused=failure.is_gone)
            raise
        self._reached[address.identity.node_id] = _Reached(address.identity)
        return link

    def _failed(self, identity: PeerIdentity, *, is_refused: bool) -> None:
        reached = self._reached.get(identity.node_id)
        if reached is None or reached.identity != identity:
            return
        reached.refusals_count = reached.refusals_count + 1 if is_refused else 0
        if reached.refusals_count == _ENOUGH_REFUSALS:
            self._tasks.start(self._declare(identity))

    async def _declare(self, identity: PeerIdentity) -> None:
        log.info("broker declared dead node=%d incarnation=%s", identity.node_id, identity.incarnation)
        try:
            await self._declare_dead(identity)
        except StorageFailure as failure:  # The session of the dead broker ends without it.
            log.info("death not recorded node=%d reason=%s", identity.node_id, failure)
