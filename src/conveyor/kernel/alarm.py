"""A resettable alarm. Only this class keeps the function with which a clock cancels a callback.

Setting an alarm replaces its previous time. The alarm rings once each time it becomes due. `at` takes wall-clock time;
`after` and `time_out` take durations: see `conveyor.kernel.ports.Clock`.
"""

from collections.abc import Callable

from conveyor.kernel.ports import Clock


class Alarm:
    """See the module's docstring. ring: called when the alarm is due; it may set the alarm again."""

    def __init__(self, clock: Clock, ring: Callable[[], None]) -> None:
        self._clock = clock
        self._ring = ring
        self._at_ms: int | None = None
        self._cancel: Callable[[], None] | None = None
        self._has_ended = False

    @property
    def is_set(self) -> bool:
        """True if the alarm will ring."""
        return self._cancel is not None

    def at(self, when_ms: int | None) -> None:
        """Ring at a wall-clock time; None: do not ring."""
        if when_ms != self._at_ms or (when_ms is not None and self._cancel is None):
            self.cancel()
            if when_ms is not None and not self._has_ended:
                self._at_ms, self._cancel = when_ms, self._clock.call_at(when_ms, self._on_time)

    def after(self, delay_ms: int) -> None:
        """Ring when a duration has passed."""
        self.cancel()
        if not self._has_ended:
            self._cancel = self._clock.call_later(delay_ms, self._on_time)

    def time_out(self, wait_ms: int) -> None:
        """Ring when a client's wait time has passed."""
        self.cancel()
        if not self._has_ended:
            self._cancel = self._clock.time_out(wait_ms, self._on_time)

    def cancel(self) -> None:
        """Do not ring."""
        cancel, self._cancel, self._at_ms = self._cancel, None, None
        if cancel is not None:
            cancel()

    def end(self) -> None:
        """Do not ring, and ignore every later time: work that is still in progress may set one."""
        self._has_ended = True
        self.cancel()

    def _on_time(self) -> None:
        self._cancel = self._at_ms = None
        self._ring()
