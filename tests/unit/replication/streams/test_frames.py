"""The frames of a replication stream: their bytes, and what a peer may not send."""

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conveyor.kernel.errors import ProtocolViolation
from conveyor.kernel.ids import TopicId
from conveyor.kernel.peers import MAX_FRAME_BYTES
from conveyor.records.batch import LENGTH_PREFIX_BYTES
from conveyor.replication.streams.frames import (
    MAX_ENTRIES,
    WINDOW_BYTES,
    Diverging,
    Follow,
    FollowerProgress,
    FollowRefusal,
    Portion,
    ProgressReport,
    Rejected,
    SentEpochs,
    Unfollow,
    decode_from_follower,
    decode_from_leader,
    encode_diverging,
    encode_epochs,
    encode_follows,
    encode_portions,
    encode_progress,
    encode_rejected,
    encode_unfollow,
)
from conveyor.replication.streams.leader_end import FRAME_BYTES

TOPIC = TopicId(UUID("00112233-4455-6677-8899-aabbccddeeff"))
FOLLOW = Follow(5, TOPIC, 2, 7, 300, 6, 200, 10)
FOLLOW_BYTES = bytes.fromhex(
    "01 0001 00000005 00112233445566778899aabbccddeeff 00000002 00000007 000000000000012c 00000006 00000000000000c8"
    " 000000000000000a"
)
UNFOLLOW_BYTES = bytes.fromhex("02 0002 00000005 00000006")
PROGRESS_BYTES = bytes.fromhex("03 00000400 0001 00000005 00000007 000000000000012d 00000000000000c8 000000000000000a")
PORTION_FIELDS = (5, 7, 10, 290, 100, 90, 300, 303, 4)
PORTIONS_BYTES = bytes.fromhex(
    "10 0001 00000005 00000007 000000000000000a 0000000000000122 0000000000000064 000000000000005a 000000000000012c"
    " 000000000000012f 00000004"
)
DIVERGING_BYTES = bytes.fromhex("11 00000005 00000003 0000000000000064")
REJECTED_BYTES = bytes.fromhex("12 00000005 03")
EPOCHS = SentEpochs(5, 22, ((3, 0), (7, 100)))
EPOCHS_BYTES = bytes.fromhex("13 00000005 0000000000000016 0002 00000003 0000000000000000 00000007 0000000000000064")


def test_every_batch_fits_into_a_frame_with_what_is_sent_before_it() -> None:
    largest_batch = LENGTH_PREFIX_BYTES + (1 << 31) - 1
    fields = encode_portions([PORTION_FIELDS] * MAX_ENTRIES)
    assert len(fields) + FRAME_BYTES + largest_batch <= MAX_FRAME_BYTES
    assert MAX_FRAME_BYTES + WINDOW_BYTES < 1 << 32, "lengths and returned bytes are u32"


def test_frames_of_a_follower() -> None:
    assert encode_follows([FOLLOW]) == FOLLOW_BYTES
    assert decode_from_follower(FOLLOW_BYTES) == (FOLLOW,)
    assert encode_unfollow([5, 6]) == UNFOLLOW_BYTES
    assert decode_from_follower(UNFOLLOW_BYTES) == Unfollow((5, 6))
    report = ProgressReport(1024, (FollowerProgress(5, 7, 301, 200, 10),))
    assert encode_progress(*report) == PROGRESS_BYTES
    assert decode_from_follower(PROGRESS_BYTES) == report


def test_frames_of_a_leader() -> None:
    assert encode_portions([PORTION_FIELDS]) == PORTIONS_BYTES
    assert decode_from_leader(PORTIONS_BYTES + b"data") == (
        Portion(5, 7, 10, 290, 100, 90, 300, 303, memoryview(b"data")),
    )
    assert encode_diverging(Diverging(5, 3, 100)) == DIVERGING_BYTES
    assert decode_from_leader(DIVERGING_BYTES) == Diverging(5, 3, 100)
    assert encode_rejected(Rejected(5, FollowRefusal.FENCED_EPOCH)) == REJECTED_BYTES
    assert decode_from_leader(REJECTED_BYTES) == Rejected(5, FollowRefusal.FENCED_EPOCH)
    assert encode_epochs(EPOCHS) == EPOCHS_BYTES
    assert decode_from_leader(EPOCHS_BYTES) == EPOCHS


def test_portions_of_several_partitions_are_divided_by_their_lengths() -> None:
    fields = [(1, 0, 0, 0, 0, 0, 0, 2, 3), (2, 0, 0, 0, 0, 0, 4, 4, 0), (3, 0, 0, 0, 0, 0, 0, 1, 2)]
    portions = decode_from_leader(encode_portions(fields) + b"abcde")
    assert isinstance(portions, tuple)
    assert [bytes(each.content) for each in portions if isinstance(each, Portion)] == [b"abc", b"", b"de"]


@pytest.mark.parametrize("whole", [FOLLOW_BYTES, UNFOLLOW_BYTES, PROGRESS_BYTES])
def test_a_follower_sends_whole_frames_only(whole: bytes) -> None:
    for frame in [*(whole[:end] for end in range(len(whole))), whole + b"\0"]:
        with pytest.raises(ProtocolViolation):
            decode_from_follower(frame)


@pytest.mark.parametrize("whole", [PORTIONS_BYTES + b"data", DIVERGING_BYTES, REJECTED_BYTES, EPOCHS_BYTES])
def test_a_leader_sends_whole_frames_only(whole: bytes) -> None:
    for frame in [*(whole[:end] for end in range(len(whole))), whole + b"\0"]:
        with pytest.raises(ProtocolViolation):
            decode_from_leader(frame)


@pytest.mark.parametrize(
    "frame",
    [
        b"\x10\0\0",
        b"\x63\0\0",
        encode_follows([FOLLOW._replace(partition=-1)]),
        encode_follows([FOLLOW._replace(leader_epoch=-1)]),
        encode_follows([FOLLOW._replace(last_epoch=-2)]),
        encode_follows([FOLLOW._replace(end_offset=-1, flushed_offset=-1)]),
        encode_follows([FOLLOW._replace(flushed_offset=301)]),
        encode_follows([FOLLOW._replace(log_start_offset=301)]),
        encode_follows([FOLLOW._replace(log_start_offset=-1)]),
        encode_progress(0, [FollowerProgress(5, 7, 3, 4, 0)]),
        encode_progress(0, [FollowerProgress(5, 7, 3, -1, 0)]),
        encode_progress(0, [FollowerProgress(5, 7, 3, 3, 4)]),
        encode_progress(0, [FollowerProgress(5, 7, 3, 3, -1)]),
        encode_unfollow(list(range(MAX_ENTRIES + 1))),
    ],
)
def test_lies_of_a_follower_are_refused(frame: bytes) -> None:
    with pytest.raises(ProtocolViolation):
        decode_from_follower(frame)


@pytest.mark.parametrize(
    "frame",
    [
        b"\x01\0\0",
        encode_portions([(5, -1, 10, 290, 100, 90, 300, 303, 0)]),
        encode_portions([(5, 7, 10, 290, 100, -1, 300, 303, 0)]),
        encode_portions([(5, 7, 291, 290, 100, 90, 300, 303, 0)]),
        encode_portions([(5, 7, -1, 290, 100, 90, 300, 303, 0)]),
        encode_portions([(5, 7, 10, 290, 100, 90, 300, 299, 0)]),
        encode_portions([(5, 7, 10, 290, 100, 90, 300, 300, 1)]) + b"a",
        encode_portions([(5, 7, 10, 290, 100, 90, 300, 301, (1 << 32) - 1)]) + b"a",
        encode_diverging(Diverging(5, -2, 3)),
        encode_diverging(Diverging(5, 0, -1)),
        REJECTED_BYTES[:-1] + b"\x63",
        encode_epochs(SentEpochs(5, -1, ())),
        encode_epochs(SentEpochs(5, 0, ((-1, 0),))),
        encode_epochs(SentEpochs(5, 0, ((3, 0), (3, 1)))),
        encode_epochs(SentEpochs(5, 0, ((3, -1), (4, 1)))),
        encode_epochs(SentEpochs(5, 0, ((3, 1), (4, 1)))),
    ],
)
def test_lies_of_a_leader_are_refused(frame: bytes) -> None:
    with pytest.raises(ProtocolViolation):
        decode_from_leader(frame)


@given(kind=st.sampled_from([1, 2, 3, 16, 17, 18, 19]), rest=st.binary(max_size=200))
def test_any_bytes_are_a_frame_or_a_violation(kind: int, rest: bytes) -> None:
    for decode in (decode_from_follower, decode_from_leader):
        try:
            decode(bytes([kind]) + rest)
        except ProtocolViolation:
            continue
