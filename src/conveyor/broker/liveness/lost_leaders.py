"""Leaders whose link just closed and that may be dead.

    link ended -> lost -> linked again, or the image shows that the registration has ended, or PATIENCE_MS have passed

A leader that was killed is replaced within a fraction of a second. Its clients notice the kill as soon as this broker
does and ask for the new leader at once. An answer that still shows the old one costs librdkafka a second, because it
asks again only then. Such questions wait until they can be answered.
"""

import asyncio

from conveyor.broker.cluster_links import ClusterLinks
from conveyor.broker.services import Services
from conveyor.cluster.image import ClusterImage
from conveyor.kernel.alarm import Alarm
from conveyor.kernel.ids import NodeId

PATIENCE_MS = 500


class LostLeaders:
    def __init__(self, services: Services, links: ClusterLinks) -> None:
        self._metadata = services.metadata
        self._lost: dict[NodeId, str] = {}
        """The incarnations, by broker."""
        self._none_is_lost = asyncio.Event()
        self._none_is_lost.set()
        self._alarm = Alarm(services.clock, self._give_up)
        services.metadata.listen(self._observe)
        links.leader_lost.listen(self._link_ended)
        links.leader_linked.listen(self._linked)

    def __bool__(self) -> bool:
        return bool(self._lost)

    async def settled(self) -> None:
        """Return when no leader is lost."""
        await self._none_is_lost.wait()

    def _link_ended(self, leader: NodeId) -> None:
        broker = self._metadata.image.brokers.get(leader)
        if broker is not None and not broker.is_fenced:
            self._lost[leader] = broker.incarnation
            self._none_is_lost.clear()
            self._alarm.after(PATIENCE_MS)

    def _linked(self, leader: NodeId) -> None:
        if self._lost.pop(leader, None) is not None:
            self._release()

    def _observe(self, old: ClusterImage, new: ClusterImage) -> None:
        if not self._lost or old.brokers is new.brokers:
            return
        for leader, incarnation in list(self._lost.items()):
            broker = new.brokers.get(leader)
            if broker is None or broker.is_fenced or broker.incarnation != incarnation:
                del self._lost[leader]
        self._release()

    def _give_up(self) -> None:
        self._lost.clear()
        self._release()

    def _release(self) -> None:
        if not self._lost:
            self._alarm.cancel()
            self._none_is_lost.set()
