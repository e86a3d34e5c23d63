"""The machine's clocks and the event loop's timers.

The broker's wall-clock time is the steady clock plus an offset. Once a second the offset is compared with the
system's wall clock. If that was set, the broker adopts the new offset, calls the listeners and reschedules its alarms.
All code of the broker thus sees the change at the same moment, at most a second late. The system slews both clocks
alike, so the offset changes only when the wall clock is set.

The steady clock is CLOCK_BOOTTIME, which also advances while the machine is suspended: meanwhile other machines may end
this broker's registration. The event loop's timers stand still meanwhile. The same comparison notices that and
reschedules the alarms; a timer for a duration is late. A system without CLOCK_BOOTTIME (it is Linux's) is used with
CLOCK_MONOTONIC, which may stand still.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from functools import partial
from time import clock_gettime_ns, monotonic_ns, time_ns

from conveyor.kernel.signal import Signal

log = logging.getLogger(__name__)

_CHECKED_EVERY_S = 1.0
_SMALLEST_STEP_NS = 10_000_000
_LONGEST_READING_NS = 1_000_000
"""A slower reading of both clocks was interrupted between them and is discarded."""

_NS_PER_MS = 1_000_000
_read_steady_ns = partial(clock_gettime_ns, getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class SystemClock:
    """See `conveyor.kernel.ports.Clock`. wall_ns, steady_ns: return the system's wall clock, and its steady one, in ns.
    The owner calls `close`.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        wall_ns: Callable[[], int] = time_ns,
        steady_ns: Callable[[], int] = _read_steady_ns,
    ) -> None:
        self._loop = loop
        self._wall_ns = wall_ns
        self._steady_ns = steady_ns
        self._offset_ns = wall_ns() - steady_ns()
        self._suspended_ns = steady_ns() - monotonic_ns()
        self._alarms: set[_Alarm] = set()
        self._was_set: Signal[int] = Signal()
        self._next_check = loop.call_later(_CHECKED_EVERY_S, self._check_again)

    def now_ms(self) -> int:
        return (self._steady_ns() + self._offset_ns) // _NS_PER_MS

    def steady_ms(self) -> int:
        return self._steady_ns() // _NS_PER_MS

    def call_at(self, when_ms: int, callback: Callable[[], None]) -> Callable[[], None]:
        alarm = _Alarm(when_ms, callback)
        self._alarms.add(alarm)
        self._arm(alarm)

        def cancel() -> None:
            self._alarms.discard(alarm)
            alarm.timer.cancel()

        return cancel

    def call_later(self, delay_ms: int, callback: Callable[[], None]) -> Callable[[], None]:
        return self._loop.call_later(max(0, delay_ms) / 1000, callback).cancel

    def time_out(self, wait_ms: int, callback: Callable[[], None]) -> Callable[[], None]:
        return self.call_later(wait_ms, callback)

    def when_set(self, callback: Callable[[int], None]) -> Callable[[], None]:
        return self._was_set.listen(callback)

    def check(self) -> None:
        """Compare the system's clocks now instead of within the next second."""
        before_ns = self._steady_ns()
        step_ns = self._wall_ns() - before_ns - self._offset_ns
        suspended_ns = before_ns - monotonic_ns() - self._suspended_ns
        if self._steady_ns() - before_ns > _LONGEST_READING_NS:
            return
        was_set, was_suspended = abs(step_ns) >= _SMALLEST_STEP_NS, suspended_ns >= _SMALLEST_STEP_NS
        if was_suspended:
            log.warning("machine was suspended ms=%d", suspended_ns // _NS_PER_MS)
            self._suspended_ns += suspended_ns
        if was_set:
            self._set_by(round(step_ns / _NS_PER_MS))
        if was_set or was_suspended:
            for alarm in self._alarms:
                alarm.timer.cancel()
                self._arm(alarm)

    def close(self) -> None:
        """Stop the periodic comparison."""
        self._next_check.cancel()

    def _check_again(self) -> None:
        self._next_check = self._loop.call_later(_CHECKED_EVERY_S, self._check_again)
        self.check()

    def _set_by(self, by_ms: int) -> None:
        log.warning("wall clock set by_ms=%d", by_ms)
        self._offset_ns += by_ms * _NS_PER_MS
        self._was_set.emit(by_ms)

    def _arm(self, alarm: "_Alarm") -> None:
        delay_ms = max(0, alarm.when_ms - self.now_ms())
        alarm.timer = self._loop.call_later(delay_ms / 1000, self._ring, alarm)

    def _ring(self, alarm: "_Alarm") -> None:
        self._alarms.discard(alarm)
        alarm.callback()


class _Alarm:
    """A callback at a wall-clock time, and the event loop's timer for it."""

    __slots__ = ("callback", "timer", "when_ms")

    timer: asyncio.TimerHandle

    def __init__(self, when_ms: int, callback: Callable[[], None]) -> None:
        self.when_ms = when_ms
        self.callback = callback
