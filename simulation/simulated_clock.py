"""The clocks of a simulated machine: steady time is the loop's virtual time; the wall clock can be set."""

import asyncio
from collections.abc import Callable, Iterator

from conveyor.kernel.signal import Signal

START_MS = 1_700_000_000_000


class SimulatedClock:
    """See `conveyor.kernel.ports.Clock`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._offset_ms = START_MS
        self._latest_ms = START_MS
        self._settings = [(0, START_MS)]
        """The steady times from which on the wall clock has had an offset."""
        self._alarms: dict[object, tuple[int, Callable[[], None], asyncio.TimerHandle]] = {}
        self._was_set: Signal[int] = Signal()

    def now_ms(self) -> int:
        return self.steady_ms() + self._offset_ms

    def latest_ms(self) -> int:
        """Return the latest time that the wall clock has shown. A due message stays due even if the clock is set
        back.
        """
        return max(self._latest_ms, self.now_ms())

    def latest_at(self, steady_ms: int) -> int:
        """Return the latest time that the wall clock had shown at a moment in the past."""
        return max(min(end_ms, steady_ms) + offset_ms for _, end_ms, offset_ms in self._periods(steady_ms))

    def shown_at(self, wall_ms: int, since_ms: int, until_ms: int) -> list[int]:
        """Return the steady times at which the wall clock has shown a time, within these steady times."""
        moments = [
            wall_ms - offset_ms
            for begin_ms, end_ms, offset_ms in self._periods(until_ms)
            if max(begin_ms, since_ms) <= wall_ms - offset_ms <= min(end_ms, until_ms)
        ]
        return sorted(moments)

    def steady_ms(self) -> int:
        return int(self._loop.time() * 1000 + 0.0005)

    def call_at(self, when_ms: int, callback: Callable[[], None]) -> Callable[[], None]:
        name = object()

        def ring() -> None:
            del self._alarms[name]
            callback()

        def cancel() -> None:
            if name in self._alarms:
                self._alarms.pop(name)[2].cancel()

        self._alarms[name] = (when_ms, ring, self._timer(when_ms, ring))
        return cancel

    def call_later(self, delay_ms: int, callback: Callable[[], None]) -> Callable[[], None]:
        return self._loop.call_later(max(0, delay_ms) / 1000, callback).cancel

    def time_out(self, delay_ms: int, callback: Callable[[], None]) -> Callable[[], None]:
        return self.call_later(delay_ms, callback)

    def when_set(self, callback: Callable[[int], None]) -> Callable[[], None]:
        return self._was_set.listen(callback)

    def set_wall_clock(self, by_ms: int) -> None:
        """Set the wall clock forward or (negative) back. Call it in the context of the process that owns the alarms."""
        self._latest_ms = self.latest_ms()
        self._offset_ms += by_ms
        self._settings.append((self.steady_ms(), self._offset_ms))
        self._was_set.emit(by_ms)
        for name, (when_ms, ring, timer) in list(self._alarms.items()):
            timer.cancel()
            self._alarms[name] = (when_ms, ring, self._timer(when_ms, ring))

    def next_process(self) -> "SimulatedClock":
        """Return the clock for the next process: the same times, no alarms, no listeners."""
        clock = SimulatedClock(self._loop)
        clock._offset_ms, clock._latest_ms = self._offset_ms, self._latest_ms
        clock._settings = self._settings
        return clock

    @property
    def error_ms(self) -> int:
        """By how much the wall clock is ahead (negative: behind) of one that was never set."""
        return self._offset_ms - START_MS

    def _periods(self, until_ms: int) -> Iterator[tuple[int, int, int]]:
        """Yield since when, until when and with which offset the wall clock has run; those that began in time."""
        ends = [begin_ms for begin_ms, _ in self._settings[1:]] + [self.steady_ms()]
        for (begin_ms, offset_ms), end_ms in zip(self._settings, ends, strict=True):
            if begin_ms <= until_ms:
                yield begin_ms, end_ms, offset_ms

    def _timer(self, when_ms: int, ring: Callable[[], None]) -> asyncio.TimerHandle:
        return self._loop.call_later(max(0, when_ms - self.now_ms()) / 1000, ring)
