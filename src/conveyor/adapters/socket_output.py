"""The output of one connection: bytes and file slices, written when its socket accepts them.

Slices are sent from the page cache at once. A thread reads those that are not there, so that one cold reader stalls
no other connection; the parts behind such a slice wait for it.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from conveyor.kernel.errors import StorageFailure
from conveyor.kernel.ports import Bytes, FileSlice

_CHUNK_BYTES = 1 << 18
_COLD_READ_BYTES = 1 << 20


class SentBytes(Protocol):
    """The object that counts the bytes passed to the socket."""

    sent_bytes: int


class SocketOutput:
    """See the module's docstring. Call `write` with new parts, and after setting `is_writable`.

    failed: called when a slice could not be read, after the slice's own function; it must end the connection.
    unblocked: called after parts that waited for the disk were written.
    """

    __slots__ = (
        "_failed", "_has_ended", "_loop", "_parts", "_probe", "_transport", "_unblocked", "is_writable", "unread_bytes",
        "waits_for_disk",
    )  # fmt: skip

    def __init__(
        self,
        transport: asyncio.WriteTransport,
        probe: SentBytes,
        failed: Callable[[StorageFailure], None],
        unblocked: Callable[[], None],
    ) -> None:
        self.is_writable = True
        self.waits_for_disk = False
        self.unread_bytes = 0
        """The bytes in memory, besides slices, of all parts since the socket has last accepted all that there was."""
        self._loop = asyncio.get_running_loop()
        self._parts: deque[Bytes | FileSlice] = deque()
        self._has_ended = False
        self._transport = transport
        self._probe = probe
        self._failed = failed
        self._unblocked = unblocked

    @property
    def is_empty(self) -> bool:
        return not self._parts and not self.waits_for_disk

    def write(self, parts: Sequence[Bytes | FileSlice] = ()) -> None:
        """Add parts to the end, and write as much as the socket accepts, joining small parts."""
        self._parts.extend(parts)
        while self._parts and self.is_writable and not self.waits_for_disk:
            chunk = self._next_chunk()
            if chunk and not self._has_ended:
                self._probe.sent_bytes += len(chunk)
                self._transport.write(chunk)
        if self.is_empty and self.is_writable:
            self.unread_bytes = 0
        else:
            self.unread_bytes += sum(len(part) for part in parts if not isinstance(part, FileSlice))

    def end(self) -> None:
        """Drop what is not written. Nothing is called from now on."""
        self._has_ended = True
        self._parts.clear()

    def _next_chunk(self) -> Bytes:
        """Return the next bytes to send without waiting for the disk. If there are none, start a read on a thread."""
        pieces: list[Bytes] = []
        size = 0
        parts = self._parts
        while parts and size < _CHUNK_BYTES and not self.waits_for_disk:
            part, room = parts.popleft(), _CHUNK_BYTES - size
            piece: Bytes
            if isinstance(part, FileSlice):
                piece = self._read_cached(part, room)
            elif len(part) <= room:
                piece = part
            else:
                piece, rest = memoryview(part)[:room], memoryview(part)[room:]
                parts.appendleft(rest)
            pieces.append(piece)
            size += len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _read_cached(self, part: FileSlice, room: int) -> Bytes:
        """Return the next bytes of a slice from the page cache, and put the rest back at the head of the queue."""
        try:
            content = part.file.read_cached(part.position, min(part.length, room))
        except StorageFailure as failure:
            self._fail_read(part, failure)
            return b""
        if len(content) < part.length:
            rest = _after(part, len(content))
            self._parts.appendleft(rest)
            if not content:
                self._read_on_thread(rest)
        return content

    def _read_on_thread(self, part: FileSlice) -> None:
        self.waits_for_disk = True
        length = min(part.length, _COLD_READ_BYTES)
        reading = self._loop.run_in_executor(None, _read_whole, part, length)
        reading.add_done_callback(partial(self._was_read, part))

    def _was_read(self, part: FileSlice, reading: "asyncio.Future[bytes | StorageFailure]") -> None:
        self.waits_for_disk = False
        content = reading.result()
        if isinstance(content, StorageFailure):
            return self._fail_read(part, content)
        if self._has_ended:
            return
        self._parts.popleft()
        if len(content) < part.length:
            self._parts.appendleft(_after(part, len(content)))
        self._parts.appendleft(content)
        self.write()
        self._unblocked()

    def _fail_read(self, part: FileSlice, failure: StorageFailure) -> None:
        if part.failed is not None:
            part.failed(failure)
        if not self._has_ended:
            self._failed(failure)


def _after(part: FileSlice, length: int) -> FileSlice:
    """Return the rest of a slice after its first `length` bytes."""
    return FileSlice(part.file, part.position + length, part.length - length, part.failed)


def _read_whole(part: FileSlice, length: int) -> bytes | StorageFailure:
    """Return the first `length` bytes of a slice; StorageFailure if the file ends before them."""
    try:
        content = part.file.read(part.position, length)
    except StorageFailure as failure:
        return failure
    if len(content) < length:
        return StorageFailure(f"a segment ends at {part.position + len(content)}, within its records")
    return content
