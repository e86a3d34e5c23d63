"""The frames of a replication stream. All numbers are big-endian.

    every frame     u8 kind, then by kind

    from the follower
    1 FOLLOW        u16 count, then each: u32 slot, 16 bytes topic id, i32 partition, i32 leader epoch, i64 end offset,
                    i32 last epoch, i64 flushed offset, i64 log start offset
    2 UNFOLLOW      u16 count, then each: u32 slot
    3 PROGRESS      u32 returned bytes, u16 count, then each: u32 slot, i32 leader epoch, i64 written offset,
                    i64 flushed offset, i64 log start offset

    from the leader
    16 PORTIONS     u16 count, then each: u32 slot, i32 leader epoch, i64 log start offset, i64 high watermark,
                    i64 gap offset, i64 tombstones' end offset, i64 from offset, i64 next offset, u32 length; then the
                    batches of all, in order
    17 DIVERGING    u32 slot, i32 epoch, i64 end offset
    18 REJECTED     u32 slot, u8 reason
    19 EPOCHS       u32 slot, i64 removed tombstones' end offset, u16 count, then each: i32 epoch, i64 start offset

A slot is the number under which the follower follows a partition: a new one each time, so that nothing of an earlier
time is taken for the present. A frame that does not have exactly this form raises ProtocolViolation.
"""

import struct
from collections.abc import Iterator, Sequence
from enum import IntEnum
from operator import lt
from typing import NamedTuple
from uuid import UUID

from conveyor.kernel.errors import ProtocolViolation
from conveyor.kernel.ids import TopicId
from conveyor.kernel.ports import Bytes

MAX_ENTRIES = 1_000
"""The most partitions in one frame."""

WINDOW_BYTES = 4 << 20
"""While the follower has not returned as many bytes of records, the leader sends no more."""


class StreamFrame(IntEnum):
    FOLLOW = 1
    UNFOLLOW = 2
    PROGRESS = 3
    PORTIONS = 16
    DIVERGING = 17
    REJECTED = 18
    EPOCHS = 19


class FollowRefusal(IntEnum):
    """The reasons why a leader does not send a partition's records. The follower asks again later."""

    NOT_LEADER = 1
    """The sender does not lead the partition, or does not serve it at the moment."""
    UNKNOWN_TOPIC = 2
    FENCED_EPOCH = 3
    """The follower's leader epoch has ended."""
    UNKNOWN_EPOCH = 4
    """The leader has not seen the follower's leader epoch, or the last epoch of its log."""
    NOT_A_REPLICA = 5
    """The image of the leader does not show this start of the follower as a replica of the partition."""


class Follow(NamedTuple):
    """A follower asks for the records of a partition from the end of its log on.

    last_epoch: of the log's last record, -1 if there is none. flushed_offset: everything below it is durable.
    log_start_offset: durable, too.
    """

    slot: int
    topic_id: TopicId
    partition: int
    leader_epoch: int
    end_offset: int
    last_epoch: int
    flushed_offset: int
    log_start_offset: int


class Unfollow(NamedTuple):
    """Send no more records for these slots."""

    slots: tuple[int, ...]


class FollowerProgress(NamedTuple):
    """The offsets up to which a follower's log is written and flushed, and at which it durably starts."""

    slot: int
    leader_epoch: int
    written_offset: int
    flushed_offset: int
    log_start_offset: int


class ProgressReport(NamedTuple):
    """returned_bytes: the bytes of records processed since the last report; the leader may send as many again."""

    returned_bytes: int
    progress: tuple[FollowerProgress, ...]


class Portion(NamedTuple):
    """Records of one partition, and what the leader knows of its log.

    gap_offset: below it, offsets may be missing, because the leader has compacted its log. tombstones_end_offset: all
    replicas have flushed everything below. from_offset, next_offset: the content is everything that the leader has
    between them, perhaps nothing. content: whole batches as stored.
    """

    slot: int
    leader_epoch: int
    log_start_offset: int
    high_watermark: int
    gap_offset: int
    tombstones_end_offset: int
    from_offset: int
    next_offset: int
    content: memoryview


class Diverging(NamedTuple):
    """The follower's log continues differently: the largest epoch that the leader has up to the follower's last one,
    and its end offset in the leader's log. See `diverging_end`.
    """

    slot: int
    epoch: int
    end_offset: int


class Rejected(NamedTuple):
    """The leader does not send the partition's records, or stops sending them."""

    slot: int
    refusal: FollowRefusal


class SentEpochs(NamedTuple):
    """The leader epochs that a follower lacks, with their start offsets, all rising. Sent before the portions of a
    compacted log, which may lack whole epochs. removed_end_offset: it may lack tombstones and markers below.
    """

    slot: int
    removed_end_offset: int
    entries: tuple[tuple[int, int], ...]


_KIND = struct.Struct(">B")
_COUNTED = struct.Struct(">BH")
_FOLLOW = struct.Struct(">I16siiqiqq")
_SLOT = struct.Struct(">I")
_PROGRESS_START = struct.Struct(">BIH")
_PROGRESS = struct.Struct(">Iiqqq")
_PORTION = struct.Struct(">IiqqqqqqI")
_DIVERGING = struct.Struct(">BIiq")
_REJECTED = struct.Struct(">BIB")
_EPOCHS_START = struct.Struct(">BIqH")
_EPOCH = struct.Struct(">iq")


def encode_follows(follows: Sequence[Follow]) -> bytes:
    entries = [_FOLLOW.pack(slot, topic_id.bytes, *fields) for slot, topic_id, *fields in follows]
    return _COUNTED.pack(StreamFrame.FOLLOW, len(entries)) + b"".join(entries)


def encode_unfollow(slots: Sequence[int]) -> bytes:
    return _COUNTED.pack(StreamFrame.UNFOLLOW, len(slots)) + b"".join(map(_SLOT.pack, slots))


def encode_progress(returned_bytes: int, progress: Sequence[FollowerProgress]) -> bytes:
    entries = [_PROGRESS.pack(*report) for report in progress]
    return _PROGRESS_START.pack(StreamFrame.PROGRESS, returned_bytes, len(entries)) + b"".join(entries)


def encode_portions(portions: Sequence[tuple[int, ...]]) -> bytes:
    """Return the frame without its batches. portions: the fields of `Portion`, with the length of the content."""
    entries = [_PORTION.pack(*fields) for fields in portions]
    return _COUNTED.pack(StreamFrame.PORTIONS, len(entries)) + b"".join(entries)


def encode_diverging(diverging: Diverging) -> bytes:
    return _DIVERGING.pack(StreamFrame.DIVERGING, *diverging)


def encode_rejected(rejected: Rejected) -> bytes:
    return _REJECTED.pack(StreamFrame.REJECTED, *rejected)


def encode_epochs(epochs: SentEpochs) -> bytes:
    start = _EPOCHS_START.pack(StreamFrame.EPOCHS, epochs.slot, epochs.removed_end_offset, len(epochs.entries))
    return start + b"".join(_EPOCH.pack(*entry) for entry in epochs.entries)


def decode_from_follower(frame: Bytes) -> tuple[Follow, ...] | Unfollow | ProgressReport:
    """Raises ProtocolViolation."""
    view, kind = memoryview(frame), _kind(frame)
    if kind == StreamFrame.FOLLOW:
        return tuple(map(_follow, _entries(view, _COUNTED, _FOLLOW)))
    if kind == StreamFrame.UNFOLLOW:
        return Unfollow(tuple(entry[0] for entry in _entries(view, _COUNTED, _SLOT)))
    if kind == StreamFrame.PROGRESS:
        progress = tuple(FollowerProgress._make(entry) for entry in _entries(view, _PROGRESS_START, _PROGRESS))
        for report in progress:
            is_sound = _are_of_one_log(report.log_start_offset, report.flushed_offset, report.written_offset)
            _check(is_sound, "offsets of a report", report)
        return ProgressReport(_PROGRESS_START.unpack_from(view)[1], progress)
    raise ProtocolViolation(f"frame {kind} of a follower")


def decode_from_leader(frame: Bytes) -> tuple[Portion, ...] | Diverging | Rejected | SentEpochs:
    """Raises ProtocolViolation."""
    view, kind = memoryview(frame), _kind(frame)
    if kind == StreamFrame.PORTIONS:
        return tuple(_portions(view))
    if kind == StreamFrame.DIVERGING:
        _, *fields = _whole(view, _DIVERGING)
        diverging = Diverging._make(fields)
        _check(diverging.epoch >= -1 and diverging.end_offset >= 0, "end of an epoch", diverging)
        return diverging
    if kind == StreamFrame.REJECTED:
        _, slot, refusal = _whole(view, _REJECTED)
        _check(refusal in FollowRefusal.__members__.values(), "refusal", refusal)
        return Rejected(slot, FollowRefusal(refusal))
    if kind == StreamFrame.EPOCHS:
        return _epochs(view)
    raise ProtocolViolation(f"frame {kind} of a leader")


def _follow(entry: tuple[int, ...]) -> Follow:
    slot, topic_id, *rest = entry
    follow = Follow(slot, TopicId(UUID(bytes=topic_id)), *rest)  # type: ignore[arg-type]
    is_sound = follow.partition >= 0 and follow.leader_epoch >= 0 and follow.last_epoch >= -1
    is_sound = is_sound and _are_of_one_log(follow.log_start_offset, follow.flushed_offset, follow.end_offset)
    _check(is_sound, "end of a log", follow)
    return follow


def _are_of_one_log(log_start_offset: int, flushed_offset: int, end_offset: int) -> bool:
    """Under `flush.policy=os` a log may start above its flushed offset."""
    return 0 <= log_start_offset <= end_offset and 0 <= flushed_offset <= end_offset


def _portions(view: memoryview) -> Iterator[Portion]:
    count = _count(view, _COUNTED)
    position = _COUNTED.size + count * _PORTION.size
    _check(position <= len(view), "length", len(view))
    for number in range(count):
        *fields, length = _PORTION.unpack_from(view, _COUNTED.size + number * _PORTION.size)
        _check(length <= len(view) - position, "length of a portion", length)
        portion = Portion._make([*fields, view[position : position + length]])
        _check(min(fields[1:]) >= 0, "portion", fields)
        _check(portion.log_start_offset <= portion.high_watermark, "log start of a portion", fields)
        _check(portion.next_offset > portion.from_offset or not length, "offsets of a portion", fields)
        _check(portion.next_offset >= portion.from_offset, "offsets of a portion", fields)
        position += length
        yield portion
    _check(position == len(view), "length", len(view))


def _epochs(view: memoryview) -> SentEpochs:
    entries = tuple((epoch, offset) for epoch, offset in _entries(view, _EPOCHS_START, _EPOCH))
    epochs, offsets = [epoch for epoch, _ in entries], [offset for _, offset in entries]
    _check(all(map(lt, [-1, *epochs], epochs)), "order of epochs", epochs)
    _check(all(map(lt, [-1, *offsets], offsets)), "order of offsets", offsets)
    _, slot, removed_end_offset, _ = _EPOCHS_START.unpack_from(view)
    _check(removed_end_offset >= 0, "end of removed tombstones", removed_end_offset)
    return SentEpochs(slot, removed_end_offset, entries)


def _kind(frame: Bytes) -> int:
    if not frame:
        raise ProtocolViolation("an empty frame")
    return frame[0]


def _count(view: memoryview, start: struct.Struct) -> int:
    _check(len(view) >= start.size, "length", len(view))
    count: int = start.unpack_from(view)[-1]
    _check(count <= MAX_ENTRIES, "number of partitions", count)
    return count


def _entries(view: memoryview, start: struct.Struct, entry: struct.Struct) -> Iterator[tuple[int, ...]]:
    count = _count(view, start)
    _check(len(view) == start.size + count * entry.size, "length", len(view))
    return entry.iter_unpack(view[start.size :])


def _whole(view: memoryview, form: struct.Struct) -> tuple[int, ...]:
    _check(len(view) == form.size, "length", len(view))
    return form.unpack(view)


def _check(is_sound: bool, what: str, value: object) -> None:
    if not is_sound:
        raise ProtocolViolation(f"the {what} of a replication frame is wrong: {value}")
