"""Recompressing a batch with the codec that its topic demands (`compression.type`)."""

from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.records import compression
from conveyor.records.batch import COMPRESSION_MASK, HEADER_BYTES, BatchHeader
from conveyor.records.checked_batch import CheckedBatch, rebuild_checked
from conveyor.records.compression import Unpacked
from conveyor.settings.tree import TopicSettings

AS_PRODUCED = "producer"
_GZIPS_OWN_LEVEL = -1
CODECS = {
    "uncompressed": compression.NONE,
    "gzip": compression.GZIP,
    "snappy": compression.SNAPPY,
    "lz4": compression.LZ4,
    "zstd": compression.ZSTD,
}


def wants_recompression(topic: TopicSettings, header: BatchHeader) -> bool:
    """Return whether a valid batch has a different codec than its topic demands."""
    return codec_of(topic, header) != header.attributes & COMPRESSION_MASK


def codec_of(topic: TopicSettings, header: BatchHeader) -> int:
    """Return the codec in which a batch is stored: the topic's, or the producer's if the topic demands none."""
    if topic.compression_type == AS_PRODUCED:
        return header.attributes & COMPRESSION_MASK
    return CODECS[topic.compression_type]


def pack_batch(header: BatchHeader, content: Unpacked, topic: TopicSettings) -> CheckedBatch:
    """Compress the records of a checked batch as the topic demands. Blocks: call it off the event loop.

    header: see `rebuild_checked`. Raises RequestError: MESSAGE_TOO_LARGE, INVALID_RECORD.
    """
    codec, max_bytes = codec_of(topic, header), topic.max_message_bytes
    try:
        packed = compression.compress(codec, memoryview(content), _level(codec, topic), max_bytes - HEADER_BYTES)
    except ValueError as error:
        raise RequestError(ErrorKind.MESSAGE_TOO_LARGE, f"{error} (max.message.bytes)") from None
    attributes = header.attributes & ~COMPRESSION_MASK | codec
    return rebuild_checked(header._replace(attributes=attributes), packed, max_bytes)


def _level(codec: int, topic: TopicSettings) -> int | None:
    """Return the level from `compression.*.level`; None for the codec's default."""
    if codec == compression.GZIP:
        return None if topic.compression_gzip_level == _GZIPS_OWN_LEVEL else topic.compression_gzip_level
    levels = {compression.LZ4: topic.compression_lz4_level, compression.ZSTD: topic.compression_zstd_level}
    return levels.get(codec)
