"""The next deadline of each subscription of a partition, in a heap."""

from heapq import heapify, heappop, heappush
from uuid import UUID

_STALE_COUNT = 1_000


class Timetable:
    """At most one deadline per subscription; see the module's docstring."""

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

    def pop_due(self, now_ms: int) -> list[UUID]:
        """Remove and return the subscriptions whose deadline has passed."""
        due: list[UUID] = []
        while (first_ms := self.first_ms()) is not None and first_ms <= now_ms:
            due.append(heappop(self._heap)[1])
            del self._times_ms[due[-1]]
        return due
