"""A clock that stands still until a test moves it."""

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count

from conveyor.kernel.signal import Signal

DEFAULT_START_MS = 1_700_000_000_000

_MOST_AT_ONE_INSTANT = 1_000


class ManualClock:
    """See `conveyor.kernel.ports.Clock`. Not thread-safe; `Broker.clock` is."""

    def __init__(self, start_ms: int = DEFAULT_START_MS) -> None:
        self._steady_ms = 0
        self._offset_ms = start_ms
        self._numbers = count()
        self._timers: list[_Callback] = []
        self._alarms: list[_Callback] = []
        self._was_set: Signal[int] = Signal()
        self._first_number = 0
        self._count_at_instant = 0

    def now_ms(self) -> int:
        return self._steady_ms + self._offset_ms

    def steady_ms(self) -> int:
        return self._steady_ms

    def call_at(self, when_ms: int, callback: Callable[[], None]) -> Callable[[], None]:
        return self._put(self._alarms, when_ms, callback)

    def call_later(self, delay_ms: int, callback: Callable[[], None]) -> Callable[[], None]:
        return self._put(self._timers, self._steady_ms + delay_ms, callback)

    def time_out(self, wait_ms: int, callback: Callable[[], None]) -> Callable[[], None]:
        return self.call_later(wait_ms, callback)

    def when_set(self, callback: Callable[[int], None]) -> Callable[[], None]:
        return self._was_set.listen(callback)

    def set_wall_clock(self, *, by_seconds: float) -> None:
        """Set the wall clock forward or (negative) back, as NTP may do. Durations keep their length."""
        by_ms = round(by_seconds * 1000)
        self._offset_ms += by_ms
        self._was_set.emit(by_ms)

    def advance(self, *, seconds: float = 0, ms: int = 0) -> None:
        """Move time forward and run the callbacks that fall due, each at its own time.

        Raises ValueError for a negative move, RuntimeError if callbacks endlessly set others for the same instant.
        """
        end_ms = self.begin(seconds=seconds, ms=ms)
        while (callback := self.next_callback(end_ms)) is not None:
            callback()

    def forget_callbacks(self) -> None:
        """Remove all callbacks and listeners: their owner has stopped."""
        self._timers.clear()
        self._alarms.clear()
        self._was_set = Signal()

    def begin(self, *, seconds: float = 0, ms: int = 0) -> int:
        """Start a move. Returns its end for `next_callback`. Raises ValueError for a negative move."""
        duration_ms = round(seconds * 1000) + ms
        if duration_ms < 0:
            raise ValueError("time cannot move back: advance by 0 or more")
        self._begin_instant()
        return self._steady_ms + duration_ms

    def next_callback(self, end_ms: int) -> Callable[[], None] | None:
        """Advance to the next callback that is due by the end of the move, and remove it; the caller calls it.

        Returns None, with the clock at the end, if there is none. Raises RuntimeError, as `advance` does.
        """
        queue = self._next_queue()
        due_ms = self._due_ms(queue) if queue else end_ms + 1
        if due_ms > end_ms:
            self._steady_ms = max(self._steady_ms, end_ms)
            return None
        if due_ms > self._steady_ms:
            self._steady_ms = due_ms
            self._begin_instant()
        entry = heappop(queue)
        self._check_progress(entry)
        return entry.call

    def _put(self, queue: "list[_Callback]", when_ms: int, call: Callable[[], None]) -> Callable[[], None]:
        entry = _Callback(when_ms, next(self._numbers), call)
        heappush(queue, entry)
        return entry.cancel

    def _next_queue(self) -> "list[_Callback]":
        """Return the queue with the next callback; an empty one if there is none."""
        for queue in (self._timers, self._alarms):
            while queue and queue[0].is_cancelled:
                heappop(queue)
        if not self._timers or not self._alarms:
            return self._timers or self._alarms
        return min(self._timers, self._alarms, key=lambda queue: (self._due_ms(queue), queue[0].number))

    def _due_ms(self, queue: "list[_Callback]") -> int:
        """Return when the first callback of a queue is due, in steady time."""
        return queue[0].when_ms - (self._offset_ms if queue is self._alarms else 0)

    def _begin_instant(self) -> None:
        self._first_number, self._count_at_instant = next(self._numbers), 0

    def _check_progress(self, entry: "_Callback") -> None:
        """Limit the callbacks that are set at this instant for this instant, or time would never advance."""
        if entry.number > self._first_number:
            self._count_at_instant += 1
            if self._count_at_instant > _MOST_AT_ONE_INSTANT:
                raise RuntimeError(
                    f"time does not advance from {self.now_ms()}: {entry.call} and others keep setting"
                    " timers for the same instant"
                )


class _Callback:
    """A queued callback, ordered by its time and then by when it was set."""

    __slots__ = ("call", "is_cancelled", "number", "when_ms")

    def __init__(self, when_ms: int, number: int, call: Callable[[], None]) -> None:
        self.when_ms = when_ms
        self.number = number
        self.call = call
        self.is_cancelled = False

    def __lt__(self, other: "_Callback") -> bool:
        return (self.when_ms, self.number) < (other.when_ms, other.number)

    def cancel(self) -> None:
        self.is_cancelled = True
