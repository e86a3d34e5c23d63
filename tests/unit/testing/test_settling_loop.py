"""A loop that detects when no work is pending."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from conveyor.testing.settling_loop import SettlingLoop


def run(work: Callable[[SettlingLoop], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SettlingLoop)
        await work(loop)

    with asyncio.Runner(loop_factory=SettlingLoop) as runner:
        runner.run(asyncio.wait_for(main(), 20))


def test_a_loop_with_nothing_to_do_has_settled() -> None:
    async def work(loop: SettlingLoop) -> None:
        await loop.settled()
        await asyncio.gather(loop.settled(), loop.settled())

    run(work)


def test_it_waits_for_callbacks_and_tasks_that_start_others() -> None:
    done: list[int] = []

    async def task() -> None:
        for _ in range(100):
            await asyncio.sleep(0)
        done.append(100)

    def callback(left: int) -> None:
        done.append(left)
        if left:
            asyncio.get_running_loop().call_soon(callback, left - 1)
        else:
            tasks.append(asyncio.ensure_future(task()))

    async def work(loop: SettlingLoop) -> None:
        loop.call_soon(callback, 50)
        await loop.settled()
        assert done == [*range(50, -1, -1), 100]

    tasks: list[asyncio.Future[None]] = []
    run(work)


def test_it_waits_for_executor_jobs_and_their_callbacks() -> None:
    may_end, done = threading.Event(), list[str]()

    async def work(loop: SettlingLoop) -> None:
        async def two_jobs() -> None:
            await loop.run_in_executor(threads, may_end.wait)
            done.append("one")
            await asyncio.to_thread(may_end.wait)
            done.append("two")

        with ThreadPoolExecutor(1) as threads:
            task = asyncio.ensure_future(two_jobs())
            loop.call_later(0.01, may_end.set)
            await loop.settled()
            assert done == ["one", "two"]
            await task

    run(work)


def test_it_does_not_wait_for_timers_and_external_events() -> None:
    async def work(loop: SettlingLoop) -> None:
        loop.call_later(3600, lambda: None)
        waiting = asyncio.ensure_future(asyncio.Event().wait())
        await loop.settled()
        assert not waiting.done()
        waiting.cancel()

    run(work)


def test_a_waiter_that_was_cancelled_is_left_out() -> None:
    async def work(loop: SettlingLoop) -> None:
        waiting = asyncio.ensure_future(loop.settled())
        await asyncio.sleep(0)
        waiting.cancel()
        await loop.settled()

    run(work)
