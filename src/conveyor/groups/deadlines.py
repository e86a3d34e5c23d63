"""The next deadline of each group, in a heap.

When a group's deadline moves later, its old entry stays: it still falls due once, and the owner then sets the later
deadline.
"""

from collections.abc import Iterator
from heapq import heappop, heappush


class Deadlines:
    """At most one deadline per group: the earliest that was put."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, str]] = []
        self._queued: dict[str, int] = {}

    def next_ms(self) -> int | None:
        return self._heap[0][0] if self._heap else None

    def put(self, group_id: str, deadline_ms: int) -> None:
        queued = self._queued.get(group_id)
        if queued is None or deadline_ms < queued:
            self._queued[group_id] = deadline_ms
            heappush(self._heap, (deadline_ms, group_id))

    def pop_due(self, now_ms: int) -> Iterator[str]:
        """Remove and yield the groups whose deadline has passed."""
        while self._heap and self._heap[0][0] <= now_ms:
            deadline, group_id = heappop(self._heap)
            if self._queued.get(group_id) == deadline:
                del self._queued[group_id]
                yield group_id
