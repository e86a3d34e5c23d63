"""A clock that stands still until it is moved."""

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count

DEFAULT_START_MS = 1_700_000_000_000


class ManualClock:
    """See `conveyor.kernel.ports.Clock`. Not safe to share between threads; `Broker.clock` is."""

    def __init__(self, start_ms: int = DEFAULT_START_MS) -> None:
        self._now_ms = start_ms
        self._order = count()
        self._alarms: list[tuple[int, int, Callable[[], None]]] = []
        self._cancelled: set[int] = set()

    def now_ms(self) -> int:
        return self._now_ms

    def call_at(self, when_ms: int, callback: Callable[[], None]) -> Callable[[], None]:
        number = next(self._order)
        heappush(self._alarms, (when_ms, number, callback))
        return lambda: self._cancelled.add(number)

    def advance(self, *, seconds: float = 0, ms: int = 0) -> None:
        """Move on, calling back what falls due on the way, each at its own time."""
        end_ms = self._now_ms + round(seconds * 1000) + ms
        if end_ms < self._now_ms:
            raise ValueError("time only moves on: advance by 0 or more")
        while self._alarms and self._alarms[0][0] <= end_ms:
            when_ms, number, callback = heappop(self._alarms)
            if number in self._cancelled:
                self._cancelled.discard(number)
                continue
            self._now_ms = max(self._now_ms, when_ms)
            callback()
        self._now_ms = end_ms
