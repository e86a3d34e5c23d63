"""Packing a batch's records with the codec that its topic asks for (`compression.type`); nothing else in it changes."""

from crc32c import crc32c

from conveyor.kernel.ports import Bytes
from conveyor.kernel.settings import TopicSettings
from conveyor.log import compression
from conveyor.log.batch import (
    COMPRESSION_MASK,
    CRC_START,
    HEADER,
    HEADER_BYTES,
    LENGTH_PREFIX_BYTES,
    MAGIC_END,
    read_header,
)

AS_PRODUCED = "producer"
_GZIPS_OWN_LEVEL = -1
CODECS = {
    "uncompressed": compression.NONE,
    "gzip": compression.GZIP,
    "snappy": compression.SNAPPY,
    "lz4": compression.LZ4,
    "zstd": compression.ZSTD,
}


def wants_recompression(topic: TopicSettings, batch: Bytes) -> bool:
    """Whether a sound batch is packed in another way than its topic asks for."""
    if topic.compression_type == AS_PRODUCED:
        return False
    return read_header(batch).attributes & COMPRESSION_MASK != CODECS[topic.compression_type]


def recompress(batch: Bytes, topic: TopicSettings) -> bytes:
    """The batch with its records packed anew as its topic asks for. Takes its time: call it off the event loop.

    Raises RequestError (CORRUPT_BATCH).
    """
    header = read_header(batch)
    codec = CODECS[topic.compression_type]
    content = compression.decompress(header.attributes & COMPRESSION_MASK, memoryview(batch)[HEADER_BYTES:])
    packed = compression.compress(codec, content, _level(codec, topic))
    attributes = header.attributes & ~COMPRESSION_MASK | codec
    length = HEADER_BYTES - LENGTH_PREFIX_BYTES + len(packed)
    out = bytearray(HEADER.pack(*header._replace(batch_length=length, attributes=attributes, crc=0))) + packed
    out[MAGIC_END:CRC_START] = crc32c(memoryview(out)[CRC_START:]).to_bytes(4, "big")
    return bytes(out)


def _level(codec: int, topic: TopicSettings) -> int | None:
    """What `compression.*.level` says; None for the codec's own default."""
    if codec == compression.GZIP:
        return None if topic.compression_gzip_level == _GZIPS_OWN_LEVEL else topic.compression_gzip_level
    levels = {compression.LZ4: topic.compression_lz4_level, compression.ZSTD: topic.compression_zstd_level}
    return levels.get(codec)
