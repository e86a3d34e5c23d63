"""How often something happens, per second: measured between the times that somebody asks, over about a minute."""

from collections import deque

_WINDOW_MS = 60_000
_SAMPLES = 60


class Rates:
    """Counts that only rise, sampled when they are asked for."""

    def __init__(self) -> None:
        self._samples: deque[tuple[int, tuple[int, ...]]] = deque()

    def measure(self, now_ms: int, *counts: int) -> tuple[float, ...]:
        """The rate of each count, from the oldest sample of the last minute to now; 0 at the first time."""
        samples = self._samples
        while len(samples) > 1 and samples[1][0] <= now_ms - _WINDOW_MS:
            samples.popleft()
        if not samples or now_ms - samples[-1][0] >= _WINDOW_MS // _SAMPLES:
            samples.append((now_ms, counts))
        since_ms, before = samples[0]
        elapsed_s = (now_ms - since_ms) / 1000
        if elapsed_s <= 0:
            return tuple(0.0 for _ in counts)
        return tuple((count - old) / elapsed_s for count, old in zip(counts, before, strict=True))
