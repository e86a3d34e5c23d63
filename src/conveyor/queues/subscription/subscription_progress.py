"""How far one subscription has come in one partition: hard state.

Changed by applied records, and by `settle` where the topic's own log says that there is no message.

    unsettled  ->  FAILED (delivered, waits for its next time)  ->  settled
               ->  DOOMED (on its way to the dead-letter topic) ->  COPIED, or DEAD (settled)  ->  RESTORED (unsettled)

Everything below `start_offset` is settled; `settled` holds what lies above it and is settled, too. What is in neither
is unsettled, whether it was written yet or not.
"""

from collections.abc import Iterator
from dataclasses import replace
from uuid import UUID

from conveyor.kernel.range_set import RangeSet
from conveyor.kernel.state_machine import LogRecord
from conveyor.queues.messages.dead_copies import DeadCopies
from conveyor.queues.subscription.queue_records import (
    Attempt,
    Kind,
    Range,
    copied_records,
    doomed,
    failed,
    ranges_records,
    read_attempts,
    read_copied,
    read_doomed,
    read_offset,
    read_ranges,
    started,
)

_ATTEMPTS_AT_ONCE = 10_000
BEYOND = 1 << 62
"""No offset is so high."""


class Progress:
    """See the module's docstring."""

    def __init__(self) -> None:
        self.start_offset = 0
        self.settled = RangeSet()
        self.expired = RangeSet()
        self.dead = RangeSet()
        self.copies = DeadCopies()
        """Where the copies of the dead letters lie, of those that have one."""
        self.restored = RangeSet()
        """Dead letters that are to be delivered again, however late it is."""
        self.attempts: dict[int, Attempt] = {}

    def is_settled(self, offset: int) -> bool:
        return offset < self.start_offset or offset in self.settled

    def unsettled_count(self, end_offset: int) -> int:
        """How many offsets below an end are not settled."""
        settled = self.settled.count - self.settled.count_from(end_offset)
        return max(0, end_offset - self.start_offset - settled)

    def settle(self, start: int, end: int) -> None:
        """Take [start, end) as settled."""
        self._settle([(start, end)], Kind.SETTLED)

    def apply(self, kind: Kind, value: bytes) -> None:
        """Take one record in."""
        match kind:
            case Kind.STARTED:
                self._start(read_offset(value))
            case Kind.SETTLED | Kind.EXPIRED | Kind.DEAD:
                self._settle(read_ranges(value), kind)
            case Kind.COPIED:
                for copied in read_copied(value):
                    self._settle([(copied.start, copied.end)], Kind.DEAD)
                    self.copies.add(copied)
            case Kind.FAILED:
                self.attempts.update(read_attempts(value))
            case Kind.DOOMED:
                offset, attempt = read_doomed(value)
                self.attempts[offset] = attempt
            case Kind.RESTORED:
                self._restore(read_ranges(value))
            case Kind.DROPPED:
                for start, end in read_ranges(value):
                    self._revive(start, end)

    def records(self, subscription: UUID) -> Iterator[LogRecord]:
        """Records that make this state from nothing."""
        yield started(subscription, self.start_offset)
        yield from ranges_records(subscription.bytes, Kind.SETTLED, self.settled)
        yield from ranges_records(subscription.bytes, Kind.EXPIRED, self.expired)
        yield from ranges_records(subscription.bytes, Kind.DEAD, self.dead)
        yield from copied_records(subscription, self.copies.ranges())
        yield from ranges_records(subscription.bytes, Kind.RESTORED, self.restored)
        living = [(offset, each) for offset, each in self.attempts.items() if each.doomed is None]
        for place in range(0, len(living), _ATTEMPTS_AT_ONCE):
            yield failed(subscription, living[place : place + _ATTEMPTS_AT_ONCE])
        for offset, attempt in self.attempts.items():
            if attempt.doomed is not None:
                yield doomed(subscription, offset, attempt)

    def clock_set(self, by_ms: int) -> None:
        """The wall clock was set: backoffs end when they would have. What the log says of them stays as it was."""
        for offset, attempt in self.attempts.items():
            self.attempts[offset] = replace(attempt, due_ms=attempt.due_ms + by_ms)

    def cut(self, offset: int) -> None:
        """The log has lost what lay from an offset on: other messages will lie there."""
        for each in (self.settled, self.expired, self.restored):
            each.remove(offset, BEYOND)
        self._revive(offset, BEYOND)
        self.attempts = {place: each for place, each in self.attempts.items() if place < offset}
        self.start_offset = min(self.start_offset, offset)

    def reaches_beyond(self, offset: int) -> bool:
        """Whether anything is known of messages from an offset on."""
        ranges = (self.settled, self.expired, self.dead, self.restored)
        is_known = any(each.count_from(offset) for each in ranges) or any(place >= offset for place in self.attempts)
        return self.start_offset > offset or is_known

    def forget_below(self, log_start_offset: int) -> None:
        """The log has let go of what lies below. Dead letters still count: their copies lie elsewhere."""
        self.expired.remove(0, log_start_offset)

    def _start(self, offset: int) -> None:
        self.start_offset = offset
        self.settled = RangeSet()
        self.restored = RangeSet()
        self.attempts = {}
        self.expired.remove(offset, BEYOND)
        self._revive(offset, BEYOND)

    def _settle(self, ranges: list[Range], kind: Kind) -> None:
        for start, end in ranges:
            self._forget_attempts(start, end)
            self.restored.remove(start, end)
            if kind is Kind.EXPIRED:
                self.expired.add(start, end)
            elif kind is Kind.DEAD:
                self._revive(start, end)
                self.dead.add(start, end)
            if end > self.start_offset:
                self.settled.add(max(start, self.start_offset), end)
        reached = self.settled.end_of_range_at(self.start_offset)
        if reached > self.start_offset:
            self.settled.remove(self.start_offset, reached)
            self.start_offset = reached

    def _forget_attempts(self, start: int, end: int) -> None:
        attempts = self.attempts
        if not attempts:
            return
        if end - start <= len(attempts):
            for offset in range(start, end):
                attempts.pop(offset, None)
        else:
            for offset in [each for each in attempts if start <= each < end]:
                del attempts[offset]

    def _revive(self, start: int, end: int) -> None:
        """These are dead letters no more, for one reason or another."""
        self.dead.remove(start, end)
        self.copies.remove(start, end)

    def _restore(self, ranges: list[Range]) -> None:
        for start, end in ranges:
            self._revive(start, end)
            self.restored.add(start, end)
            if start < self.start_offset:
                self.settled.add(min(end, self.start_offset), self.start_offset)
                self.settled.remove(start, end)
                self.start_offset = start
            else:
                self.settled.remove(start, end)
