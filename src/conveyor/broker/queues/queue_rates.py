"""Acknowledgements and retries a second of each subscription, sampled as long as there is one."""

from collections.abc import Callable
from uuid import UUID

from conveyor.kernel.ports import Clock
from conveyor.queues.queue_commands import QueueProbe
from conveyor.queues.subscription.rates import SAMPLED_EVERY_MS, Rates


class QueueRates:
    """See the module's docstring. probe: the counters of a subscription."""

    def __init__(self, clock: Clock, probe: Callable[[UUID], QueueProbe]) -> None:
        self._clock = clock
        self._probe = probe
        self._rates: dict[UUID, Rates] = {}
        self._cancel_alarm: Callable[[], None] | None = None

    def follow(self, subscription: UUID) -> None:
        """Sample its counters from now on."""
        self._rates[subscription] = Rates(self._clock.steady_ms(), *self._counts(subscription))
        if self._cancel_alarm is None:
            self._set_alarm()

    def forget(self, subscription: UUID) -> None:
        """A subscription is deleted; the last one ends the sampling."""
        self._rates.pop(subscription, None)
        if not self._rates:
            self.stop()

    def measure(self, subscription: UUID) -> tuple[float, ...]:
        """Acknowledgements and retries a second; none for a subscription that is not followed any more."""
        rates = self._rates.get(subscription)
        return (0.0, 0.0) if rates is None else rates.measure(self._clock.steady_ms(), *self._counts(subscription))

    def stop(self) -> None:
        if self._cancel_alarm is not None:
            self._cancel_alarm()
            self._cancel_alarm = None

    def _counts(self, subscription: UUID) -> tuple[int, int]:
        probe = self._probe(subscription)
        return probe.acknowledged, probe.retried + probe.expired

    def _set_alarm(self) -> None:
        self._cancel_alarm = self._clock.call_later(SAMPLED_EVERY_MS, self._sample)

    def _sample(self) -> None:
        now_ms = self._clock.steady_ms()
        for subscription, rates in self._rates.items():
            rates.sample(now_ms, *self._counts(subscription))
        self._set_alarm()
