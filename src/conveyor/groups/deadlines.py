"""When each group must be looked at next. A deadline that has moved on is seen when the old one is due."""

from collections.abc import Iterator
from heapq import heappop, heappush


class Deadlines:
    """See the module's docstring. A group has one deadline at most: the earliest that was asked for."""

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
        """The groups whose time has come; they have no deadline any more."""
        while self._heap and self._heap[0][0] <= now_ms:
            deadline, group_id = heappop(self._heap)
            if self._queued.get(group_id) == deadline:
                del self._queued[group_id]
                yield group_id
