"""Recompressing a batch changes its bytes and keeps its records."""

from random import Random

import pytest

from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.records.batch import batch_is_intact, read_header
from conveyor.records.compression import NAMES
from conveyor.records.record import decode_records, encode_batch, unpacked_records
from conveyor.records.repack import CODECS, pack_batch, wants_recompression
from conveyor.settings.tree import TopicSettings, topic_settings

RECORDS = [(1000 + number, b"key", bytes(100), [("name", None)]) for number in range(20)]


def recompress(batch: bytes, topic: TopicSettings) -> bytes:
    return bytes(pack_batch(*unpacked_records(batch), topic).content)


@pytest.mark.parametrize("wanted", CODECS)
@pytest.mark.parametrize("codec", range(len(NAMES)))
def test_recompressed_batch_has_the_same_records(codec: int, wanted: str) -> None:
    batch = encode_batch(RECORDS, codec=codec, producer_id=7, producer_epoch=1, base_sequence=40)
    topic = TopicSettings(compression_type=wanted)
    packed = recompress(batch, topic)
    assert list(decode_records(packed)) == list(decode_records(batch))
    assert batch_is_intact(packed)
    before, after = read_header(batch), read_header(packed)
    kept = {"attributes": after.attributes, "crc": after.crc, "batch_length": after.batch_length}
    assert before._replace(**kept) == after
    assert not wants_recompression(topic, after)


def test_batch_is_left_alone_where_the_topic_takes_it_as_produced() -> None:
    header = read_header(encode_batch(RECORDS, codec=1))
    assert not wants_recompression(TopicSettings(), header)
    assert wants_recompression(TopicSettings(compression_type="zstd"), header)


def test_batch_that_is_too_large_when_packed_anew_is_refused() -> None:
    batch = encode_batch(RECORDS, codec=CODECS["zstd"])
    topic = TopicSettings(compression_type="uncompressed", max_message_bytes=len(batch))
    with pytest.raises(RequestError, match=r"max\.message\.bytes") as refused:
        recompress(batch, topic)
    assert refused.value.kind is ErrorKind.MESSAGE_TOO_LARGE


@pytest.mark.parametrize(
    ("codec", "low", "high"), [("gzip", -1, -1), ("gzip", 1, 9), ("lz4", 1, 17), ("zstd", -131_072, 22)]
)
def test_level_of_the_topic_says_how_hard_a_batch_is_packed(codec: str, low: int, high: int) -> None:
    words = Random(1).choices([b"one", b"two", b"three", b"four", b"five"], k=4000)
    batch = encode_batch([(0, None, b" ".join(words), ())])
    loose, tight = (
        recompress(
            batch, topic_settings(TopicSettings(compression_type=codec), {f"compression.{codec}.level": str(level)})
        )
        for level in (low, high)
    )
    assert list(decode_records(loose)) == list(decode_records(tight)) == list(decode_records(batch))
    assert len(tight) < len(loose) or codec == "lz4" or low == high
