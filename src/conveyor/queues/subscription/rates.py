"""Event rates per second, over about the last minute."""

from collections import deque

SAMPLED_EVERY_MS = 5_000
_WINDOW_MS = 60_000


class Rates:
    """Rates of monotonic counters. The caller calls `sample` regularly, from the first value on."""

    def __init__(self, now_ms: int, *counts: int) -> None:
        self._samples = deque([(now_ms, counts)])

    def sample(self, now_ms: int, *counts: int) -> None:
        samples = self._samples
        samples.append((now_ms, counts))
        while len(samples) > 1 and samples[1][0] <= now_ms - _WINDOW_MS:
            samples.popleft()

    def measure(self, now_ms: int, *counts: int) -> tuple[float, ...]:
        """Return the rate of each counter since the oldest retained sample."""
        since_ms, before = self._samples[0]
        elapsed_s = max(1, now_ms - since_ms) / 1000
        return tuple((count - old) / elapsed_s for count, old in zip(counts, before, strict=True))
