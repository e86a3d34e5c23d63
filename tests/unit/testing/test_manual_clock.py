"""Time that moves only when it is told to."""

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


def test_what_falls_due_is_called_in_order_at_its_own_time(clock: ManualClock) -> None:
    called: list[tuple[str, int]] = []
    for name, when_ms in (("b", 1020), ("a", 1010), ("c", 1020), ("late", 1031)):
        clock.call_at(when_ms, lambda name=name: called.append((name, clock.now_ms())))  # type: ignore[misc]
    clock.advance(ms=30)
    assert called == [("a", 1010), ("b", 1020), ("c", 1020)]
    assert clock.now_ms() == 1030


def test_what_is_cancelled_is_not_called(clock: ManualClock) -> None:
    called: list[int] = []
    cancel = clock.call_at(1010, lambda: called.append(1))
    clock.call_at(1010, lambda: called.append(2))
    cancel()
    clock.advance(ms=10)
    assert called == [2]


def test_what_is_due_already_is_called_at_the_next_move(clock: ManualClock) -> None:
    called: list[int] = []
    clock.call_at(5, lambda: called.append(clock.now_ms()))
    assert called == []
    clock.advance()
    assert called == [1000]


def test_a_callback_may_ask_for_the_next_one(clock: ManualClock) -> None:
    called: list[int] = []

    def tick() -> None:
        called.append(clock.now_ms())
        clock.call_at(clock.now_ms() + 10, tick)

    tick()
    clock.advance(ms=35)
    assert called == [1000, 1010, 1020, 1030]
