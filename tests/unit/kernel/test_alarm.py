"""The alarm rings once for each time that is set; a new time replaces the previous one."""

import pytest

from conveyor.kernel.alarm import Alarm
from conveyor.testing import ManualClock


class Bell:
    """An alarm on a manual clock, and the steady times at which it has rung."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.start_ms = self.clock.now_ms()
        self.alarm = Alarm(self.clock, lambda: self.rings.append(self.clock.steady_ms()))
        self.rings: list[int] = []


@pytest.mark.parametrize("kind", ["at", "after", "time_out"])
def test_alarm_rings_once_when_it_is_due(kind: str) -> None:
    bell = Bell()
    getattr(bell.alarm, kind)(bell.start_ms + 10 if kind == "at" else 10)
    assert bell.alarm.is_set
    bell.clock.advance(ms=9)
    assert bell.rings == []
    bell.clock.advance(ms=1000)
    assert bell.rings == [10]
    assert not bell.alarm.is_set


def test_alarm_that_is_set_again_rings_for_the_last_time_only() -> None:
    bell = Bell()
    bell.alarm.at(bell.start_ms + 10)
    bell.alarm.at(bell.start_ms + 5)
    bell.alarm.after(20)
    bell.clock.advance(ms=1000)
    assert bell.rings == [20]


def test_alarm_that_is_cancelled_does_not_ring_until_it_is_set_again() -> None:
    bell = Bell()
    bell.alarm.at(bell.start_ms + 10)
    bell.alarm.at(None)
    bell.alarm.after(10)
    bell.alarm.cancel()
    bell.alarm.cancel()
    bell.clock.advance(ms=1000)
    assert bell.rings == []
    bell.alarm.at(bell.start_ms + 10)
    bell.clock.advance(ms=0)
    assert bell.rings == [1000]


def test_alarm_at_a_time_follows_the_wall_clock_and_a_duration_does_not() -> None:
    at, after = Bell(), Bell()
    at.alarm.at(at.start_ms + 60_000)
    after.alarm.after(60_000)
    for bell in (at, after):
        bell.clock.set_wall_clock(by_seconds=60)
        bell.clock.advance(ms=0)
    assert (at.rings, after.rings) == ([0], [])


def test_alarm_may_be_set_again_while_it_rings() -> None:
    clock = ManualClock()
    rings: list[int] = []

    def ring() -> None:
        rings.append(clock.steady_ms())
        if len(rings) < 3:
            alarm.after(10)

    alarm = Alarm(clock, ring)
    alarm.after(10)
    clock.advance(ms=1000)
    assert rings == [10, 20, 30]


def test_alarm_that_has_ended_cannot_be_set() -> None:
    bell = Bell()
    bell.alarm.after(10)
    bell.alarm.end()
    bell.alarm.after(20)
    bell.alarm.at(bell.start_ms + 30)
    bell.alarm.time_out(40)
    assert not bell.alarm.is_set
    bell.clock.advance(ms=100)
    assert bell.rings == []
