"""Limits the bytes that this broker sends per second to replicas that are not in sync.

The limit counts for all followers together. A portion may be larger than the bytes of a second: the next one waits
until the time for it has passed.
"""

from math import ceil

from conveyor.broker.services import Services

_LONGEST_WAIT_MS = 1_000
"""Until the limit is asked for again: it may have been raised."""


class CatchUpThrottle:
    """See the module's docstring. The setting is the limit in bytes; 0 for none."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._clock = services.clock
        self._debt_bytes = 0.0
        self._paid_ms = 0
        self.sent_bytes = 0
        """All bytes sent to replicas that were not in sync."""

    @property
    def is_open(self) -> bool:
        """True if another portion may be sent now."""
        return self.wait_ms == 0

    @property
    def wait_ms(self) -> int:
        """The time until the limit is to be asked for again; 0 if a portion may be sent now."""
        per_second = self._services.settings.broker.catch_up_bytes_per_second
        if per_second == 0:
            self._debt_bytes = 0.0
            return 0
        now_ms = self._clock.steady_ms()
        self._debt_bytes = max(0.0, self._debt_bytes - (now_ms - self._paid_ms) * per_second / 1000)
        self._paid_ms = now_ms
        return min(_LONGEST_WAIT_MS, ceil(self._debt_bytes * 1000 / per_second))

    def take(self, length: int) -> None:
        """Count a portion."""
        self.sent_bytes += length
        self._debt_bytes += length
