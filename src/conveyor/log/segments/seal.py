"""A segment's seal, `<base>.seal`: it asserts that the segment is on the disk, complete, and identifies its index
files.

    0 CRC-32C of the rest uint32 | 4 version int16 | 6 size of the segment int64 | 14 next offset int64
    22 largest timestamp int64 | 30 time of the last append, in ms, int64 | 38 CRC-32C of the offset index uint32
    42 CRC-32C of the time index uint32 | 46 whether the log ends here bool | 47 count of aborted transactions int32
    51 CRC-32C of the transaction index uint32

Version 3 ended before the count. A count of -1 says that the segment was sealed before the aborted transactions were
known.
It is written after the segment was flushed and its index files exist, and removed before the segment grows again. With
it, a start knows a segment's bounds without reading the segment. "The log ends here" is true if a clean stop wrote the
seal. Otherwise the next segment's file existed on the disk before this seal did.
"""

from struct import Struct

import msgspec
from crc32c import crc32c

_VERSION = 4
_CHECKSUM = Struct(">I")
_V3_FIELDS = Struct(">hqqqqII?")
_FIELDS = Struct(">hqqqqII?iI")


class Seal(msgspec.Struct, frozen=True, kw_only=True):
    """A segment's bounds in bytes, offsets and ms, its indexes' checksums, and whether it is the log's last segment.

    The checksums of bounds whose index files are not written yet are 0.
    """

    size: int
    next_offset: int
    max_timestamp: int
    last_append_ms: int
    offset_index_crc: int = 0
    time_index_crc: int = 0
    ends_log: bool
    aborted_count: int = 0
    aborted_crc: int = 0


class FoundSeal(msgspec.Struct, frozen=True, kw_only=True):
    """The seal that a start has found of a segment. seal: None if it is damaged. file_size: the size of the segment.

    counts: the segment was flushed: a seal of a clean stop counts only in the log's last segment.
    """

    seal: Seal | None
    file_size: int
    counts: bool = True

    @property
    def ended_log(self) -> bool:
        """True if a clean stop wrote the seal, whatever its size."""
        return self.seal is not None and self.seal.ends_log

    @property
    def is_of_other_file(self) -> bool:
        """Whether the segment has another size, although no append has changed it."""
        return self.seal is not None and not self.seal.ends_log and self.seal.size != self.file_size

    @property
    def was_longer(self) -> bool:
        """True if the segment was longer at a clean stop."""
        return self.seal is not None and self.seal.ends_log and self.seal.size > self.file_size


def encode_seal(seal: Seal) -> bytes:
    """Return the file's content."""
    bounds = seal.size, seal.next_offset, seal.max_timestamp, seal.last_append_ms
    body = _FIELDS.pack(_VERSION, *bounds, seal.offset_index_crc, seal.time_index_crc, seal.ends_log,
                        seal.aborted_count, seal.aborted_crc)  # fmt: skip
    return _CHECKSUM.pack(crc32c(body)) + body


def decode_seal(content: bytes) -> Seal | None:
    """Return the seal, or None if the content is damaged or has another version."""
    size = len(content) - _CHECKSUM.size
    if size not in (_V3_FIELDS.size, _FIELDS.size) or _CHECKSUM.unpack_from(content)[0] != crc32c(content[4:]):
        return None
    version, *fields = (_FIELDS if size == _FIELDS.size else _V3_FIELDS).unpack_from(content, _CHECKSUM.size)
    if version != (_VERSION if size == _FIELDS.size else 3):
        return None
    return Seal(**dict(zip(Seal.__struct_fields__, fields, strict=False)))
