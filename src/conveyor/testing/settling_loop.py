"""An event loop that detects when its broker has settled: no callback is ready to run, and no executor job is pending.

While callbacks are ready, the loop polls its selector without waiting. When it is about to wait and the selector has no
event, all pending work is done, and the next event comes from outside. The loop's own timers follow real time and do
not count.
"""

import asyncio
import selectors
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, TypeVar, TypeVarTuple

Arguments = TypeVarTuple("Arguments")
Result = TypeVar("Result")


class SettlingLoop(asyncio.SelectorEventLoop):
    """The loop; see the module's docstring."""

    def __init__(self) -> None:
        self._job_count = 0
        self._waiting: list[asyncio.Future[None]] = []
        super().__init__(_Selector(self._is_about_to_wait))

    async def settled(self) -> None:
        """Wait until no callback, task or executor job is pending."""
        waiter = self.create_future()
        self._waiting.append(waiter)
        await waiter

    def run_in_executor(
        self,
        executor: Executor | None,
        func: Callable[[*Arguments], Result],
        *args: *Arguments,
    ) -> "asyncio.Future[Result]":
        job = super().run_in_executor(executor, func, *args)
        self._job_count += 1
        job.add_done_callback(self._job_done)
        return job

    def _job_done(self, job: "asyncio.Future[Any]") -> None:
        self._job_count -= 1

    def _is_about_to_wait(self) -> bool:
        """Wake the waiters of `settled` if no job is pending. Returns whether there were any."""
        if self._job_count or not self._waiting:
            return False
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)
        return True


class _Selector(selectors.DefaultSelector):
    """Calls its loop back before it waits."""

    def __init__(self, about_to_wait: Callable[[], bool]) -> None:
        super().__init__()
        self._about_to_wait = about_to_wait

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or (timeout is not None and timeout <= 0) or self._about_to_wait():
            return ready
        return super().select(timeout)
