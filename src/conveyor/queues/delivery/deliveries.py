"""The delivery state of one subscription in one partition: soft state, rebuilt from its `Progress` and the log.

    not scanned -> withheld (not due) -> available -> leased -> settled
                                            ^            |
                                            +- retry ----+-> dead_lettering (on its way to the dead-letter topic)
                                            ^            |
                                            +- (abort) --+-> pending (acknowledged in a transaction) -> settled

Invariant: every unsettled message below `scanned_offset` is in exactly one of these places: `available`, the timers
(withheld until it is due), `leases`, `pending`, `dead_lettering`, or blocked by another message of its key (`keys`).
A settled message keeps its entry until that is popped. A dead letter in `expired_in_place` that is delivered again
takes its old entry: with a second one it would be leased twice.
"""

import heapq
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from operator import attrgetter
from typing import NamedTuple

from conveyor.queues.delivery.available import Available
from conveyor.queues.delivery.key_order import KeyOrder
from conveyor.queues.messages.scan import NO_GROUP, Scanned
from conveyor.queues.subscription.policy import Policy
from conveyor.queues.subscription.queue_records import Attempt
from conveyor.queues.subscription.subscription_progress import Progress
from conveyor.records.message_attributes import DEFAULT_PRIORITY

MAX_INDEXED = 20_000_000
"""The most runs of available messages, and the most timers, that are scanned ahead. Delivery order is exact among
scanned messages.
"""

_OFFSET_BITS = 56
_PRIORITY_BITS = 4
_MAX_STALE_ENDS = 1_000
_DUE_SHIFT = _OFFSET_BITS + _PRIORITY_BITS
_OFFSET_MASK = (1 << _OFFSET_BITS) - 1
_PRIORITY_MASK = (1 << _PRIORITY_BITS) - 1


class HeldLease(NamedTuple):
    """One lease: its number, its end, the delivery count (1 for the first delivery), and the message's priority,
    group and timestamp.
    """

    number: int
    ends_ms: int
    delivery_count: int
    priority: int
    group: str
    published_ms: int


published_ms_of = attrgetter("published_ms")


class Deliveries:
    """The delivery state; see the module's docstring."""

    def __init__(self, policy: Policy, progress: Progress, max_indexed: int = MAX_INDEXED) -> None:
        self.policy = policy
        self.progress = progress
        self.scanned_offset = progress.start_offset
        self.available = Available(policy.priority_ageing_ms)
        self.leases: dict[int, HeldLease] = {}
        self.pending: dict[int, HeldLease] = {}
        """The leases of messages that open transactions have acknowledged. They do not end."""
        self._overdue_pending: set[int] = set()
        self.dead_lettering: dict[int, Attempt] = {}
        self.expired_in_place: set[int] = set()
        """Dead letters whose entry is not popped yet from where they expired: available, withheld or blocked."""
        self.has_blocked_pending_keys = False
        self.keys = KeyOrder() if policy.ordering == "key" else None
        self._max_indexed = max_indexed
        self._timers: list[int] = []
        self._lease_ends: list[int] = []
        self._not_due: list[int] = []
        self._expiries: list[int] = []
        self._cancelled: set[int] = set()
        self._attempted_offsets = sorted(progress.attempts)

    @property
    def withheld_count(self) -> int:
        return len(self._timers) - len(self._cancelled)

    @property
    def is_full(self) -> bool:
        """Whether the index has reached its size limit, so that the scan pauses."""
        timers_count = len(self._timers) + len(self._not_due) + len(self._expiries) + len(self.expired_in_place)
        return self.available.cost >= self._max_indexed or timers_count >= self._max_indexed

    def take(self, runs: Iterable[Scanned], next_offset: int, now_ms: int) -> None:
        """Add the scanned messages up to `next_offset`."""
        if self.keys is not None:
            runs = [self._in_offset_order(run, now_ms) for run in runs]
        position = self.scanned_offset
        for run in runs:
            self._skip(position, run.start)
            if run.end > position:
                self._take(run._replace(start=max(run.start, position)), now_ms)
                position = run.end
        self._skip(position, next_offset)
        self.scanned_offset = max(self.scanned_offset, next_offset)
        if self._attempted_offsets and self._attempted_offsets[-1] < self.scanned_offset:
            self._attempted_offsets = []

    def _in_offset_order(self, run: Scanned, now_ms: int) -> Scanned:
        """With key order, a message takes its place by offset first and waits until it is due only at the head of
        its key.
        """
        if run.due_ms > now_ms:
            for offset in range(run.start, run.end):
                heapq.heappush(self._not_due, run.due_ms << _OFFSET_BITS | offset)
        return run._replace(priority=DEFAULT_PRIORITY, due_ms=0, group=NO_GROUP)

    def skip_to(self, offset: int) -> None:
        """Skip the offsets below the log start offset."""
        if offset > self.scanned_offset:
            self._skip(self.scanned_offset, offset)
            self.scanned_offset = offset

    def _skip(self, start: int, end: int) -> None:
        """Settle [start, end), where the log holds no message. No record is needed: a later scan finds the same."""
        if start < end:
            self.progress.settle(start, end)

    def _take(self, run: Scanned, now_ms: int) -> None:
        for start, end in self.progress.settled.gaps(max(run.start, self.progress.start_offset), run.end):
            position = start
            if run.expires_ms:
                for offset in range(start, end):
                    self.expire_at(offset, run.expires_ms)
            for offset in self._attempted(start, end):
                attempt = self.progress.attempts[offset]
                if self.keys is not None and attempt.dead_letter_reason is None:
                    continue  # It takes its place by offset and blocks later messages of its key.
                self._put_run(run, position, offset, now_ms)
                self.retry(offset, attempt, run.priority, run.group, now_ms)
                position = offset + 1
            self._put_run(run, position, end, now_ms)

    def _attempted(self, start: int, end: int) -> Iterator[int]:
        """Yield the messages of [start, end) that were delivered before this state was built."""
        if not self._attempted_offsets:
            return
        first, last = bisect_left(self._attempted_offsets, start), bisect_left(self._attempted_offsets, end)
        yield from (offset for offset in self._attempted_offsets[first:last] if offset in self.progress.attempts)

    def _put_run(self, run: Scanned, start: int, end: int, now_ms: int) -> None:
        if start >= end:
            return
        if run.due_ms > now_ms:
            for offset in range(start, end):
                self.withhold(offset, run.due_ms, run.priority)
        else:
            self.available.push_range(start, end, run.priority, run.since_ms, run.group)

    def retry(self, offset: int, attempt: Attempt, priority: int, group: str, now_ms: int) -> None:
        """Put a failed message into the place that its attempt determines: dead-lettering, withheld or available."""
        if attempt.dead_letter_reason is not None:
            self.dead_lettering[offset] = attempt
        elif attempt.due_ms > now_ms:
            self.withhold(offset, attempt.due_ms, priority)
        else:
            self.available.push(offset, priority, attempt.last_failure_ms, group)

    def withhold(self, offset: int, due_ms: int, priority: int) -> None:
        """Withhold a message until a time."""
        heapq.heappush(self._timers, (due_ms << _OFFSET_BITS | offset) << _PRIORITY_BITS | priority)

    def cancel(self, offset: int) -> None:
        """Remove a settled message that may be withheld or, with key order, may be on its way to the dead-letter
        topic before it is due.
        """
        self.dead_lettering.pop(offset, None)
        self.expired_in_place.discard(offset)
        if offset < self.scanned_offset and (self.keys is None or offset in map(_offset_of, self._timers)):
            self._cancelled.add(offset)

    def pop_due(self, now_ms: int, limit: int) -> Iterator[tuple[int, int, int]]:
        """Remove withheld messages that are due. Yields (offset, priority, due time in ms)."""
        for _ in range(limit):
            if not self._not_due or self._not_due[0] >> _OFFSET_BITS > now_ms:
                break
            heapq.heappop(self._not_due)
        while self._timers and limit and self.next_due_ms() <= now_ms:
            limit -= 1
            timer = heapq.heappop(self._timers)
            offset = _offset_of(timer)
            if offset in self._cancelled:
                self._cancelled.discard(offset)
            else:
                yield offset, timer & _PRIORITY_MASK, timer >> _DUE_SHIFT

    def expire_at(self, offset: int, time_ms: int) -> None:
        """Make `pop_overdue` return a message at the end of its time to live."""
        heapq.heappush(self._expiries, time_ms << _OFFSET_BITS | offset)

    def pop_overdue(self, now_ms: int, limit: int) -> Iterator[int]:
        """Yield messages past their time to live that are available or due; some may be settled already.

        A leased message can still be settled, so it is checked again after its lease. A message that waits for a retry
        is checked again when it is due, a pending one when its transaction has ended.
        """
        while self._expiries and limit and self._expiries[0] >> _OFFSET_BITS <= now_ms:
            limit -= 1
            offset = heapq.heappop(self._expiries) & _OFFSET_MASK
            lease, attempt = self.leases.get(offset), self.progress.attempts.get(offset)
            if offset in self.progress.pending:
                self._overdue_pending.add(offset)
            elif lease is not None:
                self.expire_at(offset, max(lease.ends_ms, now_ms + 1))
            elif attempt is not None and attempt.due_ms > now_ms:
                self.expire_at(offset, attempt.due_ms)
            else:
                yield offset

    def end_pending(self, offset: int) -> HeldLease | None:
        """A message is not pending any more. Returns its lease, unless the message is still among those to be leased
        next.
        """
        if offset in self._overdue_pending:
            self._overdue_pending.discard(offset)
            self.expire_at(offset, 0)
        return self.pending.pop(offset, None)

    def next_due_ms(self) -> int:
        """Return when the first withheld message is due. There must be one."""
        return self._timers[0] >> _DUE_SHIFT

    def first_withheld_offset(self) -> int | None:
        """Return the lowest withheld offset."""
        not_due = (timer & _OFFSET_MASK for timer in self._not_due)
        return min((*map(_offset_of, self._timers), *not_due), default=None)

    def lease(self, offset: int, lease: HeldLease) -> None:
        """Grant a lease, or change the end of a granted one."""
        self.leases[offset] = lease
        heapq.heappush(self._lease_ends, lease.ends_ms << _OFFSET_BITS | offset)
        if len(self._lease_ends) > 2 * len(self.leases) + _MAX_STALE_ENDS:
            self._lease_ends = [held.ends_ms << _OFFSET_BITS | offset for offset, held in self.leases.items()]
            heapq.heapify(self._lease_ends)

    def pop_ended(self, now_ms: int, limit: int) -> list[tuple[int, HeldLease]]:
        """Remove and return leases that have ended."""
        ended: list[tuple[int, HeldLease]] = []
        while len(ended) < limit:
            end_ms = self.next_lease_end_ms()
            if end_ms is None or end_ms > now_ms:
                break
            offset = heapq.heappop(self._lease_ends) & _OFFSET_MASK
            ended.append((offset, self.leases.pop(offset)))
        return ended

    def next_lease_end_ms(self) -> int | None:
        """Return when the first lease ends. Drops the ends of leases that were extended or settled."""
        ends = self._lease_ends
        while ends:
            end_ms, offset = ends[0] >> _OFFSET_BITS, ends[0] & _OFFSET_MASK
            lease = self.leases.get(offset)
            if lease is not None and lease.ends_ms == end_ms:
                return end_ms
            heapq.heappop(ends)
        return None

    def clock_set(self, by_ms: int) -> None:
        """Shift the ends of leases and backoffs by `by_ms`, here and in `progress`, because the wall clock was set."""
        for offset, lease in self.leases.items():
            self.leases[offset] = lease._replace(ends_ms=lease.ends_ms + by_ms)
        self._lease_ends = [lease.ends_ms << _OFFSET_BITS | offset for offset, lease in self.leases.items()]
        heapq.heapify(self._lease_ends)
        backoffs = {
            offset: attempt.due_ms
            for offset, attempt in self.progress.attempts.items()
            if attempt.dead_letter_reason is None
        }
        self._timers = [
            timer + (by_ms << _DUE_SHIFT if timer >> _DUE_SHIFT == backoffs.get(_offset_of(timer)) else 0)
            for timer in self._timers
        ]
        heapq.heapify(self._timers)
        self.progress.clock_set(by_ms)

    def next_deadline_ms(self) -> int | None:
        """Return when the first timer, expiry or lease end is due."""
        due_ms = self.next_due_ms() if self._timers else None
        not_due_ms = self._not_due[0] >> _OFFSET_BITS if self._not_due else None
        expiry_ms = self._expiries[0] >> _OFFSET_BITS if self._expiries else None
        deadlines_ms = (due_ms, not_due_ms, expiry_ms, self.next_lease_end_ms())
        return min((deadline_ms for deadline_ms in deadlines_ms if deadline_ms is not None), default=None)


def _offset_of(timer: int) -> int:
    return timer >> _PRIORITY_BITS & _OFFSET_MASK
