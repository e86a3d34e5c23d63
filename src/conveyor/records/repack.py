"""Packing a batch's records with the codec that its topic asks for (`compression.type`)."""

from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.records import compression
from conveyor.records.batch import COMPRESSION_MASK, HEADER_BYTES, BatchHeader
from conveyor.records.compression import Unpacked
from conveyor.records.record import seal_batch
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
    """Whether a sound batch is packed in another way than its topic asks for."""
    return codec_of(topic, header) != header.attributes & COMPRESSION_MASK


def codec_of(topic: TopicSettings, header: BatchHeader) -> int:
    """How a batch is stored: as its topic asks for, or as its producer has packed it."""
    if topic.compression_type == AS_PRODUCED:
        return header.attributes & COMPRESSION_MASK
    return CODECS[topic.compression_type]


def pack_batch(header: BatchHeader, content: Unpacked, topic: TopicSettings) -> bytes:
    """The batch of a header and unpacked records, packed as its topic asks for. Blocks: call it off the event loop.

    Raises RequestError (MESSAGE_TOO_LARGE).
    """
    codec = codec_of(topic, header)
    try:
        packed = compression.compress(
            codec, memoryview(content), _level(codec, topic), topic.max_message_bytes - HEADER_BYTES
        )
    except ValueError as error:
        raise RequestError(ErrorKind.MESSAGE_TOO_LARGE, f"{error} (max.message.bytes)") from None
    return seal_batch(header._replace(attributes=header.attributes & ~COMPRESSION_MASK | codec), packed)


def _level(codec: int, topic: TopicSettings) -> int | None:
    """What `compression.*.level` says; None for the codec's own default."""
    if codec == compression.GZIP:
        return None if topic.compression_gzip_level == _GZIPS_OWN_LEVEL else topic.compression_gzip_level
    levels = {compression.LZ4: topic.compression_lz4_level, compression.ZSTD: topic.compression_zstd_level}
    return levels.get(codec)
