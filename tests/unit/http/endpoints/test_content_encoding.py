"""Compressed bodies are decompressed in pieces of any size, up to the limit, and refused if invalid."""

import gzip
import zlib
from functools import partial
from itertools import count

import pytest

from conveyor.http.endpoints import content_encoding
from conveyor.http.endpoints.content_encoding import Decompressor
from conveyor.kernel.ports import Bytes

TEXT = b"to be, or not to be " * 20
RAW = zlib.compress(TEXT)[2:-4]
gzipped = partial(gzip.compress, mtime=0)
PACKED = {
    "gzip": ("gzip", gzipped(TEXT)),
    "members": ("gzip", gzipped(TEXT[:30]) + gzipped(b"") + gzipped(TEXT[30:])),
    "deflate": ("deflate", zlib.compress(TEXT)),
    "raw deflate": ("deflate", RAW),
}


def decompress(encoding: str, packed: bytes, piece_bytes: int = 1 << 20, max_bytes: int = 1 << 20) -> bytes:
    decompressor = Decompressor(encoding, max_bytes)
    for begin in range(0, len(packed), piece_bytes):
        decompressor.feed(packed[begin : begin + piece_bytes])
    return decompressor.finish()


@pytest.mark.parametrize(("encoding", "packed"), PACKED.values(), ids=PACKED)
@pytest.mark.parametrize("piece_bytes", [1, 7, 1000])
def test_body_is_decompressed_in_pieces(encoding: str, packed: bytes, piece_bytes: int) -> None:
    assert decompress(encoding, packed, piece_bytes) == TEXT


@pytest.mark.parametrize(("encoding", "packed"), PACKED.values(), ids=PACKED)
def test_truncated_body_is_refused(encoding: str, packed: bytes) -> None:
    ends = {len(gzipped(TEXT[:30])), len(gzipped(TEXT[:30]) + gzipped(b""))}
    for size in set(range(len(packed))) - (ends if packed == PACKED["members"][1] else set()):
        with pytest.raises(zlib.error, match=r"^it is truncated$"):
            decompress(encoding, packed[:size])


@pytest.mark.parametrize(
    ("encoding", "packed"),
    [
        ("gzip", b"plain"),
        ("gzip", zlib.compress(TEXT)),
        ("gzip", gzipped(TEXT) + b"plain"),
        ("gzip", gzipped(TEXT)[:-8] + bytes(8)),
        ("gzip", gzipped(b"") * 1001),
        ("deflate", b"hello"),
        ("deflate", b"plain"),
        ("deflate", zlib.compress(TEXT) + b"x"),
        ("deflate", RAW * 2),
        ("deflate", zlib.compress(TEXT)[:-4] + bytes(4)),
    ],
    ids=count(),
)
def test_invalid_body_is_refused(encoding: str, packed: bytes) -> None:
    with pytest.raises(zlib.error):
        decompress(encoding, packed)


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_body_is_decompressed_only_up_to_the_limit(encoding: str) -> None:
    bomb = gzipped(bytes(1 << 22)) if encoding == "gzip" else zlib.compress(bytes(1 << 22))
    decompressor = Decompressor(encoding, 1000)
    assert decompressor.feed(bomb[:100]) == 1000
    assert decompressor.feed(bomb[100:]) == 1000


def test_body_of_exactly_the_limit_is_complete() -> None:
    assert decompress("gzip", gzipped(TEXT), max_bytes=len(TEXT) + 1) == TEXT


def test_long_body_is_decompressed_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """zlib copies what follows a member."""
    fed: list[int] = []
    plain_feed = Decompressor.feed

    def feed(self: Decompressor, packed: Bytes) -> int:
        fed.append(len(packed))
        return plain_feed(self, packed)

    monkeypatch.setattr(Decompressor, "feed", feed)
    content = bytes(range(256)) * 1_000
    packed = gzip.compress(b"") * 999 + gzip.compress(content, 0)
    assert content_encoding.decompress(packed, "gzip", len(content)) == content
    assert max(fed) <= 64 << 10
