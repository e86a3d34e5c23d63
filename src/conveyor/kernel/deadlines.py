"""The next deadline of each group, transactional id or kept answer, in a heap.

When a key's deadline moves later, its old entry stays: it still falls due once, and the owner then sets the later
deadline. When a key's deadline moves earlier, its old entry counts no more. Such entries are removed once most are of
that kind: a transactional id may leave one with each transaction, and they would be due only days later.
"""

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=str | tuple[str, str])

_MOST_UNUSED = 1_000
"""The most entries without effect, beside as many as there are keys."""


class Deadlines(Generic[Key]):
    """At most one deadline per key: the earliest that was put."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, Key]] = []
        self._queued: dict[Key, int] = {}

    def next_ms(self) -> int | None:
        return self._heap[0][0] if self._heap else None

    def put(self, key: Key, deadline_ms: int) -> None:
        queued = self._queued.get(key)
        if queued is None or deadline_ms < queued:
            self._queued[key] = deadline_ms
            heappush(self._heap, (deadline_ms, key))
            if len(self._heap) > 2 * len(self._queued) + _MOST_UNUSED:
                self._heap = [(queued_ms, queued_key) for queued_key, queued_ms in self._queued.items()]
                heapify(self._heap)

    def pop_due(self, now_ms: int) -> Iterator[Key]:
        """Remove and yield the keys whose deadline has passed."""
        while self._heap and self._heap[0][0] <= now_ms:
            deadline, key = heappop(self._heap)
            if self._queued.get(key) == deadline:
                del self._queued[key]
                yield key
