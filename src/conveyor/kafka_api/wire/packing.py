"""Packs the protocol's lengths and strings by hand, for the two responses on the hot path.

Topic names and small numbers recur, so they are cached.
"""

from functools import lru_cache
from struct import Struct

_INT16 = Struct(">h")
_INT32 = Struct(">i")


def unsigned_varint(number: int) -> bytes:
    """Encode a number with 7 bits per byte, lowest first. The top bit is set if more bytes follow."""
    if number < 0x80:
        return bytes((number,))
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


@lru_cache(256)
def array_length(count: int, flexible: bool) -> bytes:
    """Encode the number of items that precedes an array. Flexible versions add 1."""
    return unsigned_varint(count + 1) if flexible else _INT32.pack(count)


def null_array(flexible: bool) -> bytes:
    return b"\0" if flexible else _INT32.pack(-1)


@lru_cache(256)
def string(text: str, flexible: bool) -> bytes:
    encoded = text.encode()
    return (unsigned_varint(len(encoded) + 1) if flexible else _INT16.pack(len(encoded))) + encoded


def nullable_string(text: str | None, flexible: bool) -> bytes:
    if text is None:
        return b"\0" if flexible else _INT16.pack(-1)
    return string(text, flexible)


def records_length(size: int, flexible: bool) -> bytes:
    """Encode the length that precedes a records field, which is never null."""
    return unsigned_varint(size + 1) if flexible else _INT32.pack(size)
