"""The delivery state of one subscription in one partition: soft state, rebuilt from its `Progress` and the log.

    not scanned -> withheld (not due) -> available -> leased -> settled
                                            ^            |
                                            +- retry ----+-> dead_lettering (on its way to the dead-letter topic)
                                            ^            |
                                            +- (abort) --+-> pending (acknowledged in a transaction) -> settled

Invariant: every unsettled message below `scanned_offset` is in exactly one of these places: `available`, `withheld`
until it is due, `leases`, `leases.pending`, `dead_lettering`, or behind another message of its key in `ordering`.
A settled message keeps its entry until that is popped. A dead letter in `expired_in_place` that is delivered again
takes its old entry: with a second one it would be leased twice.
"""

from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator

from conveyor.kernel.range_set import ranges_of
from conveyor.log.record_source import MessageSource
from conveyor.queues.delivery.available import Available
from conveyor.queues.delivery.dead_lettering import DeadLettering
from conveyor.queues.delivery.ended_leases import EndedLeases
from conveyor.queues.delivery.expiries import Expiries
from conveyor.queues.delivery.held_leases import HeldLeases, Lease
from conveyor.queues.delivery.ordering import ordering_of
from conveyor.queues.delivery.timers import NotDue, Withheld
from conveyor.queues.messages.scan import NO_GROUP, Scanned
from conveyor.queues.queue_commands import SubscriptionProbe
from conveyor.queues.subscription.policy import Subscription
from conveyor.queues.subscription.queue_records import Attempt, Range
from conveyor.queues.subscription.subscription_progress import Progress
from conveyor.records.message_attributes import DEFAULT_PRIORITY, MessageAttributes

MAX_INDEXED = 20_000_000
"""The most runs of available messages, and the most timers, that are scanned ahead. Delivery order is exact among
scanned messages.
"""


class Deliveries:
    """The delivery state; see the module's docstring."""

    def __init__(self, subscription: Subscription, progress: Progress, probe: SubscriptionProbe) -> None:
        self._progress = progress
        self.scanned_offset = progress.start_offset
        self.available = Available(subscription.policy.priority_ageing_ms)
        self.ordering = ordering_of(subscription.policy)
        self.leases = HeldLeases()
        self.ended = EndedLeases()
        self.withheld = Withheld()
        self.dead_lettering = DeadLettering(subscription.id, progress, probe)
        self.not_due = NotDue()
        """Messages that have their place by offset before they are due. The log must keep them."""
        self.expiries = Expiries(progress, self.leases)
        self._attempted_offsets = sorted(progress.attempts)
        self._unread_pending = sorted(progress.pending, reverse=True) if self.ordering.is_by_offset else []
        """Messages that were pending when this state was built, and whose keys are unknown, the first one last."""

    @property
    def is_full(self) -> bool:
        """Whether the index has reached its size limit, so that the scan pauses."""
        timers_count = len(self.withheld) + len(self.not_due) + len(self.expiries)
        return max(self.available.cost, timers_count + len(self.dead_lettering.expired_in_place)) >= MAX_INDEXED

    def take(self, runs: Iterable[Scanned], next_offset: int, now_ms: int) -> None:
        """Add the scanned messages up to `next_offset`."""
        if self.ordering.is_by_offset:
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
        """See `NoOrder.is_by_offset`."""
        if run.due_ms > now_ms:
            for offset in range(run.start, run.end):
                self.not_due.add(offset, run.due_ms)
        return run._replace(priority=DEFAULT_PRIORITY, due_ms=0, group=NO_GROUP)

    def _skip(self, start: int, end: int) -> None:
        """Settle [start, end), where the log holds no message. No record is needed: a later scan finds the same."""
        if start < end:
            self._progress.settle(start, end)

    def _take(self, run: Scanned, now_ms: int) -> None:
        for start, end in self._progress.settled.gaps(max(run.start, self._progress.start_offset), run.end):
            position = start
            if run.expires_ms:
                for offset in range(start, end):
                    self.expiries.add(offset, run.expires_ms)
            for offset in self._attempted(start, end):
                attempt = self._progress.attempts[offset]
                if self.ordering.is_by_offset and attempt.dead_letter_reason is None:
                    if attempt.due_ms > now_ms:
                        self.not_due.add(offset, attempt.due_ms)
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
        yield from (offset for offset in self._attempted_offsets[first:last] if offset in self._progress.attempts)

    def _put_run(self, run: Scanned, start: int, end: int, now_ms: int) -> None:
        if start >= end:
            return
        if run.due_ms > now_ms:
            for offset in range(start, end):
                self.withheld.add(offset, run.due_ms, run.priority)
        else:
            self.available.push_range(start, end, run.priority, run.since_ms, run.group)

    def retry(self, offset: int, attempt: Attempt, priority: int, group: str, now_ms: int) -> None:
        """Put a failed message into the place that its attempt determines: dead-lettering, withheld or available."""
        if attempt.dead_letter_reason is not None:
            self.dead_lettering[offset] = attempt
        elif attempt.due_ms > now_ms:
            self.withheld.add(offset, attempt.due_ms, priority)
        else:
            self.available.push(offset, priority, attempt.last_failure_ms, group)

    def put_back(self, offset: int, attributes: MessageAttributes, group: str, now_ms: int) -> None:
        """Make a dead letter available again, unless the scan will do so, or its old entry is still there."""
        in_place = self.dead_lettering.expired_in_place
        if offset in in_place or offset >= self.scanned_offset:
            in_place.discard(offset)
        elif self.ordering.is_by_offset:
            self.available.push(offset, DEFAULT_PRIORITY, 0)
        else:
            self.retry(offset, Attempt(0, now_ms, now_ms, attributes.due_ms), attributes.priority, group, now_ms)

    def block_keys_of_pending(self, source: MessageSource) -> None:
        """With key order, let messages wait behind those that were pending when this state was built. After
        StorageFailure, the next call continues.
        """
        unread = self._unread_pending
        while unread:
            offset = unread[-1]
            message = source.get(offset) if offset in self._progress.pending else None
            if message is not None:
                self.ordering.hold(offset, message.key)
            unread.pop()

    def settled(self, offsets: Collection[int]) -> None:
        """Messages are settled: the next messages of their keys may be leased."""
        self.ended.forget(offsets)
        for offset in self.ordering.settled(offsets):
            self.available.push(offset, DEFAULT_PRIORITY, 0)

    def returned(self, offsets: Iterable[int]) -> None:
        """Messages that were leased have another place again, and others of their keys may be leased before them."""
        for offset in self.ordering.returned(offsets):
            self.available.push(offset, DEFAULT_PRIORITY, 0)

    def cancel(self, offset: int) -> None:
        """Remove a settled message that may be withheld or, with key order, may be on its way to the dead-letter
        topic before it is due.
        """
        self.dead_lettering.pop(offset, None)
        self.dead_lettering.expired_in_place.discard(offset)
        self.withheld.cancel(offset)
        self.settled((offset,))

    def acquire(self, start: int, end: int, lease: Lease) -> list[Range]:
        """Lease the messages of [start, end), which were available, without those that are settled or on their way to
        the dead-letter topic. Returns the ranges that are leased.
        """
        ranges = list(self._progress.settled.gaps(max(start, self._progress.start_offset), end))
        if self.dead_lettering:
            offsets = [offset for first, last in ranges for offset in range(first, last)]
            ranges = ranges_of(offset for offset in offsets if offset not in self.dead_lettering)
        for first, last in ranges:
            self.leases.grant(first, last, lease)
        if ranges != [(start, end)]:
            settled = [offset for offset in range(start, end) if offset not in self.leases]
            self.dead_lettering.expired_in_place.difference_update(settled)
            self.settled(settled)
        return ranges

    def pop_due(self, now_ms: int, limit: int) -> Iterator[tuple[int, int, int]]:
        """Remove withheld messages that are due. Yields (offset, priority, due time in ms)."""
        for _ in self.not_due.pop_due(now_ms, limit):
            pass
        return self.withheld.pop_due(now_ms, limit)

    @property
    def work_count(self) -> int:
        """The number of timers that were added, and of deadlines that have passed so far, whatever followed. What takes
        longer counts for more.
        """
        timers_count = self.withheld.work_count + self.not_due.work_count + self.expiries.work_count
        return timers_count + self.leases.work_count

    def retain_from_offset(self) -> int | None:
        """Return the lowest offset that is not due or on its way to the dead-letter topic: the log must keep it."""
        first = (self.withheld.offsets.first(), self.not_due.offsets.first(), min(self.dead_lettering, default=None))
        return min((offset for offset in first if offset is not None), default=None)

    def clock_set(self, by_ms: int) -> None:
        """Shift the ends of leases and backoffs by `by_ms`, here and in `progress`, because the wall clock was set."""
        self.leases.clock_set(by_ms)
        attempts = self._progress.attempts.items()
        backoffs = {offset: attempt.due_ms for offset, attempt in attempts if attempt.dead_letter_reason is None}
        self.withheld.clock_set(backoffs, by_ms)
        self.not_due.shift(backoffs, by_ms)
        self._progress.clock_set(by_ms)

    def next_deadline_ms(self) -> int | None:
        """Return when the first timer, expiry or lease end is due."""
        first_ms = self.leases.next_end_ms()
        for timers in (self.withheld, self.not_due, self.expiries):
            if timers:
                first_ms = timers.next_ms() if first_ms is None else min(first_ms, timers.next_ms())
        return first_ms
