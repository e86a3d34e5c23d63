"""The codecs: round trips, the framing that clients use for snappy, and the limit on decompressed content."""

from random import Random

import cramjam
import pytest

from conveyor.records.compression import GZIP, LZ4, NAMES, NONE, SNAPPY, ZSTD, compress, contains, cut_out, decompress

CODECS = [GZIP, SNAPPY, LZ4, ZSTD]
EVERY = pytest.mark.parametrize("codec", CODECS, ids=[NAMES[codec] for codec in CODECS])


def noise(size: int) -> bytes:
    """Return bytes that compress, but not to almost nothing."""
    return (Random(size).randbytes(64) * (size // 64 + 1))[:size]


def refused(codec: int, content: bytes, limit_bytes: int = 1 << 20) -> str:
    with pytest.raises(ValueError, match="records do not unpack") as error:
        decompress(codec, content, limit_bytes)
    return str(error.value)


@EVERY
@pytest.mark.parametrize("size", [0, 1, (1 << 16) - 1, 1 << 16, (1 << 16) + 1, 600_000])
def test_codec_round_trips(codec: int, size: int) -> None:
    content = noise(size)
    assert decompress(codec, compress(codec, content)) == content


@pytest.mark.parametrize("codec", [NONE, *CODECS])
def test_codec_takes_views(codec: int) -> None:
    assert decompress(codec, memoryview(compress(codec, memoryview(b"records")))) == b"records"


@EVERY
def test_decompress_stops_at_the_limit(codec: int) -> None:
    bomb = compress(codec, bytes(1 << 20))
    assert len(decompress(codec, bomb, 1 << 20)) == 1 << 20
    assert refused(codec, bomb, (1 << 20) - 1).startswith(f"{NAMES[codec]} records do not unpack")


@EVERY
@pytest.mark.parametrize("content", [b"", b"no such thing, in any of them"], ids=["empty", "junk"])
def test_decompress_refuses_what_does_not_unpack(codec: int, content: bytes) -> None:
    refused(codec, content)


@EVERY
def test_decompress_refuses_a_cut_content(codec: int) -> None:
    refused(codec, compress(codec, noise(1000))[:-3])


def test_snappy_is_read_with_and_without_blocks() -> None:
    packed = bytes(cramjam.snappy.compress_raw(b"records"))
    assert decompress(SNAPPY, packed) == b"records"
    block = len(packed).to_bytes(4, "big") + packed
    framed = compress(SNAPPY, b"")[:16] + block + block
    assert decompress(SNAPPY, framed) == b"recordsrecords"


def test_snappy_limit_counts_all_blocks() -> None:
    packed = bytes(cramjam.snappy.compress_raw(bytes(1000)))
    block = len(packed).to_bytes(4, "big") + packed
    refused(SNAPPY, compress(SNAPPY, b"")[:16] + block * 3, 2999)


def test_snappy_block_beyond_the_content_is_refused() -> None:
    refused(SNAPPY, compress(SNAPPY, b"records")[:16] + b"\x7f\xff\xff\xff" + b"some")


def test_snappy_in_very_many_blocks_is_refused() -> None:
    frame, block = compress(SNAPPY, b"")[:16], (1).to_bytes(4, "big") + b"\0"
    assert decompress(SNAPPY, frame + block * 4096) == b""
    assert "more than 4096 blocks" in refused(SNAPPY, frame + block * 4097)


def test_text_is_found_wherever_it_lies() -> None:
    for size in (100, 3 << 20):
        for place in (0, 50, size - 4, *([(1 << 20) - 2, 1 << 20] if size > 100 else [])):
            content = bytes(place) + b"text" + bytes(size - place - 4)
            unpacked = decompress(ZSTD, compress(ZSTD, content))
            assert contains(unpacked, b"text")
            assert not contains(unpacked, b"texts")


def test_ranges_are_cut_out() -> None:
    content = noise(5 << 20)
    ranges = [(1, 9), (1 << 20, 3 << 20), (5 << 20, 5 << 20), (4_000_000, 5 << 20)]
    for wanted in (ranges[:1], ranges, []):
        unpacked = cut_out(decompress(LZ4, compress(LZ4, content)), wanted)
        assert unpacked[:] == b"".join(content[start:end] for start, end in wanted)
