"""The threads of a simulated process: a job runs on the loop, after a delay derived from the seed."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextvars import copy_context
from random import Random
from typing import ParamSpec, TypeVar

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

_USUAL_DELAY_S = 0.002
_LONG_DELAY_S = 0.5
_LONG_SHARE = 0.03


class SimulatedThreads(Executor):
    """An executor whose jobs take virtual time and may overtake each other, as in a thread pool.

    Between `hang` and `go_on` no job begins, as if the disk that all of them use did not answer.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, chance: Random) -> None:
        self._loop = loop
        self._chance = chance
        self._context = copy_context()
        """The process of the threads: held jobs die with it."""
        self._held: list[Callable[[], None]] | None = None

    @property
    def is_hanging(self) -> bool:
        """True if jobs do not begin."""
        return self._held is not None

    def hang(self) -> None:
        """Begin no job from now on."""
        self._held = self._held or []

    def go_on(self) -> None:
        """Begin all jobs that were submitted meanwhile."""
        held, self._held = self._held or [], None
        for run in held:
            self._loop.call_soon(run, context=self._context)

    def submit(
        self, work: Callable[Parameters, Result], /, *args: Parameters.args, **kwargs: Parameters.kwargs
    ) -> "Future[Result]":
        future: Future[Result] = Future()
        longest_s = _LONG_DELAY_S if self._chance.random() < _LONG_SHARE else _USUAL_DELAY_S

        def run() -> None:
            if self._held is not None:
                self._held.append(run)
                return
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = work(*args, **kwargs)
            except Exception as error:  # noqa: BLE001 - the future reports it, as an executor's does
                future.set_exception(error)
            else:
                future.set_result(result)

        self._loop.call_later(self._chance.uniform(0, longest_s), run)
        return future
