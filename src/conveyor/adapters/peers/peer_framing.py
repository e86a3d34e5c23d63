"""Splits the bytes of a link into frames.

u32 length (big-endian), then so many bytes; a frame of length 0 only shows that the sender is alive
"""

import struct
from collections.abc import Iterator

from conveyor.kernel.errors import ProtocolViolation

LENGTH = struct.Struct(">I")
KEEP_ALIVE = LENGTH.pack(0)


class PeerFrames:
    """Received bytes that are not yet a frame. Memory grows with what arrives, not with the length that is announced,
    and in place: a large frame is never there twice.

    max_bytes: the maximum length of a frame.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._unfinished = bytearray()
        self._wanted_bytes = LENGTH.size

    def add(self, data: bytes) -> Iterator[memoryview]:
        """Yield the frames that are complete now, in order, without keep-alives. Raises ProtocolViolation."""
        if self._unfinished or len(data) < self._wanted_bytes:
            self._unfinished += data
            if len(self._unfinished) < self._wanted_bytes:
                return
            content, self._unfinished = memoryview(self._unfinished).toreadonly(), bytearray()
        else:
            content = memoryview(data)
        end = self._next_end(content, 0)
        start = 0
        while end <= len(content):
            if end > start + LENGTH.size:
                yield content[start + LENGTH.size : end]
            start = end
            end = self._next_end(content, start)
        self._unfinished += content[start:]
        self._wanted_bytes = end - start

    def _next_end(self, content: memoryview, start: int) -> int:
        """Return the end of the frame that begins here, or of its length if that is incomplete."""
        if len(content) < start + LENGTH.size:
            return start + LENGTH.size
        length: int = LENGTH.unpack_from(content, start)[0]
        if length > self._max_bytes:
            raise ProtocolViolation(f"a frame of {length} bytes; the limit is {self._max_bytes}")
        return start + LENGTH.size + length
