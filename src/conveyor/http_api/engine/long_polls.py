"""Requests that wait for messages. A disconnect of the client cancels the wait; a stop of the broker ends it."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


class LongPolls:
    """The waiting requests of one application."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Task[Any]] = set()
        self._over = asyncio.Event()

    async def wait(
        self,
        work: Callable[[], Coroutine[Any, Any, Result]],
        otherwise: Result,
        unwanted: Callable[[Result], None] | None = None,
    ) -> Result:
        """Return the result of the work, or `otherwise` if the broker stops first. Cancelling it cancels the work.

        unwanted: called with the result if the work finished at the moment of the cancellation.
        """
        if self._over.is_set():
            return otherwise
        task = asyncio.ensure_future(work())
        self._waiting.add(task)
        task.add_done_callback(self._waiting.discard)
        try:
            return await task
        except asyncio.CancelledError:
            if unwanted is not None and task.done() and not task.cancelled() and task.exception() is None:
                unwanted(task.result())
            if not self._over.is_set() or _is_cancelled():
                raise
            return otherwise

    async def stop(self, _: object = None) -> None:
        """End every present and future wait."""
        self._over.set()
        for task in self._waiting:
            task.cancel()


def _is_cancelled() -> bool:
    """Return whether the current task is being cancelled."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
