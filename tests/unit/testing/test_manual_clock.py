"""The manual clock moves only on request."""

import pytest

from conveyor.testing import ManualClock
from conveyor.testing.manual_clock import DEFAULT_START_MS


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1000)


def test_time_stands_still(clock: ManualClock) -> None:
    assert clock.now_ms() == clock.now_ms() == 1000
    assert ManualClock().now_ms() == DEFAULT_START_MS


def test_time_moves_by_seconds_and_milliseconds(clock: ManualClock) -> None:
    clock.advance(seconds=1.5, ms=7)
    assert clock.now_ms() == 2507


def test_due_callbacks_are_called_in_order_at_their_own_time(clock: ManualClock) -> None:
    called: list[tuple[str, int]] = []
    for name, when_ms in (("b", 1020), ("a", 1010), ("c", 1020), ("late", 1031)):
        clock.call_at(when_ms, lambda name=name: called.append((name, clock.now_ms())))  # type: ignore[misc]
    clock.advance(ms=30)
    assert called == [("a", 1010), ("b", 1020), ("c", 1020)]
    assert clock.now_ms() == 1030


def test_cancelled_callbacks_are_not_called(clock: ManualClock) -> None:
    called: list[int] = []
    cancel = clock.call_at(1010, lambda: called.append(1))
    clock.call_at(1010, lambda: called.append(2))
    cancel()
    clock.advance(ms=10)
    assert called == [2]


def test_overdue_callbacks_are_called_at_the_next_move(clock: ManualClock) -> None:
    called: list[int] = []
    clock.call_at(5, lambda: called.append(clock.now_ms()))
    assert called == []
    clock.advance()
    assert called == [1000]


def test_a_callback_may_set_the_next_one(clock: ManualClock) -> None:
    called: list[int] = []

    def tick() -> None:
        called.append(clock.now_ms())
        clock.call_at(clock.now_ms() + 10, tick)

    tick()
    clock.advance(ms=35)
    assert called == [1000, 1010, 1020, 1030]


def test_durations_and_times_of_day_are_called_in_one_order(clock: ManualClock) -> None:
    called: list[tuple[str, int]] = []
    clock.call_later(10, lambda: called.append(("duration", clock.now_ms())))
    clock.call_at(1005, lambda: called.append(("time", clock.now_ms())))
    clock.call_at(1010, lambda: called.append(("same time", clock.now_ms())))
    clock.advance(ms=10)
    assert called == [("time", 1005), ("duration", 1010), ("same time", 1010)]


def test_setting_the_wall_clock_does_not_affect_durations(clock: ManualClock) -> None:
    called: list[str] = []
    clock.call_later(10, lambda: called.append("duration"))
    clock.call_at(1010, lambda: called.append("time"))
    before_ms = clock.steady_ms()
    clock.set_wall_clock(by_seconds=-0.005)
    clock.advance(ms=10)
    assert (called, clock.now_ms(), clock.steady_ms() - before_ms) == (["duration"], 1005, 10)
    clock.set_wall_clock(by_seconds=1)
    assert called == ["duration"]
    clock.advance()
    assert called == ["duration", "time"]


def test_listeners_get_the_change_of_the_wall_clock(clock: ManualClock) -> None:
    reported: list[int] = []
    end = clock.when_set(reported.append)
    clock.set_wall_clock(by_seconds=-3600)
    end()
    clock.set_wall_clock(by_seconds=3600)
    assert reported == [-3_600_000]


@pytest.mark.parametrize("again", ["call_at", "call_later"])
def test_a_callback_that_keeps_setting_itself_for_the_same_instant_is_an_error(clock: ManualClock, again: str) -> None:
    def tick() -> None:
        if again == "call_at":
            clock.call_at(clock.now_ms(), tick)
        else:
            clock.call_later(0, tick)

    clock.call_at(1010, tick)
    with pytest.raises(RuntimeError, match=r"time does not advance from 1010.*tick"):
        clock.advance(seconds=1)


def test_many_callbacks_at_one_instant_are_allowed(clock: ManualClock) -> None:
    called: list[int] = []
    for _ in range(5_000):
        clock.call_at(1010, lambda: called.append(1))
    clock.advance(ms=10)
    assert len(called) == 5_000


def test_time_does_not_go_back(clock: ManualClock) -> None:
    with pytest.raises(ValueError, match="time cannot move back"):
        clock.advance(ms=-1)
