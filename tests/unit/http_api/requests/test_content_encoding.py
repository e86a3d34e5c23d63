"""Packed bodies are unpacked in whatever pieces they come, no further than asked for, and refused if broken."""

import gzip
import zlib
from functools import partial
from itertools import count

import pytest

from conveyor.http_api.requests.content_encoding import Unpacking

TEXT = b"to be, or not to be " * 20
RAW = zlib.compress(TEXT)[2:-4]
gzipped = partial(gzip.compress, mtime=0)
PACKED = {
    "gzip": ("gzip", gzipped(TEXT)),
    "members": ("gzip", gzipped(TEXT[:30]) + gzipped(b"") + gzipped(TEXT[30:])),
    "deflate": ("deflate", zlib.compress(TEXT)),
    "raw deflate": ("deflate", RAW),
}


def unpack(encoding: str, packed: bytes, piece_bytes: int = 1 << 20, most_bytes: int = 1 << 20) -> bytes:
    unpacking = Unpacking(encoding, most_bytes)
    for begin in range(0, len(packed), piece_bytes):
        unpacking.feed(packed[begin : begin + piece_bytes])
    return unpacking.finish()


@pytest.mark.parametrize(("encoding", "packed"), PACKED.values(), ids=PACKED)
@pytest.mark.parametrize("piece_bytes", [1, 7, 1000])
def test_body_comes_in_pieces(encoding: str, packed: bytes, piece_bytes: int) -> None:
    assert unpack(encoding, packed, piece_bytes) == TEXT


@pytest.mark.parametrize(("encoding", "packed"), PACKED.values(), ids=PACKED)
def test_body_that_is_cut_short_is_refused(encoding: str, packed: bytes) -> None:
    ends = {len(gzipped(TEXT[:30])), len(gzipped(TEXT[:30]) + gzipped(b""))}
    for size in set(range(len(packed))) - (ends if packed == PACKED["members"][1] else set()):
        with pytest.raises(zlib.error, match=r"^it is cut short$"):
            unpack(encoding, packed[:size])


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
def test_body_that_is_no_sound_one_is_refused(encoding: str, packed: bytes) -> None:
    with pytest.raises(zlib.error):
        unpack(encoding, packed)


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_body_is_unpacked_no_further_than_asked_for(encoding: str) -> None:
    bomb = gzipped(bytes(1 << 22)) if encoding == "gzip" else zlib.compress(bytes(1 << 22))
    unpacking = Unpacking(encoding, 1000)
    assert unpacking.feed(bomb[:100]) == 1000
    assert unpacking.feed(bomb[100:]) == 1000


def test_body_of_just_the_most_bytes_is_whole() -> None:
    assert unpack("gzip", gzipped(TEXT), most_bytes=len(TEXT) + 1) == TEXT
