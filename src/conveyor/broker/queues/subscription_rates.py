"""Acknowledgements and retries per second of every subscription, sampled while there are subscriptions."""

from collections import deque
from uuid import UUID

from conveyor.broker.coordinators.queue_partitions import QueuePartitions
from conveyor.kernel.alarm import Alarm
from conveyor.kernel.ports import Clock

SAMPLED_EVERY_MS = 5_000
_WINDOW_MS = 60_000


class Rates:
    """Rates per second of monotonic counters, over about the last minute. The caller calls `sample` regularly, from the
    first value on.
    """

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


class SubscriptionRates:
    def __init__(self, clock: Clock, partitions: QueuePartitions) -> None:
        self._clock = clock
        self._partitions = partitions
        self._rates: dict[UUID, Rates] = {}
        self._alarm = Alarm(clock, self._sample)

    def follow(self, subscription: UUID) -> None:
        """Sample the subscription's counters from now on."""
        self._rates[subscription] = Rates(self._clock.steady_ms(), *self._counts(subscription))
        if not self._alarm.is_set:
            self._alarm.after(SAMPLED_EVERY_MS)

    def forget(self, subscription: UUID) -> None:
        """Forget a deleted subscription. Sampling stops with the last one."""
        self._rates.pop(subscription, None)
        if not self._rates:
            self.stop()

    def measure(self, subscription: UUID) -> tuple[float, ...]:
        """Return acknowledgements and retries per second; zero for a subscription that is no longer followed."""
        rates = self._rates.get(subscription)
        return (0.0, 0.0) if rates is None else rates.measure(self._clock.steady_ms(), *self._counts(subscription))

    def stop(self) -> None:
        self._alarm.cancel()

    def _counts(self, subscription: UUID) -> tuple[int, int]:
        probe = self._partitions.probe(subscription)
        return probe.acknowledged, probe.retried + probe.expired

    def _sample(self) -> None:
        now_ms = self._clock.steady_ms()
        for subscription, rates in self._rates.items():
            rates.sample(now_ms, *self._counts(subscription))
        self._alarm.after(SAMPLED_EVERY_MS)
