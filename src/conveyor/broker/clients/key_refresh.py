"""Keeps what another service publishes up to date: after an interval, sooner after a failure, and when it is asked to.

The number of attempts does not depend on how often it is asked: one that was asked for comes at the earliest
`ASKED_INTERVAL_MS` after the previous attempt began.
"""

from collections.abc import Awaitable, Callable

from conveyor.broker.answers import answered
from conveyor.broker.timed_signal import Pauses, TimedSignal
from conveyor.kernel.ports import Clock
from conveyor.kernel.signal import Signal

ASKED_INTERVAL_MS = 10_000
_FIRST_PAUSE_MS, _LONGEST_PAUSE_MS = 100, 10_000


class KeyRefresh:
    """See the module's docstring. attempt: returns whether it has succeeded. interval_ms: after a success.

    pauses: those after failures.
    """

    def __init__(self, clock: Clock, attempt: Callable[[], Awaitable[bool]], interval_ms: int) -> None:
        self.pauses = Pauses(_FIRST_PAUSE_MS, _LONGEST_PAUSE_MS)
        self._clock = clock
        self._attempt = attempt
        self._interval_ms = interval_ms
        self._wanted = TimedSignal(clock)
        self._began_ms: int | None = None
        self._is_under_way = False
        """True if an attempt is being made, or is to begin."""
        self._ended = Signal[bool]()
        """An attempt has ended; whether it has succeeded."""

    async def run(self) -> None:
        """Attempt it again and again."""
        while True:
            self._is_under_way = True
            self._began_ms = self._clock.steady_ms()
            has_succeeded = False
            try:
                has_succeeded = await self._attempt()
            finally:
                self._is_under_way = False
                self._ended.emit(has_succeeded)
            if has_succeeded:
                self.pauses.reset()
            await self._wanted.wait(self._interval_ms if has_succeeded else self.pauses.next_ms())

    async def ask(self) -> bool:
        """Wait for the attempt that is being made, or for one now if it may be made. Returns whether it succeeded."""
        if not self._is_under_way:
            if self._began_ms is not None and self._clock.steady_ms() < self._began_ms + ASKED_INTERVAL_MS:
                return False
            self._is_under_way = True
            self._wanted.set()
        return await answered(self._ended.next)
