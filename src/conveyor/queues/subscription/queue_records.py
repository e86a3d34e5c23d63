"""The records of `__queue_state`, all numbers big-endian.

key    the subscription's id, 16 bytes; 16 zero bytes where the record is about the whole partition
value  one byte that says what happened, then what it is about

STARTED    offset                        everything below it counts as settled, everything above as new
SETTLED    (start, end)...               acknowledged, filtered out, or given away at most once
EXPIRED    (start, end)...               settled, because nobody took them in time
DEAD       (start, end)...               settled as dead letters of which there is no copy
FAILED     (offset, deliveries, first_failure_ms, last_failure_ms, due_ms)...
DOOMED     as FAILED once, then why, in UTF-8: it goes to the dead-letter topic next
RESTORED   (start, end)...               dead letters that are to be delivered again
DROPPED    (start, end)...               dead letters that somebody has given up
FORGOTTEN                                the subscription is gone
CANCELLED  (start, end)...               delayed messages that nobody shall see; about the whole partition
RESET                                    a snapshot begins: nothing before it counts; about the whole partition
COPIED     the dead-letter topic's id, 16 bytes, then (start, end, partition, copy_offset)...: settled as dead letters,
           whose copies lie in that partition from that offset on
CUT        offset                        the log has lost what lay from there on; about the whole partition
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from struct import Struct, pack, unpack
from uuid import UUID

from conveyor.kernel.state_machine import LogRecord
from conveyor.queues.messages.dead_copies import CopiedRange, CopyLog

Range = tuple[int, int]

PARTITION_KEY = bytes(16)
_ATTEMPT = Struct(">qiqqq")
_COPIED = Struct(">qqiq")
_ID_BYTES = 16
_NUMBER_BYTES = 8
_ENTRIES_AT_ONCE = 50_000


class Kind(IntEnum):
    """The first byte of a value."""

    STARTED = 1
    SETTLED = 2
    EXPIRED = 3
    DEAD = 4
    FAILED = 5
    DOOMED = 6
    RESTORED = 7
    DROPPED = 8
    FORGOTTEN = 9
    CANCELLED = 10
    RESET = 11
    CUT = 12
    COPIED = 13


@dataclass(frozen=True, slots=True)
class Attempt:
    """A message that was delivered and not settled. doomed: why it goes to the dead-letter topic; else None."""

    deliveries: int
    first_failure_ms: int
    last_failure_ms: int
    due_ms: int
    doomed: str | None = None


def started(subscription: UUID, offset: int) -> LogRecord:
    return LogRecord(subscription.bytes, bytes((Kind.STARTED,)) + pack(">q", offset))


def ranges_record(key: bytes, kind: Kind, ranges: Sequence[Range]) -> LogRecord:
    """SETTLED, EXPIRED, DEAD, RESTORED, DROPPED or CANCELLED."""
    numbers = [number for each in ranges for number in each]
    return LogRecord(key, bytes((kind,)) + pack(f">{len(numbers)}q", *numbers))


def ranges_records(key: bytes, kind: Kind, ranges: Iterable[Range]) -> list[LogRecord]:
    """As many records as it takes."""
    every = list(ranges)
    parts = range(0, len(every), _ENTRIES_AT_ONCE)
    return [ranges_record(key, kind, every[start : start + _ENTRIES_AT_ONCE]) for start in parts]


def copied_records(subscription: UUID, copies: Iterable[CopiedRange]) -> list[LogRecord]:
    """As many records as it takes."""
    by_topic: dict[UUID, list[CopiedRange]] = {}
    for each in copies:
        by_topic.setdefault(each.log.topic_id, []).append(each)
    return [
        _copied(subscription, topic_id, ranges[start : start + _ENTRIES_AT_ONCE])
        for topic_id, ranges in by_topic.items()
        for start in range(0, len(ranges), _ENTRIES_AT_ONCE)
    ]


def failed(subscription: UUID, attempts: Iterable[tuple[int, Attempt]]) -> LogRecord:
    return LogRecord(subscription.bytes, bytes((Kind.FAILED,)) + b"".join(_packed(*each) for each in attempts))


def doomed(subscription: UUID, offset: int, attempt: Attempt) -> LogRecord:
    reason = (attempt.doomed or "").encode()
    return LogRecord(subscription.bytes, bytes((Kind.DOOMED,)) + _packed(offset, attempt) + reason)


def forgotten(subscription: UUID) -> LogRecord:
    return LogRecord(subscription.bytes, bytes((Kind.FORGOTTEN,)))


def cut(offset: int) -> LogRecord:
    return LogRecord(PARTITION_KEY, bytes((Kind.CUT,)) + pack(">q", offset))


def reset() -> LogRecord:
    return LogRecord(PARTITION_KEY, bytes((Kind.RESET,)))


def read_offset(value: bytes) -> int:
    """The offset of a STARTED or CUT record."""
    return int.from_bytes(value[1 : 1 + _NUMBER_BYTES], "big", signed=True)


def read_ranges(value: bytes) -> list[Range]:
    numbers = unpack(f">{(len(value) - 1) // _NUMBER_BYTES}q", value[1:])
    return list(zip(numbers[::2], numbers[1::2], strict=True))


def read_copied(value: bytes) -> list[CopiedRange]:
    topic_id = UUID(bytes=value[1 : 1 + _ID_BYTES])
    entries = _COPIED.iter_unpack(value[1 + _ID_BYTES :])
    return [CopiedRange(CopyLog(topic_id, partition), start, end, copy) for start, end, partition, copy in entries]


def read_attempts(value: bytes) -> list[tuple[int, Attempt]]:
    """What a FAILED record holds."""
    return [(numbers[0], Attempt(*numbers[1:])) for numbers in _ATTEMPT.iter_unpack(value[1:])]


def read_doomed(value: bytes) -> tuple[int, Attempt]:
    offset, deliveries, first_ms, last_ms, due_ms = _ATTEMPT.unpack_from(value, 1)
    reason = value[1 + _ATTEMPT.size :].decode()
    return offset, Attempt(deliveries, first_ms, last_ms, due_ms, reason)


def _packed(offset: int, attempt: Attempt) -> bytes:
    return _ATTEMPT.pack(offset, attempt.deliveries, attempt.first_failure_ms, attempt.last_failure_ms, attempt.due_ms)


def _copied(subscription: UUID, topic_id: UUID, ranges: Sequence[CopiedRange]) -> LogRecord:
    entries = b"".join(_COPIED.pack(each.start, each.end, each.log.partition, each.copy_offset) for each in ranges)
    return LogRecord(subscription.bytes, bytes((Kind.COPIED,)) + topic_id.bytes + entries)
