"""The few requests that have to wait inside: each is a task, kept until it ends. A bug in one stops the broker."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


class Tasks:
    """Running tasks. `failed` is told of an exception that nobody expected: a bug."""

    def __init__(self, failed: Callable[[BaseException], None]) -> None:
        self._failed = failed
        self._running: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._running.add(task)
        task.add_done_callback(self._done)

    async def stop(self) -> None:
        """Cancel what still runs, and wait for its end."""
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    def _done(self, task: "asyncio.Task[None]") -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failed(error)
