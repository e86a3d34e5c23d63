"""The machine's clock: its time goes on, and its alarms ring once, late ones at once, cancelled ones never."""

import asyncio

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
