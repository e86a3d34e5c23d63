"""An event loop with virtual time, whose processes can be paused and killed.

Time stands still while a callback runs, and jumps to the next timer when no callback is ready. A process is a context
variable: every callback, timer and task created by a process's code belongs to it. None of them runs after `kill`.
Those that are due while the process is paused run in their order when it continues.
"""

import asyncio
import inspect
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import suppress
from contextvars import Context, ContextVar, copy_context
from typing import Any, Generic, TypeVar, TypeVarTuple, Unpack

Arguments = TypeVarTuple("Arguments")
Result = TypeVar("Result")

_RESOLUTION_S = 1e-6
"""Timers that differ by less are due at the same time, despite floating-point rounding."""

PROCESS: ContextVar["Process | None"] = ContextVar("process", default=None)


class Stalled(Exception):  # noqa: N818 - named for what it is
    """No callback is ready and no timer is set: a task waits for an event that cannot happen."""


class Process:
    """A group of callbacks that is killed together. Its code must run in `context`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_alive = True
        self.is_paused = False
        self.held: list[asyncio.Handle] = []
        """The callbacks that were due while the process was paused."""
        self.threads: Executor | None = None
        """The threads for jobs that name none."""
        self.context = copy_context()
        self.context.run(PROCESS.set, self)
        self._at_death: list[Callable[[], None]] = []

    def pause(self) -> None:
        """Let none of its callbacks run until `resume`."""
        self.is_paused = True

    def resume(self) -> None:
        """Run the callbacks that were due meanwhile."""
        self.is_paused = False
        held, self.held = self.held, []
        for handle in held:
            handle._loop._ready.append(handle)  # type: ignore[attr-defined]  # A cancelled one does not run.

    def kill(self) -> None:
        """Prevent all its callbacks from running. Calls the `at_death` callbacks in order."""
        self.is_alive = False
        callbacks, self._at_death = self._at_death, []
        for callback in callbacks:
            callback()

    def at_death(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call back when the process is killed. Returns a function that removes the callback."""
        self._at_death.append(callback)

        def forget() -> None:
            if callback in self._at_death:
                self._at_death.remove(callback)

        return forget


class VirtualLoop(asyncio.BaseEventLoop):
    """The loop; see the module's docstring. It has no sockets, signals or threads."""

    def __init__(self) -> None:
        super().__init__()
        self._selector = self
        self._clock_resolution = _RESOLUTION_S
        self._now_s = 0.0
        self._tasks: list[asyncio.Task[Any]] = []
        self.set_task_factory(self._new_task)

    def time(self) -> float:
        return self._now_s

    def select(self, timeout_s: float | None) -> list[Any]:
        """Advance time to the next timer. The loop calls this when no callback is ready. Raises Stalled."""
        if timeout_s is None:
            raise Stalled("no callback is ready and no timer is set")
        self._now_s += max(0.0, timeout_s)
        return []

    def call_soon(
        self, callback: Callable[[Unpack[Arguments]], object], *args: *Arguments, context: Context | None = None
    ) -> asyncio.Handle:
        if self.is_closed():  # By a `finally` block of a killed process's task, when the task is collected.
            return asyncio.Handle(callback, args, self)
        guarded = _Guarded(_owner(context), callback)
        guarded.handle = super().call_soon(guarded, *args, context=context)
        return guarded.handle

    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[Arguments]], object],
        *args: *Arguments,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        if self.is_closed():
            return asyncio.TimerHandle(when, callback, args, self)
        guarded = _Guarded(_owner(context), callback)
        guarded.handle = handle = super().call_at(when, guarded, *args, context=context)
        return handle

    def call_soon_threadsafe(
        self, callback: Callable[[Unpack[Arguments]], object], *args: *Arguments, context: Context | None = None
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[Unpack[Arguments]], Result], *args: *Arguments
    ) -> "asyncio.Future[Result]":
        """Run a job in these threads, by default those of the process."""
        process = PROCESS.get()
        threads = executor if executor is not None or process is None else process.threads
        assert threads is not None, "there are no threads outside of a process"
        return super().run_in_executor(threads, func, *args)

    async def create_server(  # type: ignore[override]  # An address in memory takes the place of a socket.
        self, protocol_factory: Callable[[], asyncio.BaseProtocol], *, sock: Any, backlog: int = 0
    ) -> Any:
        return sock.listen(protocol_factory)

    def end(self) -> None:
        """Close the loop. Tasks of killed processes are abandoned without a warning, whatever their ends raise."""
        self.close()
        for task in self._tasks:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            work = task.get_coro()
            if inspect.iscoroutine(work) and inspect.getcoroutinestate(work) != inspect.CORO_CLOSED:
                with suppress(Exception):
                    work.close()

    def _new_task(
        self, loop: asyncio.AbstractEventLoop, work: Any, context: Context | None = None
    ) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(work, loop=loop, context=context)
        self._tasks.append(task)  # Otherwise garbage collection would run `finally` blocks of killed processes.
        return task

    def _process_events(self, events: list[Any]) -> None:
        """There are no sockets."""

    def _write_to_self(self) -> None:
        """There is no selector to wake."""


def _owner(context: Context | None) -> Process | None:
    return PROCESS.get() if context is None else context.get(PROCESS)


class _Guarded(Generic[*Arguments]):
    """A callback that runs only while its process is alive and not paused. handle: the loop's handle of it."""

    __slots__ = ("_callback", "_owner", "handle")

    handle: asyncio.Handle

    def __init__(self, owner: Process | None, callback: Callable[[Unpack[Arguments]], object]) -> None:
        self._owner = owner
        self._callback = callback

    def __call__(self, *args: *Arguments) -> None:
        owner = self._owner
        if owner is not None and owner.is_alive and owner.is_paused:
            owner.held.append(self.handle)
            return
        del self.handle  # It refers to this object.
        if owner is None or owner.is_alive:
            self._callback(*args)
