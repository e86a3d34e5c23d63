"""Limits the memory of large responses, so that neither large messages nor clients that do not read can exhaust it."""

import asyncio
from types import TracebackType
from typing import Self

from aiohttp import web

SMALL_BYTES = 64 << 10
_MAX_BYTES = 256 << 20
_SECONDS = 60


class BudgetFull(Exception):  # noqa: N818 - named for what it is
    """A large response must not be made now."""


class ResponseBudget:
    """Counts the bytes of large responses in the making and in flight, over all connections."""

    def __init__(self) -> None:
        self.used_bytes = 0

    @property
    def is_full(self) -> bool:
        """Whether responses use the whole budget, so that new requests must be refused."""
        return self.used_bytes >= _MAX_BYTES


class ResponseShare:
    """The share of one response, as a context manager: from the messages that it shows until it is sent."""

    __slots__ = ("_budget", "held_bytes")

    def __init__(self, budget: ResponseBudget) -> None:
        self._budget = budget
        self.held_bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._hold(0)

    def hold(self, size_bytes: int) -> None:
        """Hold the memory for making a response. Raises BudgetFull."""
        if self._budget.is_full:
            raise BudgetFull
        self._hold(size_bytes)

    async def send(self, request: web.Request, response: web.Response) -> web.Response:
        """Send a response and wait until the client has read most of it. If it is too slow, close the connection."""
        size = response.content_length or 0
        if size <= SMALL_BYTES:
            return response
        self._hold(size)
        try:
            async with asyncio.timeout(_SECONDS):
                await response.prepare(request)
                await response.write_eof()
        except (TimeoutError, ConnectionError):
            if request.transport is not None:
                request.transport.abort()
        return response

    def _hold(self, size_bytes: int) -> None:
        self._budget.used_bytes += size_bytes - self.held_bytes
        self.held_bytes = size_bytes
