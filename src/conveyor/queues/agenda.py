"""The queues of one partition that have something to do: a deadline, messages to scan, dead letters, or new messages.

The cost of a command for one subscription does not depend on the number of subscriptions: after each change of a queue,
`update` stores its next deadline, and whether it lags behind the log or has messages to dead-letter.
"""

from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from uuid import UUID

from conveyor.log.record_source import StillPacked
from conveyor.queues.delivery.subscription_queue import SubscriptionQueue

_STALE_COUNT = 1_000


class Timetable:
    """At most one deadline per subscription, in a heap."""

    def __init__(self) -> None:
        self._times_ms: dict[UUID, int] = {}
        self._heap: list[tuple[int, UUID]] = []

    def set(self, subscription: UUID, time_ms: int | None) -> None:
        """Replace a subscription's deadline; None removes it."""
        if time_ms == self._times_ms.get(subscription):
            return
        if time_ms is None:
            del self._times_ms[subscription]
            return
        self._times_ms[subscription] = time_ms
        heappush(self._heap, (time_ms, subscription))
        if len(self._heap) > 2 * len(self._times_ms) + _STALE_COUNT:
            self._heap = [(deadline_ms, identity) for identity, deadline_ms in self._times_ms.items()]
            heapify(self._heap)

    def first_ms(self) -> int | None:
        """Return the earliest deadline."""
        while self._heap and self._times_ms.get(self._heap[0][1]) != self._heap[0][0]:
            heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def pop_due(self, now_ms: int) -> UUID | None:
        """Remove and return the subscription with the earliest deadline, if that has passed."""
        first_ms = self.first_ms()
        if first_ms is None or first_ms > now_ms:
            return None
        subscription = heappop(self._heap)[1]
        del self._times_ms[subscription]
        return subscription


class Agenda:
    """See the module's docstring. stable_offset: the last stable offset of the log, up to which the queues scan.
    deadlines: `update` must follow where one was popped.
    """

    def __init__(self) -> None:
        self.stable_offset = 0
        self.deadlines = Timetable()
        self._lagging: dict[UUID, SubscriptionQueue] = {}
        self._dead_lettering: dict[UUID, SubscriptionQueue] = {}
        self._packed: dict[UUID, tuple[SubscriptionQueue, StillPacked]] = {}
        """The batch that a queue needs for its deadlines. Meanwhile it has none in the timetable."""
        self._changed: set[UUID] = set()

    def update(self, queue: SubscriptionQueue) -> None:
        """Update a queue's deadline, and whether it lags or has messages to dead-letter."""
        identity, deliveries = queue.subscription.id, queue.deliveries
        self._changed.add(identity)
        self.deadlines.set(identity, None if identity in self._packed else deliveries.next_deadline_ms())
        if deliveries.scanned_offset < self.stable_offset:
            self._lagging[identity] = queue
        else:
            self._lagging.pop(identity, None)
        if deliveries.dead_lettering:
            self._dead_lettering[identity] = queue
        else:
            self._dead_lettering.pop(identity, None)

    def remove(self, subscription: UUID) -> None:
        """Remove the queue of a deleted subscription."""
        self.deadlines.set(subscription, None)
        for queues in (self._packed, self._lagging, self._dead_lettering):
            queues.pop(subscription, None)

    def rise_to(self, stable_offset: int, queues: Iterable[SubscriptionQueue]) -> None:
        """Set a higher last stable offset: all queues of the partition lag now."""
        if stable_offset > self.stable_offset:
            self.stable_offset = stable_offset
            self._lagging |= {queue.subscription.id: queue for queue in queues}

    def behind(self) -> list[SubscriptionQueue]:
        """Return the queues that have to scan the log."""
        return [queue for queue in self._lagging.values() if not queue.deliveries.is_full]

    def dead_lettering(self) -> list[SubscriptionQueue]:
        """Return the queues with messages on their way to the dead-letter topic."""
        return list(self._dead_lettering.values())

    def take_changed(self) -> set[UUID]:
        """Return the subscriptions that may have new messages since the last call."""
        changed, self._changed = self._changed, set()
        return changed

    def wait_for(self, packed: StillPacked, queue: SubscriptionQueue) -> None:
        """Suspend a queue's deadlines until `unpacked`, because they need a batch."""
        self._packed[queue.subscription.id] = queue, packed

    @property
    def packed(self) -> StillPacked | None:
        """A batch that must be decompressed for a passed deadline. Once the source has it, call `unpacked`."""
        return next((packed for _, packed in self._packed.values()), None)

    def unpacked(self) -> None:
        """Let `expire` decide on the deadlines that needed a batch."""
        waiting, self._packed = self._packed, {}
        for queue, _ in waiting.values():
            self.update(queue)
