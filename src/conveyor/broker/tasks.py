"""Keeps the broker's asyncio tasks until they end. A bug in a task stops the broker."""

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

from conveyor.kernel.errors import InconsistentState

Result = TypeVar("Result")
Failed = Callable[[BaseException], None]
"""Receives an unexpected exception, which is a bug."""


class Tasks:
    """Running tasks. failed: called with a bug in one of them."""

    def __init__(self, failed: Failed) -> None:
        self.failed = failed
        self._running: set[asyncio.Task[Any]] = set()

    def start(
        self, work: Coroutine[Any, Any, Result], failed: Callable[[Exception], None] | None = None
    ) -> "asyncio.Task[Result]":
        """Run work until it ends. The caller may cancel the returned task.

        failed: called with a bug that does not concern the broker, because only one request notices it.
        """
        task = asyncio.ensure_future(work)
        self._running.add(task)
        task.add_done_callback(self._done if failed is None else partial(self._done, failed=failed))
        return task

    async def stop(self) -> None:
        """Cancel the running tasks, and wait until they end."""
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    def _done(self, task: "asyncio.Task[Any]", failed: Callable[[Exception], None] | None = None) -> None:
        self._running.discard(task)
        if task.cancelled() or (error := task.exception()) is None:
            return
        if failed is None or isinstance(error, InconsistentState) or not isinstance(error, Exception):
            self.failed(error)
        else:
            failed(error)
