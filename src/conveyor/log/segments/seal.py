"""A segment's seal, `<base>.seal`: this segment is on the disk, complete, and its index files are these.

    0 CRC-32C of the rest uint32 | 4 version int16 | 6 size of the segment int64 | 14 next offset int64
    22 largest timestamp int64 | 30 time of the last append, in ms, int64 | 38 CRC-32C of the offset index uint32
    42 CRC-32C of the time index uint32 | 46 whether the log ends here bool

It is written after the segment was flushed and its index files are there, and removed before the segment grows again.
With it a start knows a segment's bounds and reads nothing of it. The log ends here: a clean stop has written it. Not
so: the segment after this one was on the disk before this seal was.
"""

from dataclasses import dataclass
from struct import Struct

from crc32c import crc32c

_VERSION = 3
_CHECKSUM = Struct(">I")
_FIELDS = Struct(">hqqqqII?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Seal:
    """Bounds of a segment in bytes, offsets and ms, the checksums of its indexes, and whether it is a log's last."""

    size: int
    next_offset: int
    max_timestamp: int
    last_append_ms: int
    offset_index_crc: int
    time_index_crc: int
    ends_log: bool


def encode_seal(seal: Seal) -> bytes:
    """The file's content."""
    bounds = seal.size, seal.next_offset, seal.max_timestamp, seal.last_append_ms
    body = _FIELDS.pack(_VERSION, *bounds, seal.offset_index_crc, seal.time_index_crc, seal.ends_log)
    return _CHECKSUM.pack(crc32c(body)) + body


def decode_seal(content: bytes) -> Seal | None:
    """The seal, or None for a file that does not check out."""
    if len(content) != _CHECKSUM.size + _FIELDS.size or _CHECKSUM.unpack_from(content)[0] != crc32c(content[4:]):
        return None
    version, size, next_offset, max_timestamp, last_append_ms, offset_index_crc, time_index_crc, ends_log = (
        _FIELDS.unpack_from(content, _CHECKSUM.size)
    )
    if version != _VERSION:
        return None
    return Seal(
        size=size,
        next_offset=next_offset,
        max_timestamp=max_timestamp,
        last_append_ms=last_append_ms,
        offset_index_crc=offset_index_crc,
        time_index_crc=time_index_crc,
        ends_log=ends_log,
    )
