"""Shares the event loop's time among long requests, and among the machines that read messages, of all partitions.

Each turn of the loop does one slice of one long request, and the machines' work until it has `TURN_ITEMS` together.
However many long requests are in progress, and however many partitions have something to do at the same moment, all
other work waits for that at a time.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from concurrent.futures import Executor
from functools import partial
from time import thread_time
from typing import Protocol, TypeVar

from conveyor.broker.answers import all_answered, answered
from conveyor.broker.tasks import Tasks
from conveyor.kernel.attempts import attempt
from conveyor.kernel.errors import StorageFailure

SLICE_ITEMS = 250
"""The most items of one slice, which should take less than 10 ms."""
SLICE_ASKS = 50
"""The machines, such as queues of a topic's partitions, that a slice gives a command that each of them writes."""
TURN_ITEMS = 2_000
"""The items of machines, such as deadlines of messages, after which the other machines wait for the next turn: about
5 ms. The work that reaches the limit may exceed it.
"""
_LEAST_ITEMS = 20
"""The items that any work of a machine counts for besides its own: to call it, and to write what it decides."""

Item = TypeVar("Item")
Result = TypeVar("Result")


class CountsWork(Protocol):
    """A machine whose work takes turns with that of the others."""

    @property
    def work_count(self) -> int:
        """The number of items, such as messages and deadlines, that the machine has handled so far."""
        ...


class TimeMeter(Protocol):
    """Counts the time that the requests of a client take."""

    def worked(self, seconds: float) -> None:
        """Count time."""
        ...


async def in_slices(items: Iterable[Item]) -> AsyncIterator[Item]:
    """Yield items, for background work that does not wait for its turn: others work after each SLICE_ITEMS of them."""
    for place, item in enumerate(items, 1):
        yield item
        if place % SLICE_ITEMS == 0:
            await asyncio.sleep(0)


class Slices:
    """See the module's docstring. tasks: stop the broker after a bug."""

    def __init__(self, threads: Executor, tasks: Tasks) -> None:
        self._threads = threads
        self._tasks = tasks
        self._thread_lock = asyncio.Lock()
        self._thread_jobs = 0
        """Those that run `in_thread` or wait for it."""
        self._waiting: deque[Callable[[], None]] = deque()
        self._machine_work: OrderedDict[Callable[[], None], CountsWork] = OrderedDict()
        """The work of machines that waits, in its order."""
        self._left_items = TURN_ITEMS
        """Filled up in the turn after it is used up, which is rare if there is little work in each turn."""
        self._is_working = False
        """True while a machine works."""
        self._has_turn = False
        self._is_stopped = False

    async def stop(self) -> None:
        """Do the slices of all requests in progress, also of those that are in a thread, and none after them. Machines
        are stopped by their owners.
        """
        await asyncio.sleep(0)  # Until a request that has just begun waits for a thread.
        while self._waiting or self._thread_jobs:
            await self.turn()
            async with self._thread_lock:
                pass
        self._is_stopped = True

    def later(self, work: Callable[[], None]) -> bool:
        """Do a slice of work in a later turn, after the slices that wait already. Returns False once this is stopped:
        the work is not done then.
        """
        if not self._is_stopped:
            self._waiting.append(work)
            self._want_turn()
        return not self._is_stopped

    async def turn(self) -> None:
        """Wait until it is the calling task's turn to do a slice."""
        return await answered(lambda come: self.later(partial(come, None)))

    async def each(self, items: Iterable[Item], weigh: Callable[[Item], int] = lambda _: 1) -> AsyncIterator[Item]:
        """Yield items, a slice of them in each turn; the first ones at once. weigh: returns as how many one counts."""
        room = SLICE_ITEMS
        for item in items:
            yield item
            room -= weigh(item)
            if room <= 0:
                await self.turn()
                room = SLICE_ITEMS

    async def ask_each(
        self, ask: Callable[[Item], Coroutine[object, object, Result]], items: Sequence[Item]
    ) -> list[Result]:
        """Ask something of each item, as `all_answered` does: of SLICE_ASKS items in each turn, without waiting for the
        answers of the earlier ones. Returns the answers in the order of the items. Raises the first error.
        """
        one_waits = asyncio.Lock()

        async def ask_some(start: int) -> list[Result]:
            if len(items) > SLICE_ASKS:
                async with one_waits:  # So that the work of others has its turns in between.
                    await self.turn()
            return await all_answered([ask(item) for item in items[start : start + SLICE_ASKS]])

        portions = await all_answered([ask_some(start) for start in range(0, len(items), SLICE_ASKS)])
        return [answer for portion in portions for answer in portion]

    def soon(self, work: Callable[[], None], machine: CountsWork) -> None:
        """Do work of a machine: now if this turn has room for it, otherwise in a later turn, after the work that waits
        already. Work that waits keeps its place. It does a limited part, and asks again for the rest.
        """
        self._machine_work.setdefault(work, machine)
        if not self._is_working:
            self._do_machine_work()

    def forget(self, work: Callable[[], None]) -> None:
        """Do not do work that may wait: its machine has stopped."""
        self._machine_work.pop(work, None)

    def _turn(self) -> None:
        self._has_turn = False
        self._left_items = TURN_ITEMS
        if self._waiting:
            attempt(self._tasks.failed, self._waiting.popleft())
        self._do_machine_work()

    def _do_machine_work(self) -> None:
        self._is_working = True
        while self._machine_work and self._left_items > 0:
            work, machine = self._machine_work.popitem(last=False)
            before_count = machine.work_count
            attempt(self._tasks.failed, work)
            self._left_items -= _LEAST_ITEMS + machine.work_count - before_count
        self._is_working = False
        if self._waiting or self._left_items <= 0:
            self._want_turn()

    def _want_turn(self) -> None:
        if not self._has_turn:
            self._has_turn = True
            asyncio.get_running_loop().call_soon(self._turn)

    async def in_thread(self, work: Callable[[], Result], meter: "TimeMeter | None" = None) -> Result:
        """Do long work that needs nothing of the broker in a thread, one at a time: other threads write to disks.

        meter: counts the time that the thread computes, during most of which the event loop waits for the interpreter.
        """
        seconds = 0.0

        def timed() -> Result:
            nonlocal seconds
            began = thread_time()
            try:
                return work()
            finally:
                seconds = thread_time() - began

        self._thread_jobs += 1
        try:
            async with self._thread_lock:
                return await asyncio.get_running_loop().run_in_executor(self._threads, timed)
        finally:
            self._thread_jobs -= 1
            if meter is not None:
                meter.worked(seconds)

    def off_loop(self, work: Callable[[], Result], done: Callable[[Result | StorageFailure], None]) -> None:
        """Read a log in a thread. `done` is called with the result or the failure, in a turn of the loop."""

        async def run() -> None:
            result: Result | StorageFailure
            try:
                result = await asyncio.get_running_loop().run_in_executor(self._threads, work)
            except StorageFailure as failure:
                result = failure
            done(result)

        self._tasks.start(run())
