"""The decoder returns whole frames wherever the stream is cut, and a false length allocates nothing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conveyor.kafka_api.wire.framing import FrameDecoder
from conveyor.kernel.errors import ProtocolViolation
from tests.unit.kafka_api.requests import framed

FRAMES = [b"12345678", b"a longer frame", bytes(300)]
STREAM = b"".join(map(framed, FRAMES))
LIMIT = 1000


def decode(*pieces: bytes) -> list[bytes]:
    decoder = FrameDecoder(LIMIT)
    frames = [bytes(frame) for piece in pieces for frame in decoder.feed(piece)]
    assert decoder.buffered_bytes == sum(map(len, pieces)) - sum(4 + len(frame) for frame in frames)
    return frames


def test_frames_that_arrive_together_are_split() -> None:
    assert decode(STREAM) == FRAMES


@pytest.mark.parametrize("cut", range(len(STREAM)))
def test_frames_are_whole_wherever_the_stream_is_cut(cut: int) -> None:
    assert decode(STREAM[:cut], STREAM[cut:]) == FRAMES


def test_frames_are_whole_when_fed_byte_by_byte() -> None:
    assert decode(*(STREAM[position : position + 1] for position in range(len(STREAM)))) == FRAMES


@given(st.lists(st.binary(min_size=8, max_size=40), max_size=6), st.lists(st.integers(1, 60)))
def test_frames_are_whole_in_pieces_of_any_size(frames: list[bytes], sizes: list[int]) -> None:
    stream, pieces = b"".join(map(framed, frames)), []
    for size in [*sizes, len(stream)]:
        pieces.append(stream[:size])
        stream = stream[size:]
    assert decode(*pieces) == frames


def test_an_unfinished_frame_waits() -> None:
    decoder = FrameDecoder(LIMIT)
    assert decoder.feed(STREAM[:-1]) != []
    assert decoder.buffered_bytes == 303


@pytest.mark.parametrize("length", [-1, -(2**31), 0, 7, LIMIT + 1, 2**31 - 1])
def test_a_length_that_no_request_has_is_a_violation(length: int) -> None:
    with pytest.raises(ProtocolViolation, match=f"{length} bytes: the minimum is 8, the maximum {LIMIT}"):
        FrameDecoder(LIMIT).feed(length.to_bytes(4, "big", signed=True))


@pytest.mark.parametrize("length", [8, LIMIT])
def test_lengths_at_the_limits_are_accepted(length: int) -> None:
    assert decode(framed(bytes(length))) == [bytes(length)]


def test_a_violation_is_found_behind_a_valid_frame() -> None:
    with pytest.raises(ProtocolViolation):
        FrameDecoder(LIMIT).feed(STREAM + b"\xff\xff\xff\xff")


@pytest.mark.parametrize("cut", [2, 4, 200, 303])
def test_a_small_frame_keeps_no_large_one_before_it_in_memory(cut: int) -> None:
    large, small = framed(bytes(300)), framed(FRAMES[0])
    decoder = FrameDecoder(LIMIT)
    frames = [*decoder.feed(large[:cut]), *decoder.feed(large[cut:] + small)]
    assert list(map(bytes, frames)) == [bytes(300), FRAMES[0]]
    assert memoryview(frames[1].obj).nbytes <= len(large) - cut + len(small), "only the bytes that arrived with it"


def test_a_frame_takes_memory_only_for_received_bytes() -> None:
    decoder = FrameDecoder(1 << 30)
    assert decoder.feed((1 << 30).to_bytes(4, "big") + b"few") == []
    assert decoder.buffered_bytes == 7
