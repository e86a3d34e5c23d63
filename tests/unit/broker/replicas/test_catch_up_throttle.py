"""The limit of what replicas get that are not in sync."""

from conveyor.broker.replicas.catch_up_throttle import CatchUpThrottle
from conveyor.broker.services import Services
from conveyor.settings.tree import Settings, from_sources
from conveyor.testing import ManualClock
from tests.unit.broker.room_services import room_services


def limit(per_second: int) -> Settings:
    return from_sources({"broker.catch_up_bytes_per_second": per_second})


def limited(clock: ManualClock, per_second: int) -> Services:
    services = room_services(clock)
    services.use(limit(per_second))
    return services


def test_portions_wait_until_the_debt_of_the_last_one_is_paid() -> None:
    clock = ManualClock()
    throttle = CatchUpThrottle(limited(clock, 1_000))
    assert throttle.is_open
    throttle.take(500)
    assert (throttle.is_open, throttle.wait_ms) == (False, 500)
    clock.advance(seconds=0.5)
    assert throttle.is_open


def test_a_long_wait_is_cut_because_the_limit_may_rise() -> None:
    clock = ManualClock()
    services = limited(clock, 10)
    throttle = CatchUpThrottle(services)
    assert throttle.is_open
    throttle.take(1 << 20)
    assert throttle.wait_ms == 1_000
    services.use(limit(1 << 30))
    assert throttle.wait_ms <= 1
    services.use(limit(0))
    assert throttle.is_open


def test_no_limit_counts_the_bytes_only() -> None:
    throttle = CatchUpThrottle(limited(ManualClock(), 0))
    throttle.take(1 << 40)
    assert throttle.is_open
    assert throttle.sent_bytes == 1 << 40
