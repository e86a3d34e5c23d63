"""Waiters for an offset of a partition.

Invariant: a waiter is called exactly once. During the call it may wait again or change the partition's role.
"""

from bisect import insort
from collections import deque
from collections.abc import Callable
from operator import itemgetter

from conveyor.kernel.errors import RequestError

Waiter = Callable[[RequestError | None], None]
"""Called once: with None when the offset is reached, or with an error if it never will be."""


class OffsetWaiters:
    """Waiters, lowest offset first; waiters of one offset in the order in which they were added.

    is_client: whether a client waits for an answer, so that the wait must end even if the offset is not reached.
    """

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, Waiter, bool]] = deque()

    @property
    def has_clients(self) -> bool:
        return any(is_client for _, _, is_client in self._waiting)

    def add(self, offset: int, waiter: Waiter, is_client: bool = False) -> None:
        waiting = self._waiting
        if waiting and offset < waiting[-1][0]:  # A repeated batch waits for the offset of the original batch.
            insort(waiting, (offset, waiter, is_client), key=itemgetter(0))
        else:
            waiting.append((offset, waiter, is_client))

    def release(self, reached: int) -> None:
        """Call the waiters of all offsets up to `reached`."""
        waiting = self._waiting
        while waiting and waiting[0][0] <= reached:
            waiting.popleft()[1](None)

    def fail(self, error: Callable[[], RequestError]) -> None:
        """Fail all waiters. error: creates one error for each waiter, because each may be raised."""
        waiting, self._waiting = self._waiting, deque()
        while waiting:
            waiting.popleft()[1](error())

    def fail_clients(self, error: Callable[[], RequestError], end_offset: int | None = None) -> None:
        """Fail the waiters of clients, up to an offset if one is given; the others go on waiting."""
        waiting, self._waiting = self._waiting, deque()
        failed: list[Waiter] = []
        for offset, waiter, is_client in waiting:
            if is_client and (end_offset is None or offset <= end_offset):
                failed.append(waiter)
            else:
                self._waiting.append((offset, waiter, is_client))
        for waiter in failed:
            waiter(error())
