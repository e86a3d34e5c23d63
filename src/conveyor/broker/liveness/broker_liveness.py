"""The room of liveness, assembled."""

from conveyor.broker.broker_ports import BrokerPorts
from conveyor.broker.cluster_links import ClusterLinks
from conveyor.broker.liveness.dead_peer_detector import DeadPeerDetector
from conveyor.broker.liveness.isolation import Isolation
from conveyor.broker.liveness.lost_leaders import LostLeaders
from conveyor.broker.liveness.membership import Membership
from conveyor.broker.partitions.partitions import Partitions
from conveyor.broker.remote.leader_calls import LeaderCalls
from conveyor.broker.services import Services
from conveyor.cluster.image import BrokerImage


class BrokerLiveness:
    """See the module's docstring.

    is_stopping: set when the broker begins to stop; `/readyz` reports it.
    """

    def __init__(
        self, services: Services, partitions: Partitions, links: ClusterLinks, calls: LeaderCalls, ports: BrokerPorts
    ) -> None:
        self.is_stopping = False
        self.isolation = Isolation(services, calls)
        self.lost_leaders = LostLeaders(services, links)
        DeadPeerDetector(services, links)
        self._membership = Membership(services, partitions, ports)

    async def prepare(self) -> None:
        """See `Membership`."""
        await self._membership.prepare()

    async def join(self, broker: BrokerImage) -> None:
        """Join the cluster, see `Membership`, and watch from then on whether this broker is cut off."""
        await self._membership.join(broker)
        self.isolation.start()

    async def hand_over(self) -> None:
        """Let other brokers lead, see `Membership`. Clients are not sent away any more."""
        self.isolation.stop()
        await self._membership.hand_over()

    async def leave(self) -> None:
        """See `Membership`."""
        await self._membership.leave()
