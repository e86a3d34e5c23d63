"""Links between brokers on one event loop, without a network: each frame is received in a later turn of the loop."""

import asyncio
from collections.abc import Callable

from conveyor.kernel.errors import ProtocolViolation
from conveyor.kernel.ids import NodeId
from conveyor.kernel.peers import (
    Accept,
    PeerAddress,
    PeerCredentials,
    PeerEnd,
    PeerIdentity,
    PeerLink,
    PeerService,
    PeerUnreachable,
)
from conveyor.kernel.ports import Bytes, FileSlice


class OneEnd:
    """One end of a link. See `PeerLink`."""

    def __init__(self, peer: PeerIdentity) -> None:
        self.peer = peer
        self.unsent_bytes = 0
        self.other: OneEnd
        self.end: PeerEnd | None = None
        self.is_open = True

    def send(self, *parts: Bytes | FileSlice) -> None:
        assert not any(isinstance(part, FileSlice) for part in parts)
        if self.is_open:
            frame = b"".join(part for part in parts if not isinstance(part, FileSlice))
            asyncio.get_running_loop().call_soon(self.other.receive, frame)

    def close(self, reason: str) -> None:
        for end in (self, self.other):
            if end.is_open:
                end.is_open = False
                if end.end is not None:
                    end.end.ended(reason)

    def receive(self, frame: bytes) -> None:
        if not self.is_open:
            return
        assert self.end is not None
        try:
            self.end.received(frame)
        except ProtocolViolation as violation:
            self.close(str(violation))


class Cable:
    """Connects the networks of several brokers."""

    def __init__(self) -> None:
        self.networks: dict[NodeId, CableEnd] = {}
        self.dials: list[NodeId] = []
        self.links: list[OneEnd] = []
        self.opened = asyncio.Event()

    def unlink(self) -> None:
        """End all links, and forget that there were any."""
        for link in self.links:
            link.close("the test begins")
        self.links.clear()
        self.dials.clear()
        self.opened.clear()

    def plug(self, identity: PeerIdentity) -> "CableEnd":
        self.networks[identity.node_id] = CableEnd(self, identity)
        return self.networks[identity.node_id]

    def unplug(self, node_id: NodeId) -> None:
        """End the broker's links. No others are opened."""
        del self.networks[node_id]
        for link in self.links:
            link.close("unplugged")

    def lose_frames(self) -> None:
        """Lose what the open links still send. They do not end."""
        for link in self.links:
            link.is_open = link.other.is_open = False


class CableEnd:
    """The network of one broker. See `PeerNetwork`."""

    def __init__(self, cable: Cable, identity: PeerIdentity) -> None:
        self._cable = cable
        self._accept: Accept | None = None
        self.identity = identity
        self.host, self.port = f"broker-{identity.node_id}.example", 9190

    def open(self, credentials: PeerCredentials) -> None:
        """Nothing to do: all brokers here are of one cluster."""

    def accept(self, accept: Accept) -> None:
        self._accept = accept

    async def dial(self, address: PeerAddress, service: PeerService, answer: Callable[[PeerLink], PeerEnd]) -> PeerLink:
        self._cable.dials.append(address.identity.node_id)
        await asyncio.sleep(0)
        target = self._cable.networks.get(address.identity.node_id)
        if target is None or target._accept is None or target.identity != address.identity:
            raise PeerUnreachable(f"broker {address.identity.node_id} refuses the connection", is_gone=True)
        here, there = OneEnd(address.identity), OneEnd(self.identity)
        here.other, there.other = there, here
        there.end = target._accept(there, service)
        here.end = answer(here)
        self._cable.links.append(here)
        self._cable.opened.set()
        return here
