"""The next deadline of each group or transactional id, in a heap.

When a key's deadline moves later, its old entry stays: it still falls due once, and the owner then sets the later
deadline.
"""

from collections.abc import Iterator
from heapq import heappop, heappush


class Deadlines:
    """At most one deadline per key: the earliest that was put."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, str]] = []
        self._queued: dict[str, int] = {}

    def next_ms(self) -> int | None:
        return self._heap[0][0] if self._heap else None

    def put(self, key: str, deadline_ms: int) -> None:
        queued = self._queued.get(key)
        if queued is None or deadline_ms < queued:
            self._queued[key] = deadline_ms
            heappush(self._heap, (deadline_ms, key))

    def pop_due(self, now_ms: int) -> Iterator[str]:
        """Remove and yield the keys whose deadline has passed."""
        while self._heap and self._heap[0][0] <= now_ms:
            deadline, key = heappop(self._heap)
            if self._queued.get(key) == deadline:
                del self._queued[key]
                yield key
