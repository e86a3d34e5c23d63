"""An event that one task awaits, with a timeout; and the pauses between attempts."""

import asyncio
import logging

from conveyor.kernel.alarm import Alarm
from conveyor.kernel.ports import Clock

_FIRST_PAUSE_MS = 100
_LONGEST_PAUSE_MS = 5_000
_FAILURES_PER_WARNING = 60


class TimedSignal:
    """See the module's docstring. A signal that is set before the wait ends it at once."""

    def __init__(self, clock: Clock) -> None:
        self._event = asyncio.Event()
        self._alarm = Alarm(clock, self._event.set)

    def set(self) -> None:
        self._event.set()

    async def wait(self, at_most_ms: int | None = None) -> None:
        """Return when the signal is set, or when this time has passed. The signal is then not set any more."""
        if at_most_ms is not None:
            self._alarm.after(at_most_ms)
        try:
            await self._event.wait()
        finally:
            self._alarm.cancel()
        self._event.clear()


class Pauses:
    """The pauses between attempts that fail, each twice as long as the previous one, within these limits."""

    def __init__(self, first_ms: int = _FIRST_PAUSE_MS, longest_ms: int = _LONGEST_PAUSE_MS) -> None:
        self._first_ms, self._longest_ms = first_ms, longest_ms
        self.reset()

    def reset(self) -> None:
        """Begin again, after a success."""
        self._next_ms = self._first_ms
        self._failure_count = 0

    @property
    def log_level(self) -> int:
        """The log level of the next failure: WARNING for the first one and each 60th after it, else DEBUG."""
        return logging.DEBUG if self._failure_count % _FAILURES_PER_WARNING else logging.WARNING

    def next_ms(self) -> int:
        """Count a failure, and return the pause after it."""
        self._failure_count += 1
        pause_ms, self._next_ms = self._next_ms, min(2 * self._next_ms, self._longest_ms)
        return pause_ms
