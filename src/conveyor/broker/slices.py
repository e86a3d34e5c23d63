"""Shares the event loop's time among long requests: each of its turns does one slice of one of them.

However many long requests are in progress, all other work waits for one slice at a time.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from typing import TypeVar

from conveyor.broker.answers import answered
from conveyor.broker.tasks import Tasks
from conveyor.kernel.attempts import attempt

SLICE_ITEMS = 250
"""The most items of one slice, which should take less than 10 ms."""


Result = TypeVar("Result")


class Slices:
    """See the module's docstring. tasks: stop the broker after a bug."""

    def __init__(self, threads: Executor, tasks: Tasks) -> None:
        self._threads = threads
        self._tasks = tasks
        self._thread_lock = asyncio.Lock()
        self._waiting: deque[Callable[[], None]] = deque()
        self._is_stopped = False

    async def stop(self) -> None:
        """Do the slices of all requests in progress, and none after them."""
        while self._waiting:
            await self.turn()
        self._is_stopped = True

    def later(self, work: Callable[[], None]) -> bool:
        """Do a slice of work in a later turn, after the slices that wait already. Returns False once this is stopped:
        the work is not done then.
        """
        if not self._is_stopped:
            self._waiting.append(work)
            if len(self._waiting) == 1:
                asyncio.get_running_loop().call_soon(self._turn)
        return not self._is_stopped

    async def turn(self) -> None:
        """Wait until it is the calling task's turn to do a slice."""
        return await answered(lambda come: self.later(partial(come, None)))

    def _turn(self) -> None:
        attempt(self._tasks.failed, self._waiting[0])
        self._waiting.popleft()
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._turn)

    async def in_thread(self, work: Callable[[], Result]) -> Result:
        """Do long work that needs nothing of the broker in a thread, one at a time: other threads write to disks."""
        async with self._thread_lock:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)
