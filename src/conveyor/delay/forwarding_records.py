"""What a forwarder notes in its inbox: control batches of one record each, all numbers big-endian.

key    int16 version (0), int16 kind: as in Kafka's control records, of which these kinds are none
value  INTENT     topic_offset int64, fired_ms int64, is_early int8, then (start int64, count int32)...
       CANCELLED  offset int64

INTENT: the records at these offsets of the inbox go to the topic's partition, one after the other from `topic_offset`
on. `fired_ms`: everything that was due until then is among those forwarded by now, unless the wall clock was set
back since. `is_early`: some of it was not due.
CANCELLED: the record at this offset is never forwarded.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from struct import Struct

from conveyor.records.batch import CONTROL
from conveyor.records.record import decode_records, encode_batch

Range = tuple[int, int]

_KEY = Struct(">hh")
_HEAD = Struct(">qq?")
_RANGE = Struct(">qi")
_OFFSET = Struct(">q")


class _Kind(IntEnum):
    INTENT = 100
    CANCELLED = 101


@dataclass(frozen=True, slots=True)
class Intent:
    """See the module's docstring. ranges: half-open, in the order of forwarding."""

    topic_offset: int
    fired_ms: int
    ranges: tuple[Range, ...]
    is_early: bool = False

    @property
    def end_offset(self) -> int:
        """Where the topic's partition ends when all of it is there."""
        return self.topic_offset + sum(end - start for start, end in self.ranges)


@dataclass(frozen=True, slots=True)
class Cancelled:
    """See the module's docstring."""

    offset: int


Note = Intent | Cancelled


def encode_note(note: Note, now_ms: int) -> bytes:
    """The batch to append."""
    if isinstance(note, Cancelled):
        kind, value = _Kind.CANCELLED, _OFFSET.pack(note.offset)
    else:
        head = _HEAD.pack(note.topic_offset, note.fired_ms, note.is_early)
        kind = _Kind.INTENT
        value = head + b"".join(_RANGE.pack(start, end - start) for start, end in note.ranges)
    return encode_batch([(now_ms, _KEY.pack(0, kind), value, ())], attributes=CONTROL)


def decode_notes(batch: bytes) -> Iterator[Note]:
    """The notes in a control batch."""
    for record in decode_records(batch):
        key, value = record.key or b"", record.value or b""
        _, kind = _KEY.unpack(key)
        if kind == _Kind.CANCELLED:
            yield Cancelled(*_OFFSET.unpack(value))
        else:
            topic_offset, fired_ms, is_early = _HEAD.unpack_from(value)
            packed = _RANGE.iter_unpack(value[_HEAD.size :])
            yield Intent(topic_offset, fired_ms, tuple((start, start + count) for start, count in packed), is_early)
