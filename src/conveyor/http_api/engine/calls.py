"""The requests that are worked on: a broker that stops waits for them."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


class Calls:
    """How many there are. What they answer may still be on its way to the client."""

    def __init__(self) -> None:
        self._count = 0
        self._none = asyncio.Event()
        self._none.set()

    @contextmanager
    def one(self) -> Iterator[None]:
        """While a request is worked on."""
        self._count += 1
        self._none.clear()
        try:
            yield
        finally:
            self._count -= 1
            if not self._count:
                self._none.set()

    async def finish(self, _: object = None) -> None:
        """Wait until none is worked on."""
        await self._none.wait()
