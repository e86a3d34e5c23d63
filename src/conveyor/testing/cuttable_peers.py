"""The network between the brokers of a cluster in one process: real links, which a test can cut."""

from collections.abc import Callable
from threading import Lock

from conveyor.kernel.errors import ProtocolViolation
from conveyor.kernel.ids import NodeId
from conveyor.kernel.peers import (
    Accept,
    PeerAddress,
    PeerCredentials,
    PeerEnd,
    PeerLink,
    PeerNetwork,
    PeerService,
    PeerUnreachable,
)


class NetworkGroups:
    """Groups of brokers that reach each other. Without groups, all brokers reach each other."""

    def __init__(self) -> None:
        self._groups: tuple[frozenset[int], ...] = ()
        self._lock = Lock()

    def split(self, *groups: frozenset[int]) -> None:
        with self._lock:
            self._groups = groups

    def connects(self, one: int, other: int) -> bool:
        """Return whether two brokers reach each other."""
        with self._lock:
            return not self._groups or any(one in group and other in group for group in self._groups)


class CuttablePeers:
    """The network of one broker; see `PeerNetwork`. `enforce` ends the links that the groups cut."""

    def __init__(self, node_id: int, groups: NetworkGroups, peers: PeerNetwork) -> None:
        self._node_id = node_id
        self._groups = groups
        self._peers = peers
        self._links: set[PeerLink] = set()

    @property
    def host(self) -> str:
        return self._peers.host

    @property
    def port(self) -> int:
        return self._peers.port

    def open(self, credentials: PeerCredentials) -> None:
        self._peers.open(credentials)

    def accept(self, accept: Accept) -> None:
        def answer(link: PeerLink, service: PeerService) -> PeerEnd:
            if not self._reaches(link.peer.node_id):
                raise ProtocolViolation("the test has cut this link")
            return self._kept(link, accept(link, service))

        self._peers.accept(answer)

    async def dial(self, address: PeerAddress, service: PeerService, answer: Callable[[PeerLink], PeerEnd]) -> PeerLink:
        node_id = address.identity.node_id
        if not self._reaches(node_id):
            raise PeerUnreachable(f"broker {node_id}: the test has cut this link")
        return await self._peers.dial(address, service, lambda link: self._kept(link, answer(link)))

    def enforce(self) -> None:
        """End the links to brokers that are out of reach now."""
        for link in list(self._links):
            if not self._reaches(link.peer.node_id):
                link.close("the test has cut this link")

    def _reaches(self, node_id: NodeId) -> bool:
        return self._groups.connects(self._node_id, node_id)

    def _kept(self, link: PeerLink, end: PeerEnd) -> PeerEnd:
        self._links.add(link)
        return _KeptEnd(end, lambda: self._links.discard(link))


class _KeptEnd:
    """Passes everything on, and reports the end of the link."""

    def __init__(self, end: PeerEnd, forget: Callable[[], None]) -> None:
        self.received = end.received
        self._end = end
        self._forget = forget

    def ended(self, reason: str) -> None:
        self._forget()
        self._end.ended(reason)
