"""Notices the death of another broker's process before its session ends: some tenths of a second after a kill.

    linked with an incarnation -> the link ends -> two dials in a row are refused -> the incarnation is declared dead

Its machine refuses a connection if no process listens on the port. A machine that does not answer proves nothing, and
neither does an incarnation that this broker has never reached: its address may be wrong.
"""

import logging

import msgspec

from conveyor.broker.cluster_links import ClusterLinks, Dialed
from conveyor.broker.services import Services
from conveyor.kernel.errors import StorageFailure
from conveyor.kernel.ids import NodeId
from conveyor.kernel.peers import PeerIdentity

log = logging.getLogger(__name__)

_ENOUGH_REFUSALS = 2


class _Reached(msgspec.Struct):
    """The last incarnation of a broker that was reached, and how many dials were refused since."""

    identity: PeerIdentity
    refusals_count: int = 0


class DeadPeerDetector:
    def __init__(self, services: Services, links: ClusterLinks) -> None:
        self._session = services.metadata.session
        self._tasks = services.tasks
        self._reached: dict[NodeId, _Reached] = {}
        links.dialed.listen(self._dialed)

    def _dialed(self, dialed: Dialed) -> None:
        identity, failure = dialed
        if failure is None:
            self._reached[identity.node_id] = _Reached(identity)
            return
        reached = self._reached.get(identity.node_id)
        if reached is None or reached.identity != identity:
            return
        reached.refusals_count = reached.refusals_count + 1 if failure.is_gone else 0
        if reached.refusals_count == _ENOUGH_REFUSALS:
            self._tasks.start(self._declare(identity))

    async def _declare(self, identity: PeerIdentity) -> None:
        log.info("broker declared dead node=%d incarnation=%s", identity.node_id, identity.incarnation)
        try:
            await self._session.declare_dead(identity)
        except StorageFailure as failure:  # The session of the dead broker ends without it.
            log.info("death not recorded node=%d reason=%s", identity.node_id, failure)
