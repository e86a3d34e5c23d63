"""The limit of what replicas get that are not in sync."""

from conveyor.broker.replicas.catch_up_throttle import CatchUpThrottle
from conveyor.testing import ManualClock


def test_portions_wait_until_the_debt_of_the_last_one_is_paid() -> None:
    clock = ManualClock()
    throttle = CatchUpThrottle(lambda: 1_000, clock)
    assert throttle.is_open
    throttle.take(500)
    assert (throttle.is_open, throttle.wait_ms) == (False, 500)
    clock.advance(seconds=0.5)
    assert throttle.is_open


def test_a_long_wait_is_cut_because_the_limit_may_rise() -> None:
    clock, limits = ManualClock(), [10]
    throttle = CatchUpThrottle(lambda: limits[-1], clock)
    assert throttle.is_open
    throttle.take(1 << 20)
    assert throttle.wait_ms == 1_000
    limits.append(1 << 30)
    assert throttle.wait_ms <= 1
    limits.append(0)
    assert throttle.is_open


def test_no_limit_counts_the_bytes_only() -> None:
    throttle = CatchUpThrottle(lambda: 0, ManualClock())
    throttle.take(1 << 40)
    assert throttle.is_open
    assert throttle.sent_bytes == 1 << 40
