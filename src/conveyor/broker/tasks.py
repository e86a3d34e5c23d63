"""Keeps the broker's asyncio tasks until they end. A bug in a task stops the broker, or fails its one request."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

from conveyor.kernel.errors import ErrorKind, InconsistentState, RequestError

log = logging.getLogger(__name__)

Result = TypeVar("Result")
Failed = Callable[[BaseException], None]
"""Receives an unexpected exception, which is a bug."""


class Tasks:
    """Running tasks. failed: called with a bug in one of them."""

    def __init__(self, failed: Failed) -> None:
        self.failed = failed
        self._running: dict[asyncio.Task[Any], Callable[[Exception], None] | None] = {}
        """Of each task what is called with its bug, if that does not concern the broker."""

    def start(
        self, work: Coroutine[Any, Any, Result], failed: Callable[[Exception], None] | None = None
    ) -> "asyncio.Task[Result]":
        """Run work until it ends. The caller may cancel the returned task.

        failed: called with a bug that does not concern the broker, because only one request notices it.
        """
        task = asyncio.ensure_future(work)
        self._running[task] = failed
        task.add_done_callback(self._done)
        return task

    def answer(self, work: Coroutine[Any, Any, Result], reply: Callable[[Result | RequestError], None]) -> None:
        """Run the part of a request that has to wait. `reply` gets its result, or the RequestError that it raises.

        A request that is cancelled because the broker stops, or that fails by a bug, is answered as well.
        """
        self.start(work, _note_bug).add_done_callback(partial(_reply, reply))

    async def stop(self) -> None:
        """Cancel the running tasks, and wait until they end."""
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    def _done(self, task: "asyncio.Task[Any]") -> None:
        failed = self._running.pop(task)
        if task.cancelled() or (error := task.exception()) is None:
            return
        if failed is None or isinstance(error, InconsistentState) or not isinstance(error, Exception):
            self.failed(error)
        else:
            failed(error)


def _note_bug(error: Exception) -> None:
    if not isinstance(error, RequestError):
        log.error("request failed", exc_info=error)


def _reply(reply: Callable[[Result | RequestError], None], task: "asyncio.Task[Result]") -> None:
    if task.cancelled():
        return reply(RequestError(ErrorKind.REQUEST_TIMED_OUT, "the broker has stopped"))
    error = task.exception()
    if error is None:
        reply(task.result())
    elif isinstance(error, RequestError):
        reply(error)
    else:
        reply(RequestError(ErrorKind.UNKNOWN_SERVER_ERROR, "a bug: see the traceback in the broker's log"))
