"""Frames of a link, from bytes that arrive in any portions."""

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conveyor.adapters.peers.peer_framing import KEEP_ALIVE, LENGTH, PeerFrames
from conveyor.kernel.errors import ProtocolViolation


def framed(*frames: bytes) -> bytes:
    return b"".join(LENGTH.pack(len(frame)) + frame for frame in frames)


@given(st.lists(st.binary(max_size=200)), st.lists(st.integers(1, 90), min_size=1))
def test_frames_are_found_in_any_portions(frames: list[bytes], sizes: list[int]) -> None:
    content, decoder, found = framed(*frames), PeerFrames(200), list[bytes]()
    position = turn = 0
    while position < len(content):
        size = sizes[turn % len(sizes)]
        found += map(bytes, decoder.add(content[position : position + size]))
        position, turn = position + size, turn + 1

    assert found == [frame for frame in frames if frame]


def test_keep_alives_are_no_frames() -> None:
    assert not list(PeerFrames(10).add(KEEP_ALIVE * 3))


def test_a_length_beyond_the_limit_is_a_violation_at_once() -> None:
    decoder = PeerFrames(10)
    taken = decoder.add(framed(b"good") + LENGTH.pack(11))

    assert bytes(next(taken)) == b"good"
    with pytest.raises(ProtocolViolation, match="a frame of 11 bytes"):
        next(taken)


def test_a_large_frame_is_never_there_twice() -> None:
    piece, count = bytes(1 << 18), 64
    decoder = PeerFrames(count << 18)
    tracemalloc.start()
    list(decoder.add(LENGTH.pack(count << 18)))
    frames = [frame for _ in range(count) for frame in decoder.add(piece)]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert [len(frame) for frame in frames] == [count << 18]
    assert peak < 1.3 * (count << 18)


def test_an_announced_length_takes_no_memory() -> None:
    decoder = PeerFrames(1 << 30)
    tracemalloc.start()
    list(decoder.add(LENGTH.pack(1 << 30) + b"some"))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak < 1 << 20
