"""Decompresses bodies (Content-Encoding) piece by piece, up to the size limit."""

import zlib

_MAX_MEMBERS = {"gzip": 1000, "deflate": 1}
"""Limit of concatenated members in a body. Each member costs time, however small it is."""

ENCODINGS = ("identity", *_MAX_MEMBERS)


class Decompressor:
    """Decompresses one body in gzip or deflate (RFC 1950, or the raw stream that browsers accept too).

    `feed` and `finish` raise zlib.error if the body is invalid.
    """

    def __init__(self, encoding: str, max_bytes: int) -> None:
        self._encoding = encoding
        self._max_bytes = max_bytes
        self._member: zlib._Decompress | None = None
        self._members = 0
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, packed: bytes) -> int:
        """Decompress a piece, up to `max_bytes` in all. Returns the size of the body so far."""
        while packed and self._size < self._max_bytes:
            if self._member is None or self._member.eof:
                self._member = self._begin(packed)
            part = self._member.decompress(packed, self._max_bytes - self._size)
            self._parts.append(part)
            self._size += len(part)
            packed = self._member.unused_data
        return self._size

    def finish(self) -> bytes:
        """Return the complete body."""
        if self._member is None or not self._member.eof:
            raise zlib.error("it is truncated")
        return b"".join(self._parts)

    def _begin(self, packed: bytes) -> "zlib._Decompress":
        max_members = _MAX_MEMBERS[self._encoding]
        if self._members == max_members:
            raise zlib.error(f"it has more than {max_members} members")
        self._members += 1
        if self._encoding == "gzip":
            return zlib.decompressobj(16 + zlib.MAX_WBITS)
        has_frame = packed[0] & 0x0F == zlib.DEFLATED
        return zlib.decompressobj(zlib.MAX_WBITS if has_frame else -zlib.MAX_WBITS)
