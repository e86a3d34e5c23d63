"""A token bucket that refills over time up to a burst and may go into debt. Source: KIP-599.

A request may take more tokens than there are; later requests wait until the debt is paid. So a request larger than the
burst is possible.
"""

from math import ceil, inf

_MAX_INT32 = (1 << 31) - 1


class TokenBucket:
    """One bucket, initially full. Time is passed in, in ms."""

    __slots__ = ("_filled_ms", "_tokens")

    def __init__(self) -> None:
        self._tokens = inf
        self._filled_ms = 0

    def fill(self, per_second: float, burst_seconds: int, now_ms: int) -> None:
        """Add the tokens accrued since the last call."""
        accrued = (now_ms - self._filled_ms) * per_second / 1000
        self._tokens = min(self._tokens + accrued, per_second * burst_seconds)
        self._filled_ms = now_ms

    def take(self, amount: int) -> None:
        """Remove tokens; the bucket may go into debt."""
        """Remove tokens; the bucket may go into debt."""
        self._tokens -= amount

    def debt_ms(self, per_second: float) -> int:
        """Return the time until the debt is paid; 0 if there is none."""
        return max(0, ceil(min(_MAX_INT32, -self._tokens / per_second * 1000)))
