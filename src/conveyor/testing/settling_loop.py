"""An event loop that knows when its broker has settled: nothing is ready to run, and no job is with an executor.

While callbacks are ready the loop asks its selector for events without waiting. So when it is about to wait, and the
selector has no event either, everything that happens by itself has happened: the next event comes from outside. The
loop's own timers are of real time and do not count.
"""

import asyncio
import selectors
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, TypeVar, TypeVarTuple

Arguments = TypeVarTuple("Arguments")
Result = TypeVar("Result")


class SettlingLoop(asyncio.SelectorEventLoop):
    """See the module's docstring."""

    def __init__(self) -> None:
        self._job_count = 0
        self._waiting: list[asyncio.Future[None]] = []
        super().__init__(_Selector(self._is_about_to_wait))

    async def settled(self) -> None:
        """Wait until callbacks, tasks and jobs of executors have come to rest."""
        rest = self.create_future()
        self._waiting.append(rest)
        await rest

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
        """Returns whether that has made something ready to run."""
        if self._job_count or not self._waiting:
            return False
        waiting, self._waiting = self._waiting, []
        for rest in waiting:
            if not rest.done():
                rest.set_result(None)
        return True


class _Selector(selectors.DefaultSelector):
    """Tells its loop when it is about to wait."""

    def __init__(self, about_to_wait: Callable[[], bool]) -> None:
        super().__init__()
        self._about_to_wait = about_to_wait

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        found = super().select(0)
        if found or (timeout is not None and timeout <= 0) or self._about_to_wait():
            return found
        return super().select(timeout)
