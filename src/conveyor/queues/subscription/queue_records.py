"""The records of `__queue_state`. All numbers are big-endian.

key    the subscription's id, 16 bytes; 16 zero bytes in a record about the whole partition
value  one byte for the kind, then its fields

STARTED    offset                        everything below it counts as settled, everything above as new
SETTLED    (start, end)...               acknowledged, filtered out, or delivered at most once
EXPIRED    (start, end)...               settled because their time to live ended
DEAD       (start, end)...               settled as dead letters without a copy
FAILED     (offset, deliveries, first_failure_ms, last_failure_ms, due_ms)...
DEAD_LETTERING
           (as in FAILED, then the reason's size in bytes, 4 bytes, and the reason in UTF-8)...: the messages go to
           the dead-letter topic next
RESTORED   (start, end)...               dead letters to deliver again
DROPPED    (start, end)...               dead letters that a user has dropped
FORGOTTEN                                the subscription was deleted
CANCELLED  (start, end)...               delayed messages that were cancelled; about the whole partition
RESET                                    a snapshot begins: earlier records do not count; about the whole partition
COPIED     the dead-letter topic's id, 16 bytes, then (start, end, partition, copy_offset)...: settled as dead letters,
           with their copies in that partition from that offset on
CUT        offset                        the log has lost the records from there on; about the whole partition
PENDING    the producer's id, 8 bytes, and epoch, 2 bytes, then (start, end)...: acknowledged in the producer's
           transaction. The marker of the transaction settles them, or makes them available again.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import IntEnum
from struct import Struct, pack, unpack
from uuid import UUID

import msgspec

from conveyor.kernel.ids import ProducerEpoch, ProducerId, ProducerIdentity
from conveyor.kernel.range_set import ranges_of
from conveyor.kernel.state_machine import LogRecord
from conveyor.queues.messages.dead_copies import CopiedRange, CopyLog

Range = tuple[int, int]

PARTITION_KEY = bytes(16)
_ATTEMPT = Struct(">qiqqq")
_REASON_BYTES = Struct(">I")
_COPIED = Struct(">qqiq")
_PRODUCER = Struct(">qh")
_ID_BYTES = 16
_NUMBER_BYTES = 8
_ENTRIES_AT_ONCE = 50_000
_ATTEMPTS_AT_ONCE = 10_000


class Kind(IntEnum):
    """The first byte of a value."""

    STARTED = 1
    SETTLED = 2
    EXPIRED = 3
    DEAD = 4
    FAILED = 5
    DEAD_LETTERING = 6
    RESTORED = 7
    DROPPED = 8
    FORGOTTEN = 9
    CANCELLED = 10
    RESET = 11
    CUT = 12
    COPIED = 13
    PENDING = 14


class Attempt(msgspec.Struct, frozen=True):
    """A message that was delivered but not settled. dead_letter_reason: set once it goes to the dead-letter topic."""

    deliveries: int
    first_failure_ms: int
    last_failure_ms: int
    due_ms: int
    dead_letter_reason: str | None = None


def started(subscription: UUID, offset: int) -> LogRecord:
    return LogRecord(subscription.bytes, bytes((Kind.STARTED,)) + pack(">q", offset))


def ranges_record(key: bytes, kind: Kind, ranges: Sequence[Range]) -> LogRecord:
    """Return a record of the kind SETTLED, EXPIRED, DEAD, RESTORED, DROPPED or CANCELLED."""
    return LogRecord(key, bytes((kind,)) + _packed_ranges(ranges))


def ranges_records(key: bytes, kind: Kind, ranges: Iterable[Range]) -> list[LogRecord]:
    """Return the ranges as records of limited size."""
    all_ranges = list(ranges)
    parts = range(0, len(all_ranges), _ENTRIES_AT_ONCE)
    return [ranges_record(key, kind, all_ranges[start : start + _ENTRIES_AT_ONCE]) for start in parts]


def settlement_records(subscription: UUID, kind: Kind, offsets: Iterable[int]) -> list[LogRecord]:
    """Return one record of the offsets, or none if there are no offsets. kind: see `ranges_record`."""
    ranges = ranges_of(offsets)
    return [ranges_record(subscription.bytes, kind, ranges)] if ranges else []


def pending_records(subscription: UUID, producer: ProducerIdentity, ranges: Sequence[Range]) -> list[LogRecord]:
    """Return PENDING records of limited size."""
    start = bytes((Kind.PENDING,)) + _PRODUCER.pack(*producer)
    parts = [ranges[first : first + _ENTRIES_AT_ONCE] for first in range(0, len(ranges), _ENTRIES_AT_ONCE)]
    return [LogRecord(subscription.bytes, start + _packed_ranges(part)) for part in parts]


def copied_records(subscription: UUID, copies: Iterable[CopiedRange]) -> list[LogRecord]:
    """Return COPIED records of limited size."""
    by_topic: dict[UUID, list[CopiedRange]] = {}
    for copied in copies:
        by_topic.setdefault(copied.log.topic_id, []).append(copied)
    return [
        _copied(subscription, topic_id, ranges[start : start + _ENTRIES_AT_ONCE])
        for topic_id, ranges in by_topic.items()
        for start in range(0, len(ranges), _ENTRIES_AT_ONCE)
    ]


def failed(subscription: UUID, attempts: Iterable[tuple[int, Attempt]]) -> LogRecord:
    return _attempts(subscription, Kind.FAILED, [_packed(offset, attempt) for offset, attempt in attempts])


def dead_lettering(subscription: UUID, offset: int, attempt: Attempt) -> LogRecord:
    return _attempts(subscription, Kind.DEAD_LETTERING, [_packed(offset, attempt)])


def attempts_records(subscription: UUID, attempts: Mapping[int, Attempt]) -> list[LogRecord]:
    """Return FAILED and DEAD_LETTERING records of limited size."""
    retrying, dying = list[bytes](), list[bytes]()
    for offset, attempt in attempts.items():
        (retrying if attempt.dead_letter_reason is None else dying).append(_packed(offset, attempt))
    return [
        _attempts(subscription, kind, packed[start : start + _ATTEMPTS_AT_ONCE])
        for kind, packed in ((Kind.FAILED, retrying), (Kind.DEAD_LETTERING, dying))
        for start in range(0, len(packed), _ATTEMPTS_AT_ONCE)
    ]


def forgotten(subscription: UUID) -> LogRecord:
    return LogRecord(subscription.bytes, bytes((Kind.FORGOTTEN,)))


def cut(offset: int) -> LogRecord:
    return LogRecord(PARTITION_KEY, bytes((Kind.CUT,)) + pack(">q", offset))


def reset() -> LogRecord:
    return LogRecord(PARTITION_KEY, bytes((Kind.RESET,)))


def read_offset(value: bytes) -> int:
    """Return the offset of a STARTED or CUT record."""
    return int.from_bytes(value[1 : 1 + _NUMBER_BYTES], "big", signed=True)


def read_ranges(value: bytes) -> list[Range]:
    return _unpacked_ranges(value[1:])


def read_pending(value: bytes) -> tuple[ProducerIdentity, list[Range]]:
    producer_id, producer_epoch = _PRODUCER.unpack_from(value, 1)
    producer = ProducerIdentity(ProducerId(producer_id), ProducerEpoch(producer_epoch))
    return producer, _unpacked_ranges(value[1 + _PRODUCER.size :])


def read_copied(value: bytes) -> list[CopiedRange]:
    topic_id = UUID(bytes=value[1 : 1 + _ID_BYTES])
    entries = _COPIED.iter_unpack(value[1 + _ID_BYTES :])
    return [CopiedRange(CopyLog(topic_id, partition), start, end, copy) for start, end, partition, copy in entries]


def read_attempts(value: bytes) -> list[tuple[int, Attempt]]:
    """Return the entries of a FAILED or DEAD_LETTERING record."""
    if value[0] == Kind.DEAD_LETTERING:
        return list(_dead_lettering_entries(value))
    return [(numbers[0], Attempt(*numbers[1:])) for numbers in _ATTEMPT.iter_unpack(value[1:])]


def _packed_ranges(ranges: Sequence[Range]) -> bytes:
    numbers = [number for bounds in ranges for number in bounds]
    return pack(f">{len(numbers)}q", *numbers)


def _unpacked_ranges(content: bytes) -> list[Range]:
    numbers = unpack(f">{len(content) // _NUMBER_BYTES}q", content)
    return list(zip(numbers[::2], numbers[1::2], strict=True))


def _dead_lettering_entries(value: bytes) -> Iterator[tuple[int, Attempt]]:
    position = 1
    while position < len(value):
        offset, deliveries, first_ms, last_ms, due_ms = _ATTEMPT.unpack_from(value, position)
        [size] = _REASON_BYTES.unpack_from(value, position + _ATTEMPT.size)
        position += _ATTEMPT.size + _REASON_BYTES.size + size
        yield offset, Attempt(deliveries, first_ms, last_ms, due_ms, value[position - size : position].decode())


def _attempts(subscription: UUID, kind: Kind, packed: Iterable[bytes]) -> LogRecord:
    return LogRecord(subscription.bytes, bytes((kind,)) + b"".join(packed))


def _packed(offset: int, attempt: Attempt) -> bytes:
    packed = _ATTEMPT.pack(
        offset, attempt.deliveries, attempt.first_failure_ms, attempt.last_failure_ms, attempt.due_ms
    )
    if attempt.dead_letter_reason is None:
        return packed
    reason = attempt.dead_letter_reason.encode()
    return packed + _REASON_BYTES.pack(len(reason)) + reason


def _copied(subscription: UUID, topic_id: UUID, ranges: Sequence[CopiedRange]) -> LogRecord:
    entries = b"".join(
        _COPIED.pack(copied.start, copied.end, copied.log.partition, copied.copy_offset) for copied in ranges
    )
    return LogRecord(subscription.bytes, bytes((Kind.COPIED,)) + topic_id.bytes + entries)
