"""The codecs of the batch attributes, from `cramjam`. Output is bounded: a small batch cannot take all memory."""

from collections.abc import Iterator
from typing import Any

import cramjam

from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.ports import Bytes

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
NAMES = ("none", "gzip", "snappy", "lz4", "zstd")
MAX_UNPACKED_BYTES = 1 << 27

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER_BYTES = 16
_FIRST_ROOM_BYTES = 1 << 16


def compress(codec: int, content: Bytes, level: int | None = None) -> bytes:
    """Pack records as a producer would. `codec` is the number in the batch attributes; None: the codec's own level."""
    if codec == GZIP:
        return bytes(cramjam.gzip.compress(content, level))
    if codec == SNAPPY:
        return (
            _XERIAL_MAGIC + bytes([0, 0, 0, 1, 0, 0, 0, 1]) + _xerial_block(bytes(cramjam.snappy.compress_raw(content)))
        )
    if codec == LZ4:
        return bytes(cramjam.lz4.compress(content, level))
    if codec == ZSTD:
        return bytes(cramjam.zstd.compress(content, level))
    return bytes(content)


def decompress(codec: int, content: Bytes, limit_bytes: int = MAX_UNPACKED_BYTES) -> bytes:
    """Unpack the records of a batch. Raises RequestError (CORRUPT_BATCH) if they do not unpack within the limit."""
    if codec == NONE:
        return bytes(content)
    try:
        return _unpack_snappy(bytes(content), limit_bytes) if codec == SNAPPY else _unpack(codec, content, limit_bytes)
    except (cramjam.DecompressionError, OSError, ValueError) as error:
        raise RequestError(ErrorKind.CORRUPT_BATCH, f"{NAMES[codec]} records do not unpack: {error}") from error


def _unpack(codec: int, content: Bytes, limit_bytes: int) -> bytes:
    """Into a buffer that grows up to the limit, so that a small batch cannot take all memory."""
    module: Any = {GZIP: cramjam.gzip, LZ4: cramjam.lz4, ZSTD: cramjam.zstd}[codec]
    room = min(max(8 * len(content), _FIRST_ROOM_BYTES), limit_bytes)
    while True:
        output = bytearray(room)
        try:
            return bytes(memoryview(output)[: module.decompress_into(content, output)])
        except cramjam.DecompressionError:
            if room >= limit_bytes:
                raise
            room = min(room * 8, limit_bytes)


def _unpack_snappy(content: bytes, limit_bytes: int) -> bytes:
    blocks = _xerial_blocks(content) if content.startswith(_XERIAL_MAGIC) else [content]
    unpacked = bytearray()
    for block in blocks:
        if len(unpacked) + cramjam.snappy.decompress_raw_len(block) > limit_bytes:
            raise ValueError(f"more than {limit_bytes} bytes")
        unpacked += cramjam.snappy.decompress_raw(block)
    return bytes(unpacked)


def _xerial_blocks(content: bytes) -> Iterator[bytes]:
    """The blocks of the framing that Kafka clients put around snappy."""
    position = _XERIAL_HEADER_BYTES
    while position < len(content):
        length = int.from_bytes(content[position : position + 4], "big")
        yield content[position + 4 : position + 4 + length]
        position += 4 + length


def _xerial_block(packed: bytes) -> bytes:
    return len(packed).to_bytes(4, "big") + packed
