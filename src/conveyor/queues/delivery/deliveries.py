"""What one subscription is doing in one partition: soft state, made from its `Progress` and the log, lost with them.

    not scanned -> withheld (not due) -> available -> leased -> settled
                                            ^            |
                                            +- retry ----+-> doomed (on its way to the dead-letter topic)

Every unsettled message below `scanned_offset` is in exactly one of these places: `available`, the timers (withheld
until it is due), `leases`, `doomed`, or in line behind another message of its key (`keys`).
"""

import heapq
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from conveyor.queues.delivery.available import NO_GROUP, Available
from conveyor.queues.delivery.key_order import KeyOrder
from conveyor.queues.messages.scan import Scanned
from conveyor.queues.subscription.policy import Policy
from conveyor.queues.subscription.queue_records import Attempt
from conveyor.queues.subscription.subscription_progress import Progress
from conveyor.records.message_attributes import DEFAULT_PRIORITY

MAX_INDEXED = 20_000_000
"""What is scanned ahead at most: runs of available messages, and timers. Order is exact among what is scanned."""

_OFFSET_BITS = 56
_PRIORITY_BITS = 4
_FORGOTTEN_ENDS = 1_000
_DUE_SHIFT = _OFFSET_BITS + _PRIORITY_BITS
_OFFSET_MASK = (1 << _OFFSET_BITS) - 1
_PRIORITY_MASK = (1 << _PRIORITY_BITS) - 1


class Lease(NamedTuple):
    """Who has a message: the lease's number, when it ends, the how-manieth delivery this is; and where it came from."""

    number: int
    ends_ms: int
    delivery_count: int
    priority: int
    group: str


class Deliveries:
    """See the module's docstring."""

    def __init__(self, policy: Policy, progress: Progress, max_indexed: int = MAX_INDEXED) -> None:
        self.policy = policy
        self.progress = progress
        self.scanned_offset = progress.start_offset
        self.available = Available(policy.priority_ageing_ms)
        self.leases: dict[int, Lease] = {}
        self.doomed: dict[int, Attempt] = {}
        self.keys = KeyOrder() if policy.ordering == "key" else None
        self._max_indexed = max_indexed
        self._timers: list[int] = []
        self._lease_ends: list[int] = []
        self._not_due: list[int] = []
        self._expiries: list[int] = []
        self._cancelled: set[int] = set()
        self._to_meet = sorted(progress.attempts)

    @property
    def withheld_count(self) -> int:
        return len(self._timers) - len(self._cancelled)

    @property
    def is_full(self) -> bool:
        """Whether enough of the log is scanned for now."""
        timers_count = len(self._timers) + len(self._not_due) + len(self._expiries)
        return self.available.cost >= self._max_indexed or timers_count >= self._max_indexed

    def take(self, runs: Iterable[Scanned], next_offset: int, now_ms: int) -> None:
        """Go on to an offset; the messages up to there are these."""
        if self.keys is not None:
            runs = [self._unordered(each, now_ms) for each in runs]
        at = self.scanned_offset
        for run in runs:
            self._skip(at, run.start)
            if run.end > at:
                self._take(run._replace(start=max(run.start, at)), now_ms)
                at = run.end
        self._skip(at, next_offset)
        self.scanned_offset = max(self.scanned_offset, next_offset)
        if self._to_meet and self._to_meet[-1] < self.scanned_offset:
            self._to_meet = []

    def _unordered(self, run: Scanned, now_ms: int) -> Scanned:
        """With key order, messages come in the order of their offsets, and only then wait until they are due."""
        if run.due_ms > now_ms:
            for offset in range(run.start, run.end):
                heapq.heappush(self._not_due, run.due_ms << _OFFSET_BITS | offset)
        return run._replace(priority=DEFAULT_PRIORITY, due_ms=0, group=NO_GROUP)

    def skip_to(self, offset: int) -> None:
        """The log has let go of everything below an offset."""
        if offset > self.scanned_offset:
            self._skip(self.scanned_offset, offset)
            self.scanned_offset = offset

    def _skip(self, start: int, end: int) -> None:
        """There is no message in [start, end): the log says so, and will say so again; no record has to."""
        if start < end:
            self.progress.settle(start, end)

    def _take(self, run: Scanned, now_ms: int) -> None:
        for start, end in self.progress.settled.gaps(max(run.start, self.progress.start_offset), run.end):
            at = start
            if run.expires_ms:
                for offset in range(start, end):
                    self.expire_at(offset, run.expires_ms)
            for offset in self._attempted(start, end):
                attempt = self.progress.attempts[offset]
                if self.keys is not None and attempt.doomed is None:
                    continue  # In its turn by offset: what waits, lets those of its key wait.
                self._put_run(run, at, offset, now_ms)
                self.retry(offset, attempt, run.priority, run.group, now_ms)
                at = offset + 1
            self._put_run(run, at, end, now_ms)

    def _attempted(self, start: int, end: int) -> Iterator[int]:
        """The messages that were delivered before this state was made, and are now come upon."""
        if not self._to_meet:
            return
        first, last = bisect_left(self._to_meet, start), bisect_left(self._to_meet, end)
        yield from (each for each in self._to_meet[first:last] if each in self.progress.attempts)

    def _put_run(self, run: Scanned, start: int, end: int, now_ms: int) -> None:
        if start >= end:
            return
        if run.due_ms > now_ms:
            for offset in range(start, end):
                self.withhold(offset, run.due_ms, run.priority)
        else:
            self.available.push_range(start, end, run.priority, run.since_ms, run.group)

    def retry(self, offset: int, attempt: Attempt, priority: int, group: str, now_ms: int) -> None:
        """Put a message that has failed where it waits for what comes next."""
        if attempt.doomed is not None:
            self.doomed[offset] = attempt
        elif attempt.due_ms > now_ms:
            self.withhold(offset, attempt.due_ms, priority)
        else:
            self.available.push(offset, priority, attempt.last_failure_ms, group)

    def withhold(self, offset: int, due_ms: int, priority: int) -> None:
        """Hand a message out at a time, and not before."""
        heapq.heappush(self._timers, (due_ms << _OFFSET_BITS | offset) << _PRIORITY_BITS | priority)

    def cancel(self, offset: int) -> None:
        """A message is settled that may be withheld, or, with key order, be given up before it is due."""
        self.doomed.pop(offset, None)
        if offset < self.scanned_offset and (self.keys is None or offset in map(_offset_of, self._timers)):
            self._cancelled.add(offset)

    def pop_due(self, now_ms: int, limit: int) -> Iterator[tuple[int, int, int]]:
        """Take out withheld messages that are due: their offset, priority, and when they were."""
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
        """Look at a message again when its time to live is over, wherever it is then."""
        heapq.heappush(self._expiries, time_ms << _OFFSET_BITS | offset)

    def pop_overdue(self, now_ms: int, limit: int) -> Iterator[int]:
        """Messages whose time to live is over and that wait to be leased, or may do so; some are settled by now.

        Who has leased one may still settle it, and one that is tried again expires when it would be.
        """
        while self._expiries and limit and self._expiries[0] >> _OFFSET_BITS <= now_ms:
            limit -= 1
            offset = heapq.heappop(self._expiries) & _OFFSET_MASK
            lease, attempt = self.leases.get(offset), self.progress.attempts.get(offset)
            if lease is not None:
                self.expire_at(offset, max(lease.ends_ms, now_ms + 1))
            elif attempt is not None and attempt.due_ms > now_ms:
                self.expire_at(offset, attempt.due_ms)
            else:
                yield offset

    def next_due_ms(self) -> int:
        """When the first withheld message is due; there must be one."""
        return self._timers[0] >> _DUE_SHIFT

    def first_withheld_offset(self) -> int | None:
        """The lowest offset of all that is withheld."""
        not_due = (each & _OFFSET_MASK for each in self._not_due)
        return min((*map(_offset_of, self._timers), *not_due), default=None)

    def lease(self, offset: int, lease: Lease) -> None:
        """Give a lease, or another end to one that is given."""
        self.leases[offset] = lease
        heapq.heappush(self._lease_ends, lease.ends_ms << _OFFSET_BITS | offset)
        if len(self._lease_ends) > 2 * len(self.leases) + _FORGOTTEN_ENDS:
            self._lease_ends = [each.ends_ms << _OFFSET_BITS | offset for offset, each in self.leases.items()]
            heapq.heapify(self._lease_ends)

    def pop_ended(self, now_ms: int, limit: int) -> list[tuple[int, Lease]]:
        """Take out leases that have ended."""
        ended: list[tuple[int, Lease]] = []
        while len(ended) < limit:
            end_ms = self.next_lease_end_ms()
            if end_ms is None or end_ms > now_ms:
                break
            offset = heapq.heappop(self._lease_ends) & _OFFSET_MASK
            ended.append((offset, self.leases.pop(offset)))
        return ended

    def next_lease_end_ms(self) -> int | None:
        """When the first lease ends. Ends of leases that were extended or settled are forgotten here."""
        ends = self._lease_ends
        while ends:
            end_ms, offset = ends[0] >> _OFFSET_BITS, ends[0] & _OFFSET_MASK
            lease = self.leases.get(offset)
            if lease is not None and lease.ends_ms == end_ms:
                return end_ms
            heapq.heappop(ends)
        return None

    def clock_set(self, by_ms: int) -> None:
        """The wall clock was set: move the ends of leases and of backoffs along, here and in `progress`."""
        for offset, lease in self.leases.items():
            self.leases[offset] = lease._replace(ends_ms=lease.ends_ms + by_ms)
        self._lease_ends = [lease.ends_ms << _OFFSET_BITS | offset for offset, lease in self.leases.items()]
        heapq.heapify(self._lease_ends)
        backoffs = {offset: each.due_ms for offset, each in self.progress.attempts.items() if each.doomed is None}
        self._timers = [
            timer + (by_ms << _DUE_SHIFT if timer >> _DUE_SHIFT == backoffs.get(_offset_of(timer)) else 0)
            for timer in self._timers
        ]
        heapq.heapify(self._timers)
        self.progress.clock_set(by_ms)

    def next_deadline_ms(self) -> int | None:
        """When the first thing happens by itself."""
        due_ms = self.next_due_ms() if self._timers else None
        not_due_ms = self._not_due[0] >> _OFFSET_BITS if self._not_due else None
        expiry_ms = self._expiries[0] >> _OFFSET_BITS if self._expiries else None
        deadlines_ms = (due_ms, not_due_ms, expiry_ms, self.next_lease_end_ms())
        return min((each for each in deadlines_ms if each is not None), default=None)


def _offset_of(timer: int) -> int:
    return timer >> _PRIORITY_BITS & _OFFSET_MASK
