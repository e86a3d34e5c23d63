"""Rates from counts that are sampled when somebody asks."""

from conveyor.queues.rates import Rates


def test_rate_is_zero_at_first() -> None:
    assert Rates().measure(0, 5, 6) == (0.0, 0.0)


def test_rate_is_the_rise_per_second() -> None:
    rates = Rates()
    rates.measure(0, 0, 100)
    assert rates.measure(10_000, 50, 100) == (5.0, 0.0)


def test_rate_looks_back_a_minute() -> None:
    rates = Rates()
    for second in range(121):
        found = rates.measure(second * 1_000, 600 if second >= 60 else second * 10)
    assert found == (0.0,)


def test_samples_are_bounded() -> None:
    rates = Rates()
    for ms in range(0, 200_000, 50):
        rates.measure(ms, ms)
    assert len(rates._samples) <= 62


def test_asking_twice_at_once_is_no_division_by_zero() -> None:
    rates = Rates()
    rates.measure(5, 1)
    assert rates.measure(5, 2) == (0.0,)
