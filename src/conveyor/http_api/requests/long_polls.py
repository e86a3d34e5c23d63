"""Requests that wait. A stop of the broker ends the wait, and the client's disconnect does if nothing is changed."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from conveyor.http.engine.exchange import Exchange

Result = TypeVar("Result")


class LongPolls:
    """The waiting requests of one application."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Task[Any]] = set()
        self._is_over = False

    async def wait(
        self, work: Callable[[], Coroutine[Any, Any, Result]], otherwise: Result, exchange: Exchange | None = None
    ) -> Result:
        """Return the result of the work, or `otherwise` if the broker stops first. Cancelling it cancels the work.

        exchange: that the work ends with, too, if its client disconnects.
        """
        if self._is_over:
            return otherwise
        task = asyncio.ensure_future(work())
        self._waiting.add(task)
        if exchange is not None:
            exchange.until_gone(task.cancel)
        try:
            return await task
        except asyncio.CancelledError:
            if _is_cancelled():
                task.cancel()
                raise
            return otherwise
        finally:
            self._waiting.discard(task)

    def stop(self) -> None:
        """End every present and future wait."""
        self._is_over = True
        for task in self._waiting:
            task.cancel()


def _is_cancelled() -> bool:
    """Return whether the current task is being cancelled."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
