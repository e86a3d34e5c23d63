"""Counts the requests in progress, so that a stopping broker can wait for them."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


class RequestsInProgress:
    """Counts requests in progress. A request ends when its response is ready, before the response is sent."""

    def __init__(self) -> None:
        self._count = 0
        self._none = asyncio.Event()
        self._none.set()

    @contextmanager
    def track(self) -> Iterator[None]:
        """Count one request during the block."""
        self._count += 1
        self._none.clear()
        try:
            yield
        finally:
            self._count -= 1
            if not self._count:
                self._none.set()

    async def finish(self, _: object = None) -> None:
        """Wait until no request is in progress."""
        await self._none.wait()
