"""Decompresses bodies (Content-Encoding) piece by piece, and stops at the size limit."""

import zlib

_MOST_MEMBERS = {"gzip": 1000, "deflate": 1}
"""One after the other in a body. Each takes some work, however little is in it."""

ENCODINGS = ("identity", *_MOST_MEMBERS)


class Unpacking:
    """One body in gzip or deflate (RFC 1950, or the raw stream that browsers accept as well).

    Where it is not sound, `feed` and `finish` raise zlib.error.
    """

    def __init__(self, encoding: str, most_bytes: int) -> None:
        self._encoding = encoding
        self._most_bytes = most_bytes
        self._member: zlib._Decompress | None = None
        self._members = 0
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, packed: bytes) -> int:
        """Decompress a piece, up to `most_bytes` in all. Returns the size of the body so far."""
        while packed and self._size < self._most_bytes:
            if self._member is None or self._member.eof:
                self._member = self._begin(packed)
            part = self._member.decompress(packed, self._most_bytes - self._size)
            self._parts.append(part)
            self._size += len(part)
            packed = self._member.unused_data
        return self._size

    def finish(self) -> bytes:
        """The whole body."""
        if self._member is None or not self._member.eof:
            raise zlib.error("it is cut short")
        return b"".join(self._parts)

    def _begin(self, packed: bytes) -> "zlib._Decompress":
        most = _MOST_MEMBERS[self._encoding]
        if self._members == most:
            raise zlib.error(f"there is more after member {most}")
        self._members += 1
        if self._encoding == "gzip":
            return zlib.decompressobj(16 + zlib.MAX_WBITS)
        has_frame = packed[0] & 0x0F == zlib.DEFLATED
        return zlib.decompressobj(zlib.MAX_WBITS if has_frame else -zlib.MAX_WBITS)
