"""The machine's clocks: alarms ring once, late ones at once, cancelled ones never, also when the wall clock is set."""

import asyncio
import contextlib
import inspect
import time
from collections.abc import AsyncIterator

import pytest

from conveyor.adapters.system_clock import SystemClock
from conveyor.kernel.ports import Clock


async def test_system_clock_does_not_go_back() -> None:
    clock: Clock = SystemClock(asyncio.get_running_loop())
    times = [clock.now_ms() for _ in range(100)]
    assert times == sorted(times)


async def test_system_clock_calls_back_in_order() -> None:
    clock, rang, done = SystemClock(asyncio.get_running_loop()), list[str](), asyncio.Event()

    def soon() -> None:
        rang.append("soon")
        done.set()

    clock.call_at(clock.now_ms() - 5000, lambda: rang.append("overdue"))
    clock.call_at(clock.now_ms(), lambda: rang.append("cancelled"))()
    clock.call_at(clock.now_ms() + 2, soon)
    await done.wait()
    assert rang == ["overdue", "soon"]


class WallClock:
    """The system's wall clock, as it would be after an administrator has set it."""

    def __init__(self) -> None:
        self.set_by_ms = 0

    def __call__(self) -> int:
        return time.time_ns() + self.set_by_ms * 1_000_000


@pytest.fixture
def wall() -> WallClock:
    return WallClock()


@pytest.fixture
async def clock(wall: WallClock) -> AsyncIterator[SystemClock]:
    made = SystemClock(asyncio.get_running_loop(), wall)
    yield made
    made.close()


@pytest.mark.parametrize("by_ms", [3_600_000, -3_600_000, 20, -20])
async def test_a_wall_clock_that_was_set_is_followed(clock: SystemClock, wall: WallClock, by_ms: int) -> None:
    told: list[int] = []
    clock.when_set(told.append)
    clock.when_set(told.append)()
    before_ms, steady_ms = clock.now_ms(), clock.steady_ms()
    wall.set_by_ms = by_ms
    clock.check()
    passed_ms = clock.steady_ms() - steady_ms
    assert abs(clock.now_ms() - before_ms - passed_ms - by_ms) <= 1
    assert len(told) == 1
    assert abs(told[0] - by_ms) <= 1


async def test_a_clock_that_was_not_set_is_left_alone(clock: SystemClock, wall: WallClock) -> None:
    told: list[int] = []
    clock.when_set(told.append)
    wall.set_by_ms = 5
    clock.check()
    assert told == []


async def test_the_wall_clock_is_looked_at_without_being_asked(clock: SystemClock, wall: WallClock) -> None:
    told: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    clock.when_set(told.set_result)
    wall.set_by_ms = 3_600_000
    assert abs(await told - 3_600_000) <= 1


async def test_alarms_follow_the_wall_clock(clock: SystemClock, wall: WallClock) -> None:
    rang = asyncio.Event()
    clock.call_at(clock.now_ms() + 3_600_000, rang.set)
    never: list[str] = []
    clock.call_at(clock.now_ms() + 3_600_000, lambda: never.append("cancelled"))()
    clock.call_at(clock.now_ms() + 7_200_000, lambda: never.append("too early"))
    clock.call_later(3_600_000, lambda: never.append("a duration"))
    wall.set_by_ms = 3_600_000
    clock.check()
    await rang.wait()
    assert never == []


class SuspendedMachine:
    """A machine whose clocks show that it was suspended, while the event loop's timers stood still."""

    def __init__(self) -> None:
        self.suspended_ms = 0

    def wall_ns(self) -> int:
        return time.time_ns() + self.suspended_ms * 1_000_000

    def steady_ns(self) -> int:
        return time.monotonic_ns() + self.suspended_ms * 1_000_000


async def test_all_clocks_but_timers_advance_while_the_machine_is_suspended() -> None:
    machine, told, never, rang = SuspendedMachine(), list[int](), list[str](), asyncio.Event()
    with contextlib.closing(SystemClock(asyncio.get_running_loop(), machine.wall_ns, machine.steady_ns)) as clock:
        clock.when_set(told.append)
        clock.call_at(clock.now_ms() + 3_600_000, rang.set)
        clock.call_at(clock.now_ms() + 7_200_000, lambda: never.append("too early"))
        before = clock.now_ms(), clock.steady_ms()
        machine.suspended_ms = 3_600_000
        assert clock.now_ms() - before[0] >= 3_600_000
        assert clock.steady_ms() - before[1] >= 3_600_000
        await rang.wait()
    assert (told, never) == ([], [])


def test_the_steady_clock_is_the_one_that_counts_suspensions() -> None:
    """On a machine that was never suspended, the times of both clocks are the same."""
    steady_ns = inspect.signature(SystemClock).parameters["steady_ns"].default
    assert (steady_ns.func, steady_ns.args) == (time.clock_gettime_ns, (time.CLOCK_BOOTTIME,))


async def test_an_alarm_waits_for_a_wall_clock_that_was_set_back(clock: SystemClock, wall: WallClock) -> None:
    rang: list[str] = []
    clock.call_at(clock.now_ms(), lambda: rang.append("alarm"))
    wall.set_by_ms = -3_600_000
    clock.check()
    over = asyncio.Event()
    clock.call_later(1, over.set)
    await over.wait()
    assert rang == []
