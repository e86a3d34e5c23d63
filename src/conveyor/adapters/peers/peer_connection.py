"""One connection to a peer, encrypted by TLS: first the handshake, then a link that carries frames.

    handshaking ---> linked ---> ended          every failure leads to `ended`, from either state

The connection reads the messages of the handshake alone before the peer has proved that it belongs to the cluster.
"""

import asyncio
import logging
import socket
from collections import deque
from collections.abc import Callable
from typing import Protocol, cast

from conveyor.adapters.peers.handshake import AcceptorHandshake, DialerHandshake, HandshakeFailed, refusal
from conveyor.adapters.peers.link_certificate import CheckPeer, any_peer
from conveyor.adapters.peers.peer_framing import KEEP_ALIVE, LENGTH, PeerFrames
from conveyor.adapters.peers.tls_refusals import explained
from conveyor.adapters.socket_output import SocketOutput
from conveyor.adapters.tls.tls_channel import TlsFailed
from conveyor.kernel.errors import ProtocolViolation, StorageFailure
from conveyor.kernel.peers import (
    MAX_FRAME_BYTES,
    PEER_SILENCE_LIMIT_S,
    PeerEnd,
    PeerIdentity,
    PeerLink,
    PeerService,
)
from conveyor.kernel.ports import Bytes, FileSlice

log = logging.getLogger(__name__)

_REFUSAL_S = 1.0
"""The time in which a stranger may read why it is refused."""


class PeerConnections(Protocol):
    """The owner of the connections. max_unsent_bytes: that may wait in memory for one of them."""

    max_unsent_bytes: int

    def opened(self, connection: "PeerConnection") -> None:
        """A connection exists, and its handshake begins."""

    def linked(self, connection: "PeerConnection") -> None:
        """The handshake is done."""

    def closed(self, connection: "PeerConnection", reason: str) -> None:
        """The connection has ended, before or after its handshake."""


class PeerConnection(asyncio.Protocol):
    """See the module's docstring, and `conveyor.kernel.peers.PeerLink`.

    answer: returns the end that receives the frames, once the handshake is done. check_peer: called before the peer
    receives or sends a message.
    """

    def __init__(
        self,
        owner: PeerConnections,
        handshake: AcceptorHandshake | DialerHandshake,
        answer: Callable[[PeerLink, PeerService], PeerEnd],
        check_peer: CheckPeer = any_peer,
    ) -> None:
        self.address = "?"
        self.is_distrusted = False
        """TLS has failed, as it does if one end does not take the certificate of the other."""
        self.has_ended = False
        self.is_linked = False
        self.sent_bytes = 0
        self.heard_s = 0.0
        """The time of the loop when bytes arrived last."""
        self._owner = owner
        self._handshake = handshake
        self._answer = answer
        self._check_peer = check_peer
        self._is_checked = False
        self._loop = asyncio.get_running_loop()
        self._added_bytes = 0
        self._held: deque[tuple[int, int]] = deque()
        """Of each frame that is not sent: where it ends in the bytes of the link, and its bytes in memory."""
        self._held_bytes = 0
        self._frames = PeerFrames(MAX_FRAME_BYTES)
        self._end: PeerEnd | None = None
        self._end_reason = ""
        self._transport: asyncio.Transport | None = None
        self._output: SocketOutput

    @property
    def peer(self) -> PeerIdentity:
        assert self._handshake.peer is not None, "the handshake is not done"
        return self._handshake.peer

    @property
    def unsent_bytes(self) -> int:
        if self.has_ended or self._transport is None:
            return 0
        return self._added_bytes - self.sent_bytes + self._transport.get_write_buffer_size()

    def send(self, *parts: Bytes | FileSlice) -> None:
        if self.has_ended:
            return
        length = sum(part.length if isinstance(part, FileSlice) else len(part) for part in parts)
        if not 0 < length <= MAX_FRAME_BYTES:
            log.error("frame refused peer=%d bytes=%d limit=%d", self.peer.node_id, length, MAX_FRAME_BYTES)
            return self.close(f"a frame of {length} bytes")
        self._hold(parts, LENGTH.size + length)
        self._add((LENGTH.pack(length), *map(_immutable, parts)), LENGTH.size + length)
        if self._held_bytes > self._owner.max_unsent_bytes:
            self.close(f"the peer does not read: {self._held_bytes} bytes wait in memory")

    def close(self, reason: str) -> None:
        if not self.has_ended:
            self._stop(reason)
            if self._transport is not None:
                self._transport.abort()
            self._tell_end()

    def refuse(self, reason: str, reply: bytes = b"") -> None:
        """End the handshake. reply: the last bytes that the peer receives, unless it does not read."""
        if not self.has_ended:
            self._stop(reason)
            if self._transport is not None:
                if reply:
                    self._transport.write(reply)
                self._transport.close()
                self._loop.call_later(_REFUSAL_S, self._transport.abort)

    def check_silence(self, now_s: float) -> None:
        """End the link of a silent peer; otherwise show the peer that this broker lives."""
        if now_s - self.heard_s > PEER_SILENCE_LIMIT_S:
            self.close(f"broker {self.peer.node_id} is silent for {PEER_SILENCE_LIMIT_S:g} s")
        elif self.unsent_bytes == 0:
            self._add((KEEP_ALIVE,), len(KEEP_ALIVE))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = connected = cast("asyncio.Transport", transport)
        name = transport.get_extra_info("peername") or ("?", 0)
        self.address = f"{name[0]}:{name[1]}"
        _tune(transport.get_extra_info("socket"))
        self._output = SocketOutput(connected, self, self._read_failed, lambda: None)
        if self.has_ended:  # The dial was given up.
            return connected.abort()
        self._owner.opened(self)
        if not self.has_ended:
            connected.write(self._handshake.begin())

    def data_received(self, data: bytes) -> None:
        self.heard_s = self._loop.time()
        if self.is_linked:
            self._receive(data)
        elif not self.has_ended:
            self._shake(data)

    def connection_lost(self, exc: Exception | None) -> None:
        reason = "the peer has closed the connection" if exc is None else f"the connection is lost: {explained(exc)}"
        self.is_distrusted = isinstance(exc, TlsFailed)
        if self.is_linked:
            self.close(reason)
        else:
            self.refuse(f"{reason}, during the handshake")

    def pause_writing(self) -> None:
        self._output.is_writable = False

    def resume_writing(self) -> None:
        self._output.is_writable = True
        self._output.write()

    def _shake(self, data: bytes) -> None:
        assert self._transport is not None
        handshake = self._handshake
        try:
            if not self._is_checked:
                self._check(self._transport.get_extra_info("tls").peer_certificate)
            reply = handshake.receive(data)
        except HandshakeFailed as failure:
            return self.refuse(str(failure), failure.reply)
        except Exception:  # The peer is a stranger until the handshake is done.
            log.exception("handshake failed peer=%s", self.address)
            return self.refuse("the handshake has failed: a bug, see the log")
        self._transport.write(reply)
        if handshake.is_done:
            self._link()

    def _check(self, certificate: bytes | None) -> None:
        """Look at the certificate of the peer (DER). Raises HandshakeFailed."""
        self._is_checked = True
        if refused := self._check_peer(certificate):
            raise refusal(f"the peer is not trusted: {refused}")
        if self._handshake.certificate is None:
            self._handshake.certificate = certificate

    def _link(self) -> None:
        self.is_linked = True
        self._owner.linked(self)
        try:
            self._end = self._answer(self, self._handshake.service)
        except ProtocolViolation as violation:
            self.close(str(violation))
        if self.has_ended:
            self._tell_end()
        else:
            self._receive(self._handshake.rest)

    def _stop(self, reason: str) -> None:
        self.has_ended = True
        self._end_reason = reason
        if self._transport is not None:
            self._output.end()
        self._owner.closed(self, reason)

    def _tell_end(self) -> None:
        end, self._end = self._end, None
        if end is not None:
            end.ended(self._end_reason)

    def _receive(self, data: bytes) -> None:
        try:
            for frame in self._frames.add(data):
                if self._end is None:
                    return
                self._end.received(frame)
        except ProtocolViolation as violation:
            self.close(f"protocol violation: {violation}")

    def _add(self, parts: tuple[Bytes | FileSlice, ...], size: int) -> None:
        self._added_bytes += size
        self._output.write(parts)

    def _hold(self, parts: tuple[Bytes | FileSlice, ...], size: int) -> None:
        """Count what a frame takes of the memory until it is sent, and forget the frames that are."""
        while self._held and self._held[0][0] <= self.sent_bytes:
            self._held_bytes -= self._held.popleft()[1]
        in_memory = sum(len(part) for part in parts if not isinstance(part, FileSlice))
        self._held.append((self._added_bytes + size, in_memory))
        self._held_bytes += in_memory

    def _read_failed(self, failure: StorageFailure) -> None:
        log.error("read failed peer=%s reason=%s", self.peer.node_id, failure)
        self.close("stored records could not be read")


def _immutable(part: Bytes | FileSlice) -> bytes | FileSlice:
    return part if isinstance(part, bytes | FileSlice) else bytes(part)


def _tune(connection: socket.socket | None) -> None:
    if connection is not None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
