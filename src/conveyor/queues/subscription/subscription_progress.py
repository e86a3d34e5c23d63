"""The progress of one subscription in one partition: hard state.

Changed by applied records, and by `settle` where the topic's log has no message.

    unsettled  ->  FAILED (delivered, waits for its next time)  ->  settled
               ->  DEAD_LETTERING (on its way)                ->  COPIED, or DEAD (settled)  ->  RESTORED (unsettled)
               ->  PENDING (acknowledged in a transaction)    ->  settled, or unsettled again

Everything below `start_offset` is settled, and so are the offsets in `settled`, which are above it. All other offsets
are unsettled, whether they have been written or not.
"""

from collections.abc import Iterator
from uuid import UUID

import msgspec

from conveyor.kernel.ids import ProducerId
from conveyor.kernel.range_set import RangeSet, ranges_of
from conveyor.kernel.state_machine import LogRecord
from conveyor.queues.messages.dead_copies import DeadCopies
from conveyor.queues.subscription.pending_acks import PendingAcks
from conveyor.queues.subscription.queue_records import (
    Attempt,
    Kind,
    Range,
    attempts_records,
    copied_records,
    pending_records,
    ranges_records,
    read_attempts,
    read_copied,
    read_offset,
    read_pending,
    read_ranges,
    started,
)
from conveyor.queues.subscription.recent_settlements import RecentSettlements

BEYOND = 1 << 62
"""Greater than any offset."""


class Progress:
    """The progress; see the module's docstring."""

    def __init__(self) -> None:
        self.start_offset = 0
        self.settled = RangeSet()
        self.expired = RangeSet()
        self.dead = RangeSet()
        self.copies = DeadCopies()
        """The positions of the dead letters' copies."""
        self.restored = RangeSet()
        """Dead letters to deliver again, even after their time to live."""
        self.attempts: dict[int, Attempt] = {}
        self.pending = PendingAcks()
        self.recent = RecentSettlements()

    def is_settled(self, offset: int) -> bool:
        return offset < self.start_offset or offset in self.settled

    def deliveries_of(self, offset: int) -> int:
        """Return the number of failed deliveries of a message."""
        attempt = self.attempts.get(offset)
        return 0 if attempt is None else attempt.deliveries

    def first_failure_ms(self, offset: int, now_ms: int) -> int:
        """Return when the first delivery of a message failed: now, if none has."""
        attempt = self.attempts.get(offset)
        return now_ms if attempt is None else attempt.first_failure_ms

    def unsettled_count(self, end_offset: int) -> int:
        """Return the number of unsettled offsets below `end_offset`."""
        if end_offset <= self.start_offset:
            return 0
        settled = self.settled.count - self.settled.count_from(end_offset)
        return end_offset - self.start_offset - settled

    def settle(self, start: int, end: int, at_ms: int = 0) -> None:
        """Settle [start, end). at_ms: see `apply`."""
        self._settle([(start, end)], Kind.SETTLED, at_ms)

    def apply(self, kind: Kind, value: bytes, at_ms: int) -> None:
        """Apply one record. at_ms: the time at which it was decided; 0 if that is not known."""
        match kind:
            case Kind.STARTED:
                self._start(read_offset(value))
            case Kind.SETTLED | Kind.EXPIRED | Kind.DEAD:
                self._settle(read_ranges(value), kind, at_ms)
            case Kind.COPIED:
                copies = read_copied(value)
                self._settle([(copied.start, copied.end) for copied in copies], Kind.DEAD, at_ms)
                for copied in copies:
                    self.copies.add(copied)
            case Kind.FAILED | Kind.DEAD_LETTERING:
                self.attempts.update(read_attempts(value))
            case Kind.PENDING:
                self.pending.add(*read_pending(value))
            case Kind.RESTORED:
                self._restore(read_ranges(value))
            case Kind.DROPPED:
                self._drop(read_ranges(value), at_ms)

    def resolve(self, producer_id: ProducerId, at_ms: int, *, commits: bool) -> list[int]:
        """End the transaction of a producer. Returns the messages that were pending. at_ms: when it ended."""
        offsets = self.pending.take(producer_id)
        if commits:
            self._settle(ranges_of(offsets), Kind.SETTLED, at_ms)
        return offsets

    def records(self, subscription: UUID) -> Iterator[LogRecord]:
        """Yield records that rebuild this state."""
        yield started(subscription, self.start_offset)
        yield from ranges_records(subscription.bytes, Kind.SETTLED, self.settled)
        yield from ranges_records(subscription.bytes, Kind.EXPIRED, self.expired)
        yield from ranges_records(subscription.bytes, Kind.DEAD, self.dead)
        yield from copied_records(subscription, self.copies.ranges())
        yield from ranges_records(subscription.bytes, Kind.RESTORED, self.restored)
        yield from attempts_records(subscription, self.attempts)
        for producer, ranges in self.pending.ranges():
            yield from pending_records(subscription, producer, ranges)

    def clock_set(self, by_ms: int) -> None:
        """Shift the backoffs in memory by `by_ms`, because the wall clock was set. The log keeps the recorded times."""
        for offset, attempt in self.attempts.items():
            self.attempts[offset] = msgspec.structs.replace(attempt, due_ms=attempt.due_ms + by_ms)

    def cut(self, offset: int) -> None:
        """Forget all state from `offset` on: the log was truncated there, and new messages will be appended."""
        for ranges in (self.settled, self.expired, self.restored):
            ranges.remove(offset, BEYOND)
        self._remove_dead([(offset, BEYOND)])
        self.attempts = {kept: attempt for kept, attempt in self.attempts.items() if kept < offset}
        self.pending.remove(offset, BEYOND)
        self.recent.clear()
        self.start_offset = min(self.start_offset, offset)

    def reaches_beyond(self, offset: int) -> bool:
        """Return whether there is state about messages from `offset` on."""
        ranges = (self.settled, self.expired, self.dead, self.restored)
        has_ranges = any(offsets.count_from(offset) for offsets in ranges)
        has_attempts = any(attempted >= offset for attempted in self.attempts)
        return self.start_offset > offset or has_ranges or has_attempts or self.pending.reaches(offset)

    def forget_below(self, log_start_offset: int) -> None:
        """Forget all state below the log start offset, except dead letters, whose copies are elsewhere."""
        self.expired.remove(0, log_start_offset)

    def _start(self, offset: int) -> None:
        self.start_offset = offset
        self.settled = RangeSet()
        self.restored = RangeSet()
        self.attempts = {}
        self.pending = PendingAcks()
        self.recent.clear()
        self.expired.remove(offset, BEYOND)
        self._remove_dead([(offset, BEYOND)])

    def _settle(self, ranges: list[Range], kind: Kind, at_ms: int) -> None:
        attempts: list[tuple[int, Attempt]] = []
        for start, end in ranges:
            if self.attempts:
                attempts += self._take_attempts(start, end)
            if self.pending:
                self.pending.remove(start, end)
        if at_ms:
            self.recent.add(ranges, kind, at_ms, attempts)
        self.restored.remove_all(ranges)
        if kind is Kind.EXPIRED:
            self.expired.add_all(ranges)
        elif kind is Kind.DEAD:
            self._remove_dead(ranges)
            self.dead.add_all(ranges)
        self.settled.add_all((max(start, self.start_offset), end) for start, end in ranges)
        reached = self.settled.end_of_range_at(self.start_offset)
        if reached > self.start_offset:
            self.settled.remove(self.start_offset, reached)
            self.start_offset = reached

    def _take_attempts(self, start: int, end: int) -> list[tuple[int, Attempt]]:
        attempts = self.attempts
        if end - start <= len(attempts):
            offsets = [offset for offset in range(start, end) if offset in attempts]
        else:
            offsets = [attempted for attempted in attempts if start <= attempted < end]
        return [(offset, attempts.pop(offset)) for offset in offsets]

    def _drop(self, ranges: list[Range], at_ms: int) -> None:
        self._remove_dead(ranges)
        if at_ms:
            self.recent.add(ranges, Kind.DROPPED, at_ms, ())

    def _remove_dead(self, ranges: list[Range]) -> None:
        """Remove the offsets that are no longer dead letters."""
        self.dead.remove_all(ranges)
        for start, end in ranges:
            self.copies.remove(start, end)

    def _restore(self, ranges: list[Range]) -> None:
        self._remove_dead(ranges)
        self.restored.add_all(ranges)
        first = min((start for start, _ in ranges), default=self.start_offset)
        if first < self.start_offset:
            self.settled.add(first, self.start_offset)
            self.start_offset = first
        self.settled.remove_all(ranges)
