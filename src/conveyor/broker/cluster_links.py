"""The links between this broker and the others of its cluster: their addresses, their secret, and who serves them."""

from collections.abc import Callable

from conveyor.broker.metadata.cluster_secret import cluster_secret
from conveyor.broker.replicas.lost_leaders import LostLeaders
from conveyor.broker.services import Services
from conveyor.kernel.ids import NewId, NodeId
from conveyor.kernel.peers import (
    PeerAddress,
    PeerCredentials,
    PeerEnd,
    PeerIdentity,
    PeerLink,
    PeerNetwork,
    PeerService,
)
from conveyor.kernel.ports import MetadataStore

Serve = Callable[[PeerLink], PeerEnd]


class ClusterLinks:
    """See the module's docstring. network: None for a broker that is alone. host, port: of this broker; empty and 0 if
    it is alone.
    """

    def __init__(self, services: Services, network: PeerNetwork | None) -> None:
        self._metadata = services.metadata
        self._node_id = services.me
        self.network = network
        self.lost_leaders = LostLeaders(services)
        self.host, self.port = ("", 0) if network is None else (network.host, network.port)

    def address(self, node_id: NodeId) -> PeerAddress | None:
        """Return where to dial a broker; None if the image has no address."""
        broker = self._metadata.image.brokers.get(node_id)
        if broker is None or not broker.peer_port:
            return None
        return PeerAddress(PeerIdentity(node_id, broker.incarnation), broker.peer_host, broker.peer_port)

    def serve(self, calls: Serve, replication: Serve) -> None:
        """Pass the links that other brokers open to these functions, by service."""
        if self.network is not None:
            self.network.accept(
                lambda link, service: calls(link) if service is PeerService.CALLS else replication(link)
            )

    async def open(self, store: MetadataStore, new_id: NewId) -> None:
        """Let links open from now on: other brokers may dial this one as soon as it has registered."""
        if self.network is not None:
            secret = await cluster_secret(store, new_id)
            self.network.open(PeerCredentials(self._metadata.image.cluster_id, secret, self._identity))

    def _identity(self) -> PeerIdentity:
        return PeerIdentity(self._node_id, self._metadata.session.incarnation)
