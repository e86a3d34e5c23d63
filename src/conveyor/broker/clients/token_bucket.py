"""A bucket of tokens, which refills with time up to a burst, and may be taken into debt. Source: KIP-599.

Who finds it in debt waits until it is not. So a request larger than the burst goes through, and is paid for afterwards.
"""

from math import ceil, inf

_MAX_INT32 = (1 << 31) - 1


class TokenBucket:
    """One bucket, at first full. Time is passed in, in ms."""

    __slots__ = ("_filled_ms", "_tokens")

    def __init__(self) -> None:
        self._tokens = inf
        self._filled_ms = 0

    def fill(self, per_second: float, burst_seconds: int, now_ms: int) -> None:
        """Add what has come in since the last time."""
        came = (now_ms - self._filled_ms) * per_second / 1000
        self._tokens = min(self._tokens + came, per_second * burst_seconds)
        self._filled_ms = now_ms

    def take(self, amount: int) -> None:
        self._tokens -= amount

    def debt_ms(self, per_second: float) -> int:
        """How long it takes to fill up to nothing; 0 if it is not in debt."""
        return max(0, ceil(min(_MAX_INT32, -self._tokens / per_second * 1000)))
