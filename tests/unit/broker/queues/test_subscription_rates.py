"""Rates of regularly sampled counters."""

from conveyor.broker.queues.subscription_rates import SAMPLED_EVERY_MS, Rates


def test_rate_is_the_rise_per_second() -> None:
    assert Rates(0, 0, 100).measure(10_000, 50, 100) == (5.0, 0.0)


def test_rate_looks_back_a_minute() -> None:
    rates = Rates(0, 0)
    for second in range(0, 121, 5):
        rates.sample(second * 1_000, min(second, 60) * 10)
    assert rates.measure(121_000, 600) == (0.0,)


def test_samples_are_bounded() -> None:
    rates = Rates(0, 0)
    for ms in range(0, 1_000_000, SAMPLED_EVERY_MS):
        rates.sample(ms, ms)
    assert len(rates._samples) <= 14


def test_asking_at_once_is_no_division_by_zero() -> None:
    assert Rates(5, 1).measure(5, 2) == (1000.0,)
