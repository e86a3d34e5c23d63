"""Splits the byte stream of a connection into frames: a signed 32-bit length, then that many bytes."""

from struct import Struct

from conveyor.kernel.errors import ProtocolViolation

LENGTH = Struct(">i")
SMALLEST_FRAME_BYTES = 8
"""API key, version and correlation id."""


class FrameDecoder:
    """Takes bytes and returns frames. Buffers at most one unfinished frame, and allocates only for received bytes."""

    def __init__(self, max_frame_bytes: int) -> None:
        self.max_frame_bytes = max_frame_bytes
        self._wanted = 0
        self.unfinished = bytearray()
        """The start of the next frame, with its length prefix. The buffer grows in place, because joining the pieces of
        a large frame would take its memory twice."""

    @property
    def buffered_bytes(self) -> int:
        return len(self.unfinished)

    @property
    def wanted_bytes(self) -> int:
        """The size of the unfinished frame, with its length prefix; 0 while unknown."""
        return self._wanted if len(self.unfinished) >= LENGTH.size else 0

    def feed(self, data: bytes) -> list[memoryview]:
        """Add received bytes and return the frames that they complete. Raises ProtocolViolation.

        A frame shares its memory with others of the same bytes only, and not with a large one that ends with them.
        """
        frames: list[memoryview] = []
        while self.unfinished and data:
            rest = data[self._wanted - len(self.unfinished) :]
            self.unfinished += memoryview(data)[: len(data) - len(rest)]
            data = rest
            if len(self.unfinished) == self._wanted:
                whole, self.unfinished = self.unfinished, bytearray()
                frames += self._cut(whole)
        return frames + self._cut(data) if data else frames

    def _cut(self, data: bytes | bytearray) -> list[memoryview]:
        frames = []
        view = memoryview(data).toreadonly()
        position, end = 0, len(data)
        self._wanted = LENGTH.size
        while position + LENGTH.size <= end:
            length = LENGTH.unpack_from(data, position)[0]
            self._check(length)
            frame_end = position + LENGTH.size + length
            if frame_end > end:
                self._wanted = frame_end - position
                break
            frames.append(view[position + LENGTH.size : frame_end])
            position = frame_end
            self._wanted = LENGTH.size
        self.unfinished += view[position:]
        return frames

    def _check(self, length: int) -> None:
        if not SMALLEST_FRAME_BYTES <= length <= self.max_frame_bytes:
            raise ProtocolViolation(
                f"a request of {length} bytes: the minimum is {SMALLEST_FRAME_BYTES}, the maximum"
                f" {self.max_frame_bytes} (network.max_request_bytes; less before authentication)"
            )
