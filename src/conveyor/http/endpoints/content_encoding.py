"""Decompresses bodies (Content-Encoding), up to the size limit."""

import zlib

from conveyor.http.engine.http_request import Request
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.ports import Bytes
from conveyor.kernel.request_budget import SMALL_REQUEST_BYTES

_MAX_MEMBERS = {"gzip": 1000, "deflate": 1}
"""Limit of concatenated members in a body. Each member costs time, however small it is."""

ENCODINGS = ("identity", *_MAX_MEMBERS)
_PIECE_BYTES = 64 << 10
"""The end of each member copies the rest of its piece."""
_MAX_EXPANSION = 1_032
"""Largest number of bytes to which one byte of deflate expands."""
SMALL_PACKED_BYTES = SMALL_REQUEST_BYTES // _MAX_EXPANSION
"""A compressed body of this size is small when it is decompressed."""


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

    def feed(self, packed: Bytes) -> int:
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

    def _begin(self, packed: Bytes) -> "zlib._Decompress":
        max_members = _MAX_MEMBERS[self._encoding]
        if self._members == max_members:
            raise zlib.error(f"it has more than {max_members} members")
        self._members += 1
        if self._encoding == "gzip":
            return zlib.decompressobj(16 + zlib.MAX_WBITS)
        has_frame = packed[0] & 0x0F == zlib.DEFLATED
        return zlib.decompressobj(zlib.MAX_WBITS if has_frame else -zlib.MAX_WBITS)


def encoding_of(request: Request) -> str | None:
    """Return the encoding of a compressed body. Raises RequestError (UNSUPPORTED_COMPRESSION)."""
    if b"content-encoding" not in request.fields:
        return None
    encoding = ", ".join(value for name, value in request.headers() if name == "content-encoding").lower()
    if encoding not in ENCODINGS:
        detail = f"Content-Encoding '{encoding}' is not supported: send one of {', '.join(ENCODINGS)}"
        raise RequestError(ErrorKind.UNSUPPORTED_COMPRESSION, detail)
    return None if encoding == "identity" else encoding


def decompress(packed: bytes, encoding: str, limit_bytes: int) -> bytes:
    """Return the body. Raises RequestError: MESSAGE_TOO_LARGE, INVALID_REQUEST."""
    decompressor = Decompressor(encoding, limit_bytes + 1)
    try:
        pieces = memoryview(packed)
        for start in range(0, len(pieces), _PIECE_BYTES):
            if decompressor.feed(pieces[start : start + _PIECE_BYTES]) > limit_bytes:
                detail = f"the request's body is larger than the limit of {limit_bytes} bytes"
                raise RequestError(ErrorKind.MESSAGE_TOO_LARGE, detail)
        return decompressor.finish()
    except zlib.error as error:
        detail = f"the request's body is not valid {encoding}, which Content-Encoding names: {error}"
        raise RequestError(ErrorKind.INVALID_REQUEST, detail) from error
