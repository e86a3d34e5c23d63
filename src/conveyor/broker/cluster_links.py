"""The links between this broker and the others of its cluster: their addresses, their secret, and who serves them."""

from collections.abc import Callable
from typing import NamedTuple

from conveyor.broker.metadata.cluster_secret import SecretKeys, cluster_secret
from conveyor.broker.services import Services
from conveyor.kernel.errors import ProtocolViolation
from conveyor.kernel.ids import NodeId
from conveyor.kernel.peers import (
    PeerAddress,
    PeerCredentials,
    PeerEnd,
    PeerIdentity,
    PeerLink,
    PeerNetwork,
    PeerService,
    PeerUnreachable,
)
from conveyor.kernel.ports import MetadataStore
from conveyor.kernel.signal import Signal

MakeEnd = Callable[[PeerLink], PeerEnd]
"""Returns this broker's end of a new link."""


class Dialed(NamedTuple):
    """The end of a dial. failure: None if the link is open."""

    identity: PeerIdentity
    failure: PeerUnreachable | None


class ClusterLinks:
    """See the module's docstring.

    host, port: of this broker; empty and 0 if it is alone. dialed: emitted after each dial. leader_lost, leader_linked:
    the link to a leader of followed partitions has ended, or has opened.
    """

    def __init__(self, services: Services, network: PeerNetwork | None) -> None:
        self.dialed: Signal[Dialed] = Signal()
        self.leader_lost: Signal[NodeId] = Signal()
        self.leader_linked: Signal[NodeId] = Signal()
        self._services = services
        self._metadata = services.metadata
        self._network = network
        self._ends: dict[PeerService, MakeEnd] = {}
        self.host, self.port = ("", 0) if network is None else (network.host, network.port)
        if network is not None:
            network.accept(self._accept)

    @property
    def has_network(self) -> bool:
        """True if this broker has a network to others."""
        return self._network is not None

    def address(self, node_id: NodeId) -> PeerAddress | None:
        """Return where to dial a broker; None if the image has no address."""
        broker = self._metadata.image.brokers.get(node_id)
        if broker is None or not broker.peer_port:
            return None
        return PeerAddress(PeerIdentity(node_id, broker.incarnation), broker.peer_host, broker.peer_port)

    def serve(self, service: PeerService, make_end: MakeEnd) -> None:
        """Pass the links that other brokers open for a service to this function."""
        self._ends[service] = make_end

    async def open(self, store: MetadataStore, keys: SecretKeys | None) -> None:
        """Let links open from now on: other brokers may dial this one as soon as it has registered.

        keys: see `cluster_secret`, which may raise.
        """
        if self._network is not None:
            secret = await cluster_secret(store, self._services.new_id, keys)
            self._network.open(PeerCredentials(self._metadata.image.cluster_id, secret, self._identity))

    async def dial(self, address: PeerAddress, service: PeerService, make_end: MakeEnd) -> PeerLink:
        """Open a link; see `PeerNetwork.dial`. Raises PeerUnreachable."""
        if self._network is None:
            raise PeerUnreachable("this broker has no network to other brokers")
        try:
            link = await self._network.dial(address, service, make_end)
        except PeerUnreachable as failure:
            self.dialed.emit(Dialed(address.identity, failure))
            raise
        self.dialed.emit(Dialed(address.identity, None))
        return link

    def _accept(self, link: PeerLink, service: PeerService) -> PeerEnd:
        if service not in self._ends:
            raise ProtocolViolation(f"this broker does not serve links for {service.name}")
        return self._ends[service](link)

    def _identity(self) -> PeerIdentity:
        return PeerIdentity(self._services.me, self._metadata.session.incarnation)
