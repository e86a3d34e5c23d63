"""Times of messages, such as when they are due, in a heap of one number per message."""

import heapq
from collections.abc import Iterator, Mapping

from conveyor.kernel.heap_search import SearchedHeap
from conveyor.queues.delivery.offset_bitmap import OffsetBitmap

_OFFSET_BITS = 56
_PRIORITY_BITS = 4
_TIME_SHIFT = _OFFSET_BITS + _PRIORITY_BITS
_OFFSET_MASK = (1 << _OFFSET_BITS) - 1
_PRIORITY_MASK = (1 << _PRIORITY_BITS) - 1


class Timers(SearchedHeap):
    """See the module's docstring. A message's priority is kept with its time."""

    def __init__(self) -> None:
        super().__init__()
        self.work_count = 0
        """The number of timers that were added and whose time has come, whatever followed."""

    def add(self, offset: int, time_ms: int, priority: int = 0) -> None:
        self.work_count += 1
        timer = (time_ms << _OFFSET_BITS | offset) << _PRIORITY_BITS | priority
        if self.searches:
            self.tell(timer)
        heapq.heappush(self, timer)

    def pop_due(self, now_ms: int, limit: int) -> Iterator[tuple[int, int, int]]:
        """Remove messages whose time has come. Yields (offset, priority, time in ms)."""
        while self and limit and self[0] >> _TIME_SHIFT <= now_ms:
            limit -= 1
            self.work_count += 1
            timer = heapq.heappop(self)
            yield offset_of(timer), timer & _PRIORITY_MASK, timer >> _TIME_SHIFT

    def next_ms(self) -> int:
        """Return the first time. There must be one."""
        return self[0] >> _TIME_SHIFT

    def shift(self, times_ms: Mapping[int, int], by_ms: int) -> None:
        """Move the timers of messages that have these times by `by_ms`."""
        self.replace(
            [
                timer + (by_ms << _TIME_SHIFT if timer >> _TIME_SHIFT == times_ms.get(offset_of(timer)) else 0)
                for timer in self
            ]
        )


class NotDue(Timers):
    """Messages that are not due yet, each with one timer.

    offsets: of all timers. cancelled: offsets whose timer is dropped when its time comes.
    """

    def __init__(self) -> None:
        super().__init__()
        self.offsets = OffsetBitmap()
        self.cancelled: set[int] = set()

    def add(self, offset: int, time_ms: int, priority: int = 0) -> None:
        super().add(offset, time_ms, priority)
        self.offsets.add(offset)

    def cancel(self, offset: int) -> None:
        """Let the timer of a message be dropped, if it has one. Until then its cancellation may be lost."""
        if offset in self.offsets:
            self.cancelled.add(offset)

    def pop_due(self, now_ms: int, limit: int) -> Iterator[tuple[int, int, int]]:
        """See `Timers.pop_due`. Cancelled messages are not yielded."""
        for due in super().pop_due(now_ms, limit):
            offset = due[0]
            self.offsets.remove(offset)
            if offset in self.cancelled:
                self.cancelled.remove(offset)
            else:
                yield due


class Withheld(NotDue):
    """Messages that become available once they are due."""

    def __init__(self) -> None:
        super().__init__()
        self._held_back: dict[int, int] = {}
        """The due times of messages that nobody has published or failed with a delay."""

    def add(self, offset: int, time_ms: int, priority: int = 0) -> None:
        self._held_back.pop(offset, None)
        super().add(offset, time_ms, priority)

    def hold_back(self, offset: int, now_ms: int, delay_ms: int, priority: int) -> None:
        """Withhold a message for a while, without an attempt."""
        self._held_back = {held: due_ms for held, due_ms in self._held_back.items() if due_ms > now_ms}
        self.add(offset, now_ms + delay_ms, priority)
        self._held_back[offset] = now_ms + delay_ms

    def clock_set(self, backoffs: Mapping[int, int], by_ms: int) -> None:
        """Shift the waits that began at this broker by `by_ms`: `backoffs`, and those of `hold_back`."""
        self.shift({**backoffs, **self._held_back}, by_ms)
        self._held_back = {offset: due_ms + by_ms for offset, due_ms in self._held_back.items()}


def offset_of(timer: int) -> int:
    """Return the offset of the message that a timer is for."""
    return timer >> _PRIORITY_BITS & _OFFSET_MASK


def time_of(timer: int) -> int:
    """Return the time of a timer in ms."""
    return timer >> _TIME_SHIFT


def last_timer_at(time_ms: int, offset: int) -> int:
    """Return the greatest timer that a message can have at a time. offset: -1 for none at this time."""
    return (((time_ms << _OFFSET_BITS) + offset + 1) << _PRIORITY_BITS) - 1
