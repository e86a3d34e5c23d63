"""The records of a forwarder's log, `__delay_state.<delayed topic>`; all numbers are big-endian.

key    int16 version (0), int16 kind
value  INTENT     producer_id int64, sequence int32, target_offset int64, carried_out int32,
                  then (start int64, count int32)...
       CANCELLED  offset int64
       SNAPSHOT   producer_id int64, end_offset int64, count int32, that many cancelled offsets int64,
                  then the waiting offsets; see `WaitingOffsets.encoded`

INTENT: the records at these offsets of the delayed topic are appended to the target, in this order, by the producer
`producer_id` (epoch 0). Each offset has a sequence number; the first has `sequence`, and the others follow. All batches
of the intent are at or above `target_offset`. The first `carried_out` offsets of the intent before this one are
committed in the target; the others wait again. An intent without ranges only states this.
CANCELLED: the record at this offset is never forwarded.
SNAPSHOT: the state before the next record of the log. It makes all earlier records irrelevant.
"""

from collections.abc import Iterator, Sequence
from enum import IntEnum
from struct import Struct

import msgspec

from conveyor.delay.waiting_offsets import WaitingOffsets
from conveyor.kernel.state_machine import LogRecord

Range = tuple[int, int]

PRODUCER_EPOCH = 0
SEQUENCES = 1 << 31
"""The epoch of all batches of a forwarder, and the number of sequences of a producer."""

_KEY = Struct(">hh")
_INTENT = Struct(">qiqi")
_RANGE = Struct(">qi")
_OFFSET = Struct(">q")
_SNAPSHOT = Struct(">qqi")


class _Kind(IntEnum):
    INTENT = 1
    CANCELLED = 2
    SNAPSHOT = 3


class Intent(msgspec.Struct, frozen=True, kw_only=True):
    """See the module's docstring. ranges: half-open, in the order of forwarding."""

    producer_id: int
    sequence: int
    target_offset: int
    carried_out: int
    ranges: tuple[Range, ...]

    @property
    def count(self) -> int:
        """The number of offsets."""
        return sum(end - start for start, end in self.ranges)


class Cancelled(msgspec.Struct, frozen=True):
    offset: int


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    producer_id: int
    waiting: WaitingOffsets
    cancelled: Sequence[int]


def encode(record: Intent | Cancelled | Snapshot) -> LogRecord:
    match record:
        case Intent():
            head = _INTENT.pack(record.producer_id, record.sequence, record.target_offset, record.carried_out)
            ranges = b"".join(_RANGE.pack(start, end - start) for start, end in record.ranges)
            return LogRecord(_KEY.pack(0, _Kind.INTENT), head + ranges)
        case Cancelled():
            return LogRecord(_KEY.pack(0, _Kind.CANCELLED), _OFFSET.pack(record.offset))
        case Snapshot():
            head = _SNAPSHOT.pack(record.producer_id, record.waiting.end_offset, len(record.cancelled))
            cancelled = b"".join(map(_OFFSET.pack, record.cancelled))
            return LogRecord(_KEY.pack(0, _Kind.SNAPSHOT), head + cancelled + record.waiting.encoded())


def decode(record: LogRecord) -> Intent | Cancelled | Snapshot:
    _, kind = _KEY.unpack(record.key or b"")
    value = record.value or b""
    if kind == _Kind.CANCELLED:
        return Cancelled(*_OFFSET.unpack(value))
    if kind == _Kind.SNAPSHOT:
        producer_id, end_offset, count = _SNAPSHOT.unpack_from(value)
        content = value[_SNAPSHOT.size :]
        cancelled = [offset for (offset,) in _OFFSET.iter_unpack(content[: count * _OFFSET.size])]
        waiting = WaitingOffsets.decoded(content[count * _OFFSET.size :], end_offset)
        return Snapshot(producer_id=producer_id, waiting=waiting, cancelled=cancelled)
    producer_id, sequence, target_offset, carried_out = _INTENT.unpack_from(value)
    packed = _RANGE.iter_unpack(value[_INTENT.size :])
    return Intent(
        producer_id=producer_id,
        sequence=sequence,
        target_offset=target_offset,
        carried_out=carried_out,
        ranges=tuple((start, start + count) for start, count in packed),
    )


def divided(ranges: Sequence[Range], count: int) -> tuple[list[Range], list[Range]]:
    """Return the ranges of the first `count` offsets, and those of the others."""
    first: list[Range] = []
    rest: list[Range] = []
    for start, end in ranges:
        middle = min(end, start + count)
        count -= middle - start
        first += _unless_empty(start, middle)
        rest += _unless_empty(middle, end)
    return first, rest


def _unless_empty(start: int, end: int) -> Iterator[Range]:
    if start < end:
        yield start, end
