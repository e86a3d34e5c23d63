"""The notes that a forwarder writes to its inbox: control batches of one record each, all numbers big-endian.

key    int16 version (0), int16 kind: as in Kafka's control records, which do not use these kinds
value  INTENT     topic_offset int64, fired_ms int64, is_early int8, then (start int64, count int32)...
       CANCELLED  offset int64

INTENT: the records at these inbox offsets are appended to the topic's partition, in this order from `topic_offset` on.
`fired_ms`: all records due until then are forwarded by this intent or earlier ones, unless the wall clock was set back
since. `is_early`: some of the records were not due. CANCELLED: the record at this offset is never forwarded.
"""

from enum import IntEnum
from struct import Struct

import msgspec

from conveyor.kernel.state_machine import LogRecord

Range = tuple[int, int]

_KEY = Struct(">hh")
_HEAD = Struct(">qq?")
_RANGE = Struct(">qi")
_OFFSET = Struct(">q")


class _Kind(IntEnum):
    INTENT = 100
    CANCELLED = 101


class Intent(msgspec.Struct, frozen=True):
    """See the module's docstring. ranges: half-open, in the order of forwarding."""

    topic_offset: int
    fired_ms: int
    ranges: tuple[Range, ...]
    is_early: bool = False

    @property
    def end_offset(self) -> int:
        """The end offset of the topic's partition once all records are appended."""
        return self.topic_offset + sum(end - start for start, end in self.ranges)


class Cancelled(msgspec.Struct, frozen=True):
    """See the module's docstring."""

    offset: int


Note = Intent | Cancelled


def note_record(note: Note) -> LogRecord:
    """Return the record of a note; its batch is a control batch."""
    if isinstance(note, Cancelled):
        return LogRecord(_KEY.pack(0, _Kind.CANCELLED), _OFFSET.pack(note.offset))
    head = _HEAD.pack(note.topic_offset, note.fired_ms, note.is_early)
    ranges = b"".join(_RANGE.pack(start, end - start) for start, end in note.ranges)
    return LogRecord(_KEY.pack(0, _Kind.INTENT), head + ranges)


def read_note(record: LogRecord) -> Note:
    """Return the note in a record of a control batch."""
    _, kind = _KEY.unpack(record.key or b"")
    value = record.value or b""
    if kind == _Kind.CANCELLED:
        return Cancelled(*_OFFSET.unpack(value))
    topic_offset, fired_ms, is_early = _HEAD.unpack_from(value)
    packed = _RANGE.iter_unpack(value[_HEAD.size :])
    return Intent(topic_offset, fired_ms, tuple((start, start + count) for start, count in packed), is_early)
