"""The clocks of a simulated machine: steady time is the loop's virtual time; the wall clock can be set."""

import asyncio
from collections.abc import Callable

START_MS = 1_700_000_000_000


class SimulatedClock:
    """See `conveyor.kernel.ports.Clock`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._offset_ms = START_MS
        self._latest_ms = START_MS
        self._alarms: dict[object, tuple[int, Callable[[], None], asyncio.TimerHandle]] = {}
        self._listeners: dict[object, Callable[[int], None]] = {}

    def now_ms(self) -> int:
        return self.steady_ms() + self._offset_ms

    def latest_ms(self) -> int:
        """Return the latest time that the wall clock has shown. A due message stays due even if the clock is set
        back.
        """
        return max(self._latest_ms, self.now_ms())

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
        name = object()
        self._listeners[name] = callback
        return lambda: self._listeners.pop(name, None) and None

    def set_wall_clock(self, by_ms: int) -> None:
        """Set the wall clock forward or (negative) back. Call it in the context of the process that owns the alarms."""
        self._latest_ms = self.latest_ms()
        self._offset_ms += by_ms
        for listener in list(self._listeners.values()):
            listener(by_ms)
        for name, (when_ms, ring, timer) in list(self._alarms.items()):
            timer.cancel()
            self._alarms[name] = (when_ms, ring, self._timer(when_ms, ring))

    def next_process(self) -> "SimulatedClock":
        """Return the clock for the next process: the same times, no alarms, no listeners."""
        clock = SimulatedClock(self._loop)
        clock._offset_ms, clock._latest_ms = self._offset_ms, self._latest_ms
        return clock

    def _timer(self, when_ms: int, ring: Callable[[], None]) -> asyncio.TimerHandle:
        return self._loop.call_later(max(0, when_ms - self.now_ms()) / 1000, ring)
