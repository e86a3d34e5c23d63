"""The codecs of the batch attributes, from `cramjam`. Output is bounded: a small batch cannot exhaust memory."""

import sys
from collections.abc import Iterator, Sequence
from itertools import islice
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
from typing import Any

import cramjam

from conveyor.kernel.ports import Bytes

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
NAMES = ("none", "gzip", "snappy", "lz4", "zstd")
MAX_UNPACKED_BYTES = 1 << 27
NO_LIMIT = sys.maxsize

Unpacked = bytes | mmap
"""The decompressed records of a batch. A slice is bytes, an index is a number; see also `contains`."""

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + bytes([0, 0, 0, 1, 0, 0, 0, 1])
_MAX_BLOCKS = 1 << 12
"""The most snappy blocks in one batch. Clients write blocks of 32 KiB, so this many hold the largest allowed content.
"""

_FIRST_ROOM_BYTES = 1 << 16
_COPIED_BYTES = 1 << 20
_TOO_SMALL = "failed to write whole buffer"


def compress(codec: int, content: Bytes, level: int | None = None, limit_bytes: int = NO_LIMIT) -> bytes:
    """Compress records as a producer would. Raises ValueError if the result is larger than the limit.

    codec: the number in the batch attributes. level: None for the codec's default.
    """
    packed = _compress(codec, content, level)
    if len(packed) > limit_bytes:
        raise ValueError(f"{NAMES[codec]} records take {len(packed)} bytes, more than {limit_bytes}")
    if codec == SNAPPY:
        return _XERIAL_HEADER + len(packed).to_bytes(4, "big") + bytes(packed)
    return bytes(packed)


def decompress(codec: int, content: Bytes, limit_bytes: int = MAX_UNPACKED_BYTES) -> Unpacked:
    """Decompress the records of a batch. Raises ValueError if the content is invalid or larger than the limit.

    Content above `_COPIED_BYTES` has memory pages of its own: clearing or copying it would hold the interpreter's lock.
    """
    if codec == NONE:
        return cut_out(content, [(0, len(content))])
    try:
        return _unpack_snappy(content, limit_bytes) if codec == SNAPPY else _unpack(codec, content, limit_bytes)
    except (cramjam.DecompressionError, OSError, ValueError, OverflowError) as error:
        raise ValueError(f"{NAMES[codec]} records do not unpack: {error}") from error


def contains(content: Unpacked, text: bytes) -> bool:
    """Return whether the decompressed records contain a text."""
    if isinstance(content, bytes):
        return text in content
    parts = range(0, len(content), _COPIED_BYTES)
    return any(text in content[start : start + _COPIED_BYTES + len(text) - 1] for start in parts)


def cut_out(content: Bytes | mmap, ranges: Sequence[tuple[int, int]]) -> Unpacked:
    """Return a copy of some ranges [start, end), concatenated."""
    size = sum(end - start for start, end in ranges)
    with memoryview(content) as view:
        if size <= _COPIED_BYTES:
            return b"".join([view[start:end] for start, end in ranges])
        room = _pages(size)
        for start, end in ranges:
            for part in range(start, end, _COPIED_BYTES):
                room.write(view[part : min(end, part + _COPIED_BYTES)])
        return room


def _compress(codec: int, content: Bytes, level: int | None) -> Any:
    if codec == GZIP:
        return cramjam.gzip.compress(content, level)
    if codec == SNAPPY:
        return cramjam.snappy.compress_raw(content)
    if codec == LZ4:
        return cramjam.lz4.compress(content, level)
    if codec == ZSTD:
        return cramjam.zstd.compress(content, level)
    return content


def _unpack(codec: int, content: Bytes, limit_bytes: int) -> Unpacked:
    """Decompress into a buffer that grows up to the limit, so that a small batch cannot exhaust memory."""
    module: Any = {GZIP: cramjam.gzip, LZ4: cramjam.lz4, ZSTD: cramjam.zstd}[codec]
    size = min(max(8 * len(content), _FIRST_ROOM_BYTES), limit_bytes)
    while True:
        room = _room(size)
        try:
            return _cut(room, module.decompress_into(content, memoryview(room)))
        except cramjam.DecompressionError as error:
            if size >= limit_bytes or _TOO_SMALL not in str(error):
                raise
            size = min(size * 8, limit_bytes)


def _unpack_snappy(content: Bytes, limit_bytes: int) -> Unpacked:
    is_framed = bytes(content[:8]) == _XERIAL_MAGIC
    blocks = list(islice(_xerial_blocks(content), _MAX_BLOCKS + 1)) if is_framed else [memoryview(content)]
    if len(blocks) > _MAX_BLOCKS:
        raise ValueError(f"more than {_MAX_BLOCKS} blocks")
    sizes = [cramjam.snappy.decompress_raw_len(block) for block in blocks]
    if sum(sizes) > limit_bytes:
        raise ValueError(f"more than {limit_bytes} bytes")
    room = _room(max(1, sum(sizes)))
    position = 0
    with memoryview(room) as view:
        for block, size in zip(blocks, sizes, strict=True):
            if size != cramjam.snappy.decompress_raw_into(block, view[position : position + size]):
                raise ValueError("a block is shorter than its header says")
            position += size
    return _cut(room, position)


def _room(size: int) -> bytearray | mmap:
    return bytearray(size) if size <= _COPIED_BYTES else _pages(size)


def _pages(size: int) -> mmap:
    return mmap(-1, size, MAP_PRIVATE | MAP_ANONYMOUS)


def _cut(room: bytearray | mmap, size: int) -> Unpacked:
    """Return the first bytes of a buffer. Large content is not copied."""
    if isinstance(room, bytearray) or size <= _COPIED_BYTES:
        return bytes(memoryview(room)[:size])
    try:
        room.resize(size)
    except SystemError:  # Not every system supports this.
        return room[:size]
    return room


def _xerial_blocks(content: Bytes) -> Iterator[memoryview]:
    """Yield the blocks of the framing that Kafka clients use for snappy."""
    view = memoryview(content)
    position = len(_XERIAL_HEADER)
    while position < len(view):
        length = int.from_bytes(view[position : position + 4], "big")
        yield view[position + 4 : position + 4 + length]
        position += 4 + length
