"""One end of a connection between the owner of a metadata store and a client: frames in, frames out."""

import asyncio
import logging
from collections.abc import Callable
from typing import cast

from conveyor.adapters.peers.peer_framing import KEEP_ALIVE, LENGTH, PeerFrames
from conveyor.kernel.errors import ProtocolViolation

log = logging.getLogger(__name__)


class StoreChannel(asyncio.Protocol):
    """received: called with each frame, in order; raises ProtocolViolation to close the connection.
    lost: called once, when the connection has ended, for whatever reason; then `has_ended` is set.

    heard_s: when the last bytes have arrived, by the event loop's time.
    max_unsent_bytes: the connection is closed if more bytes wait for an end that does not read.
    """

    def __init__(
        self,
        *,
        max_received_bytes: int,
        max_unsent_bytes: int,
        received: Callable[[memoryview], None],
        lost: Callable[[], None],
    ) -> None:
        self.heard_s = asyncio.get_running_loop().time()
        self.has_ended = asyncio.Event()
        self._frames = PeerFrames(max_received_bytes)
        self._max_unsent_bytes = max_unsent_bytes
        self._received = received
        self._lost = lost
        self._transport: asyncio.WriteTransport | None = None
        self._is_aborted = False

    def send(self, content: bytes) -> None:
        """Send one frame. After the end of the connection this does nothing."""
        self._write(LENGTH.pack(len(content)) + content)

    def send_keep_alive(self) -> None:
        self._write(KEEP_ALIVE)

    def close(self) -> None:
        """End the connection, when what was sent is written."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """End the connection at once, or as soon as it is made, and ignore what still arrives."""
        self._is_aborted = True
        self._received = _ignore
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.WriteTransport", transport)  # uvloop's transports are of no such class.
        if self._is_aborted:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        self.heard_s = asyncio.get_running_loop().time()
        try:
            for frame in self._frames.add(bytes(data)):
                self._received(frame)
        except ProtocolViolation as error:
            log.warning("connection to the metadata store closed reason=%s", error)
            self.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self._received = _ignore
        self._transport = None
        self.has_ended.set()
        self._lost()

    def _write(self, content: bytes) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        transport.write(content)
        if transport.get_write_buffer_size() > self._max_unsent_bytes:
            log.warning("connection to the metadata store closed reason=the other end does not read")
            self.abort()


def _ignore(frame: memoryview) -> None:
    """The connection is closed."""
