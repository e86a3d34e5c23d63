"""The port of the network between the brokers of a cluster: links that carry frames, in order.

    dial ---> link <--- accept          each end sends frames; a `PeerEnd` receives those of the other one

A frame arrives once and whole, after all earlier frames of its link, or the link ends. Both ends forget all state of a
link when it ends. The network has checked who the peer is before an end sees a link: a broker of the same cluster.
"""

from collections.abc import Callable
from enum import IntEnum
from typing import Protocol

import msgspec

from conveyor.kernel.errors import ConveyorError
from conveyor.kernel.ids import NodeId
from conveyor.kernel.ports import Bytes, FileSlice

MAX_FRAME_BYTES = (1 << 31) + (4 << 20)
"""The largest frame: any record batch fits, whose length is an int32, with the rest of its frame. It is a constant,
because brokers must understand each other whatever their settings are, and each other's logs.
"""

PEER_SILENCE_LIMIT_S = 3.0
"""A peer from which nothing has arrived for this long is dead. Every broker sends more often than that."""


class PeerService(IntEnum):
    """The purposes of links. The numbers are sent."""

    REPLICATION = 1
    """A follower dials the leader of its partitions."""

    CALLS = 2
    """A broker dials another one to ask it for something."""


class PeerIdentity(msgspec.Struct, frozen=True):
    """One start of a broker. incarnation: see `BrokerImage`."""

    node_id: NodeId
    incarnation: str


class PeerAddress(msgspec.Struct, frozen=True):
    """The address at which to dial a broker. A broker that has started again since refuses the link."""

    identity: PeerIdentity
    host: str
    port: int


class PeerCredentials(msgspec.Struct, frozen=True):
    """The credentials of a broker towards its peers. secret: shared by all brokers of the cluster, and never sent.

    identity: asked once for each link, because a broker registers a new incarnation after a lost session.
    """

    cluster_id: str
    secret: bytes
    identity: Callable[[], PeerIdentity]


class PeerUnreachable(ConveyorError):  # noqa: N818 - named for what it is
    """No link could be opened, or the link has ended before the answer: nothing is known of what the peer has done.

    is_gone: the machine of the peer has refused the connection, so its process does not listen any more.
    """

    def __init__(self, message: str, *, is_gone: bool = False) -> None:
        super().__init__(message)
        self.is_gone = is_gone


class PeerLink(Protocol):
    """One end of a link. All methods are called on the event loop."""

    @property
    def peer(self) -> PeerIdentity: ...

    def send(self, *parts: Bytes | FileSlice) -> None:
        """Send the parts as one frame of 1 to MAX_FRAME_BYTES bytes. A frame of another length ends the link.
        Never blocks; does nothing once the link has ended.

        Slices are read when the connection accepts them. If one cannot be read, the link ends.
        """
        ...

    @property
    def unsent_bytes(self) -> int:
        """The bytes that wait for the connection. The caller bounds them."""
        ...

    def close(self, reason: str) -> None:
        """End the link at once. `PeerEnd.ended` is called at this end, too, before `close` returns."""
        ...


class PeerEnd(Protocol):
    """Receives what the peer sends on one link, on the event loop."""

    def received(self, frame: Bytes) -> None:
        """Process one frame. An exception of type ProtocolViolation ends the link."""
        ...

    def ended(self, reason: str) -> None:
        """The link has ended. Called once; no frame is received afterwards."""
        ...


Accept = Callable[[PeerLink, PeerService], PeerEnd]
"""Called with each link that another broker has opened. Returns the end that receives its frames.

Raises ProtocolViolation to refuse the link.
"""


class PeerNetwork(Protocol):
    """The links of one broker. A peer that sends nothing for some seconds is dead: the network ends its links."""

    @property
    def host(self) -> str:
        """The address at which other brokers reach this one, and that it registers."""
        ...

    @property
    def port(self) -> int: ...

    def open(self, credentials: PeerCredentials) -> None:
        """Prove this identity from now on. Until then no link opens in either direction."""
        ...

    async def dial(self, address: PeerAddress, service: PeerService, answer: Callable[[PeerLink], PeerEnd]) -> PeerLink:
        """Open a link. answer: called before the first frame is received. Raises PeerUnreachable."""
        ...

    def accept(self, accept: Accept) -> None:
        """Pass the links that other brokers open to this function. Until it is set they are refused."""
        ...
