"""Memory for requests: bytes that have begun to arrive and are not answered yet, all connections of all doors together.

A large request waits for its share of the limit before the rest of it is read. Shares are granted in the order in which
they were asked for; the first in line is granted at the latest when no other is held, so that none waits for ever. The
doors close a connection whose request does not arrive in time after that (`network.max_receive_ms`). Small requests do
not wait: their bytes are counted only.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

SMALL_REQUEST_BYTES = 512 << 10
"""A request up to this size does not wait."""
BEFORE_SHARE_BYTES = 256 << 10
"""So much of a large request is read before it asks for its share: to announce one costs its sender something. An event
loop reads no more than this at once, so that none is whole before it has asked."""


class Share:
    """A part of the budget, for one large request. granted: called once when it may be read; None from then on."""

    __slots__ = ("granted", "size_bytes")

    def __init__(self, size_bytes: int, granted: Callable[[], None]) -> None:
        self.size_bytes = size_bytes
        self.granted: Callable[[], None] | None = granted


class RequestBudget:
    """See the module's docstring."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._waiting: deque[Share] = deque()
        self.held_bytes = 0
        """Of large requests."""
        self.small_bytes = 0

    @property
    def waiting_count(self) -> int:
        """Large requests that wait for their share."""
        return len(self._waiting)

    @property
    def has_too_many(self) -> bool:
        """Whether small requests alone come to more than the limit."""
        return self.small_bytes > self._limit_bytes

    def count(self, change_bytes: int) -> None:
        """Small requests take so many bytes more, or fewer."""
        self.small_bytes += change_bytes
        if change_bytes < 0:
            self._grant()

    def ask(self, size_bytes: int, granted: Callable[[], None]) -> Share:
        """Stand in line for a share; `granted` is called as soon as it is there, now or later."""
        share = Share(size_bytes, granted)
        self._waiting.append(share)
        self._grant()
        return share

    def give_back(self, share: Share) -> None:
        """The request is answered, or given up."""
        if share.granted is None:
            self.held_bytes -= share.size_bytes
        else:
            self._waiting.remove(share)
        self._grant()

    @asynccontextmanager
    async def hold(self, size_bytes: int) -> AsyncIterator[None]:
        """Hold a share, after waiting for it."""
        arrived: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        share = self.ask(size_bytes, lambda: None if arrived.done() else arrived.set_result(None))
        try:
            await arrived
            yield
        finally:
            self.give_back(share)

    def _grant(self) -> None:
        while self._waiting and self._fits(self._waiting[0]):
            share = self._waiting.popleft()
            self.held_bytes += share.size_bytes
            granted, share.granted = share.granted, None
            assert granted is not None, "a share in line is not granted yet"
            granted()

    def _fits(self, share: Share) -> bool:
        return not self.held_bytes or self.held_bytes + self.small_bytes + share.size_bytes <= self._limit_bytes
