"""The network between the brokers of a simulated cluster, with faults: delays, cuts, resets, half-open connections.

    network = PeerSwitch(loop, Random(seed))
    peers = network.join(NodeId(1))      in the context of the broker's process; see `conveyor.kernel.peers`

A frame waits at its sender, which reads its file slices when the frame leaves; then it travels; then it is received in
the process of its receiver. A cut stops the frames of one direction until it is healed, as TCP sends them again. A
receiver that has heard nothing for the silence limit ends its link, and so does one that gets too large a frame. A
process that is killed ends its links, and its peers notice; peers of a machine that loses its power do not. Frames
belong to their link, so those of an ended link are lost.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from contextvars import copy_context
from dataclasses import dataclass
from random import Random

from conveyor.kernel.errors import ProtocolViolation, StorageFailure
from conveyor.kernel.ids import NodeId
from conveyor.kernel.peers import (
    MAX_FRAME_BYTES,
    PEER_SILENCE_LIMIT_S,
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
from simulation.virtual_loop import PROCESS

_DIAL_LIMIT_S = 2.0
_USUAL_DELAY_S = 0.003
_LONG_DELAY_S = 0.2
_LONG_SHARE = 0.02
_WINDOW_BYTES = 1 << 16
"""The bytes that travel at once; the rest waits at the sender."""
_PORT = 9_190


def host_of(node_id: NodeId) -> str:
    """Return the host of a broker."""
    return f"broker-{node_id}.example"


class PeerSwitch:
    """The connections of all brokers, and the faults between them. chance: the source of the delays."""

    def __init__(self, loop: asyncio.AbstractEventLoop, chance: Random) -> None:
        self.loop = loop
        self._chance = chance
        self._networks: dict[str, SimulatedPeerNetwork] = {}
        """By host."""
        self._cuts: set[tuple[NodeId, NodeId]] = set()
        self._dark: set[str] = set()

    def join(self, node_id: NodeId, host: str = "") -> "SimulatedPeerNetwork":
        """Connect a start of a broker. Its callbacks run in a copy of the caller's context.

        It leaves at the death of the caller's process. host: by default that of the broker.
        """
        host = host or host_of(node_id)
        network = self._networks[host] = SimulatedPeerNetwork(self, node_id, host)
        self._dark.discard(host)
        process = PROCESS.get()
        if process is not None:
            process.at_death(network.leave)
        return network

    def cut(self, sender: NodeId, receiver: NodeId) -> None:
        """Let nothing more travel from one broker to another, until `heal`. The other direction stays intact."""
        self._cuts.add((sender, receiver))

    def heal(self, *cuts: tuple[NodeId, NodeId]) -> None:
        """End these cuts, by default all. Frames that wait on links which still exist arrive now."""
        self._cuts -= set(cuts) if cuts else self._cuts.copy()
        for network in self._networks.values():
            for line in list(network.lines):
                line.resume()
                line.other.resume()  # It may have ended, and its notice may be on the way.

    def reset(self, first: NodeId, second: NodeId) -> None:
        """Break all links between two brokers. Both notice, and the frames on the way are lost."""
        for node_id, other in ((first, second), (second, first)):
            lines = [
                line for network in self._networks.values() if network.node_id == node_id for line in network.lines
            ]
            for line in lines:
                if line.peer.node_id == other:
                    self.loop.call_soon(line.break_off, "connection reset", context=line.network.context)

    def hold_answers(self, sender: NodeId, receiver: NodeId, duration_s: float) -> None:
        """Hold what a broker answers to the calls of another one, as if a packet was lost. Other links go on."""
        network = self._networks.get(host_of(sender))
        for line in list(network.lines) if network is not None else ():
            if line.peer.node_id == receiver and line.answers is PeerService.CALLS:
                line.hold(duration_s)

    def lose_power(self, node_id: NodeId) -> None:
        """Take a machine off the network without notice: its peers find out by its silence. Then kill its process."""
        self._dark.add(host_of(node_id))

    def is_cut(self, sender: NodeId, receiver: NodeId) -> bool:
        return (sender, receiver) in self._cuts

    def is_dark(self, host: str) -> bool:
        return host in self._dark

    def network_at(self, host: str, port: int) -> "SimulatedPeerNetwork | None":
        """Return the network of the process that listens on an address."""
        found = (network for network in self._networks.values() if (network.host, network.port) == (host, port))
        return next((network for network in found if network.is_member), None)

    def delay_s(self) -> float:
        longest_s = _LONG_DELAY_S if self._chance.random() < _LONG_SHARE else _USUAL_DELAY_S
        return self._chance.uniform(0, longest_s)

    def tosses_heads(self) -> bool:
        return self._chance.random() < 0.5


class SimulatedPeerNetwork:
    """The links of one start of a broker. See `conveyor.kernel.peers.PeerNetwork`."""

    def __init__(self, switch: PeerSwitch, node_id: NodeId, host: str) -> None:
        self.host, self.port = host, _PORT
        self.node_id = node_id
        self.switch = switch
        self.context = copy_context()
        self.lines: dict[_Line, None] = {}  # A set whose order does not depend on addresses in memory.
        self.is_member = True
        self._credentials: PeerCredentials | None = None
        self._accept: Accept | None = None

    def open(self, credentials: PeerCredentials) -> None:
        self._credentials = credentials

    def accept(self, accept: Accept) -> None:
        self._accept = accept

    async def dial(self, address: PeerAddress, service: PeerService, answer: Callable[[PeerLink], PeerEnd]) -> PeerLink:
        try:
            async with asyncio.timeout(_DIAL_LIMIT_S):
                line = await self._connect(address, service)
        except TimeoutError as error:
            raise PeerUnreachable(f"broker {address.identity.node_id} does not answer") from error
        if not line.is_open:
            raise PeerUnreachable(f"broker {address.identity.node_id} has closed the connection")
        line.begin(answer(line))
        return line

    def leave(self) -> None:
        """End all links without a word to this broker, whose process has died."""
        self.is_member = False
        for line in list(self.lines):
            line.abandon(is_noticed=not self.switch.is_dark(self.host))

    async def _connect(self, address: PeerAddress, service: PeerService) -> "_Line":
        other = address.identity.node_id
        await self._travel(self.node_id, other)
        target = self.switch.network_at(address.host, address.port)
        if target is None and not self.switch.is_dark(address.host):
            await self._travel(other, self.node_id)
            raise PeerUnreachable(f"broker {other} refuses the connection", is_gone=True)
        if target is None:
            await _for_ever()
        assert target is not None
        own = asyncio.get_running_loop().create_future()
        self.switch.loop.call_soon(target.receive_dial, self, address.identity, service, own, context=target.context)
        line: _Line | None = await own
        try:
            await self._travel(other, self.node_id)
        except asyncio.CancelledError:
            if line is not None:
                line.break_off("the dial was given up")
            raise
        if line is None:
            raise PeerUnreachable(f"broker {other} refuses the link")
        return line

    def receive_dial(
        self,
        dialer: "SimulatedPeerNetwork",
        wanted: PeerIdentity,
        service: PeerService,
        reply: "asyncio.Future[_Line | None]",
    ) -> None:
        """Accept or refuse a link that another broker dials. Runs in the process of this one."""
        if reply.done():
            return
        if not self._trusts(dialer) or self._identity() != wanted or self._accept is None:
            return reply.set_result(None)
        here, there = _Line(self, dialer._identity(), service), _Line(dialer, wanted)
        here.other, there.other = there, here
        try:
            here.begin(self._accept(here, service))
        except ProtocolViolation:
            here.abandon(is_noticed=False)
            there.abandon(is_noticed=False)
            return reply.set_result(None)
        reply.set_result(there)

    def _trusts(self, other: "SimulatedPeerNetwork") -> bool:
        own, their = self._credentials, other._credentials
        if own is None or their is None or not other.is_member:
            return False
        return (own.cluster_id, own.secret) == (their.cluster_id, their.secret)

    def _identity(self) -> PeerIdentity:
        assert self._credentials is not None
        return self._credentials.identity()

    async def _travel(self, sender: NodeId, receiver: NodeId) -> None:
        await asyncio.sleep(self.switch.delay_s())
        if self.switch.is_cut(sender, receiver):
            await _for_ever()


@dataclass(frozen=True, slots=True)
class _Ended:
    """The notice that the sender has ended the link."""

    reason: str


class _Line:
    """One end of a link, and the frames that it sends. See `conveyor.kernel.peers.PeerLink`.

    answers: the service of a link that the other end has dialled.
    """

    def __init__(self, network: SimulatedPeerNetwork, peer: PeerIdentity, answers: PeerService | None = None) -> None:
        self.network = network
        self.peer = peer
        self.answers = answers
        self.is_open = True
        self.other: _Line
        self._switch, self._loop = network.switch, network.switch.loop
        self._end: PeerEnd | None = None
        self._unsent: deque[tuple[Bytes | FileSlice, ...]] = deque()
        self._unsent_bytes = 0
        self._travelling: deque[tuple[float, bytes | _Ended]] = deque()
        self._travelling_bytes = 0
        self._departure: asyncio.TimerHandle | None = None
        self._arrival: asyncio.TimerHandle | None = None
        self._watch: asyncio.TimerHandle | None = None
        self._heard_s = self._watched_s = self._held_until_s = self._loop.time()
        network.lines[self] = None

    @property
    def unsent_bytes(self) -> int:
        return self._unsent_bytes

    def begin(self, end: PeerEnd) -> None:
        """Start to receive. Frames that have arrived before are received now."""
        if not self.is_open:
            return end.ended("the connection was closed")
        self._end = end
        self._heard_s = self._watched_s = self._loop.time()
        self._watch_later()
        self.other.resume()

    def send(self, *parts: Bytes | FileSlice) -> None:
        if self.is_open:
            self._unsent.append(tuple(part if isinstance(part, FileSlice) else bytes(part) for part in parts))
            self._unsent_bytes += _size(parts)
            self._depart_later()

    def close(self, reason: str) -> None:
        if self.is_open:
            self.abandon(is_noticed=True, reason=reason)
            self._tell(reason)

    def break_off(self, reason: str) -> None:
        """End the link at both ends, and lose the frames on the way."""
        if self.is_open:
            self._travelling.clear()
            self.close(reason)

    def abandon(self, *, is_noticed: bool, reason: str = "the connection was closed by the peer") -> None:
        """Stop sending and receiving. is_noticed: the other end receives a notice, perhaps without the last frames."""
        self.is_open = False
        self.network.lines.pop(self, None)
        self._unsent.clear()
        self._unsent_bytes = 0
        if self._watch is not None:
            self._watch.cancel()
        if self._switch.tosses_heads() or not is_noticed:
            self._travelling.clear()
        if is_noticed:
            self._travelling.append((self._arrives_s(), _Ended(reason)))
            self._arrive_later()

    def hold(self, duration_s: float) -> None:
        """Let what is sent from now on arrive later."""
        self._held_until_s = self._loop.time() + duration_s

    def resume(self) -> None:
        """Continue to send after a cut was healed."""
        self._depart_later()
        self._arrive_later()

    def _depart_later(self) -> None:
        if self.is_open and self._unsent and self._departure is None:
            delay_s = self._switch.delay_s() / 10
            self._departure = self._loop.call_later(delay_s, self._depart, context=self.network.context)

    def _depart(self) -> None:
        self._departure = None
        while self._unsent and self._travelling_bytes < _WINDOW_BYTES and self.is_open:
            parts = self._unsent.popleft()
            self._unsent_bytes -= _size(parts)
            frame = self._read(parts)
            if frame is not None:
                self._travelling.append((self._arrives_s(), frame))
                self._travelling_bytes += len(frame)
        self._arrive_later()

    def _read(self, parts: tuple[Bytes | FileSlice, ...]) -> bytes | None:
        content = b""
        for part in parts:
            try:
                content += _content(part) if isinstance(part, FileSlice) else part
            except StorageFailure as failure:
                if isinstance(part, FileSlice) and part.failed is not None:
                    part.failed(failure)
                self.close(f"stored records could not be read: {failure}")
                return None
        return content

    def _arrives_s(self) -> float:
        earliest_s = self._travelling[-1][0] if self._travelling else 0.0
        return max(earliest_s, self._held_until_s, self._loop.time() + self._switch.delay_s())

    def _arrive_later(self) -> None:
        receiver = self.other
        is_blocked = self._switch.is_cut(self.network.node_id, receiver.network.node_id) or receiver._end is None
        if self._travelling and self._arrival is None and not is_blocked:
            when_s = max(self._loop.time(), self._travelling[0][0])
            self._arrival = self._loop.call_at(when_s, self._arrive, context=receiver.network.context)

    def _arrive(self) -> None:
        """Deliver the next frame. Runs in the process of the receiver."""
        self._arrival = None
        receiver = self.other
        if not self._travelling or self._switch.is_cut(self.network.node_id, receiver.network.node_id):
            return
        if not receiver.is_open:
            return self._travelling.clear()
        _, frame = self._travelling.popleft()
        if isinstance(frame, _Ended):
            return receiver._lose(frame.reason)
        self._travelling_bytes -= len(frame)
        receiver._receive(frame)
        if not self._switch.is_cut(receiver.network.node_id, self.network.node_id):
            self._depart_later()
        self._arrive_later()

    def _receive(self, frame: bytes) -> None:
        self._heard_s = self._loop.time()
        if len(frame) > MAX_FRAME_BYTES:
            return self.close(f"a frame of {len(frame)} bytes; the limit is {MAX_FRAME_BYTES}")
        if frame and self._end is not None:
            try:
                self._end.received(frame)
            except ProtocolViolation as violation:
                self.close(str(violation))

    def _lose(self, reason: str) -> None:
        self.abandon(is_noticed=False)
        self._tell(reason)

    def _tell(self, reason: str) -> None:
        end, self._end = self._end, None
        if end is not None:
            end.ended(reason)

    def _watch_later(self) -> None:
        self._watch = self._loop.call_later(PEER_SILENCE_LIMIT_S / 4, self._check_silence, context=self.network.context)

    def _check_silence(self) -> None:
        """End the link of a silent peer, and show the peer that this broker lives."""
        now_s = self._loop.time()
        if now_s - self._watched_s > PEER_SILENCE_LIMIT_S / 2:  # After a pause: read what has arrived first.
            self._heard_s = now_s
        self._watched_s = now_s
        if now_s - self._heard_s > PEER_SILENCE_LIMIT_S:
            return self.close(f"broker {self.peer.node_id} is silent for {PEER_SILENCE_LIMIT_S:g} s")
        if not self._unsent:
            self.send()
        self._watch_later()


def _size(parts: tuple[Bytes | FileSlice, ...]) -> int:
    return sum(part.length if isinstance(part, FileSlice) else len(part) for part in parts)


def _content(part: FileSlice) -> bytes:
    """Raises StorageFailure, also if the file ends within the slice."""
    content = part.file.read(part.position, part.length)
    if len(content) < part.length:
        raise StorageFailure(f"a segment ends at {part.position + len(content)}, within its records")
    return content


async def _for_ever() -> None:
    await asyncio.get_running_loop().create_future()
