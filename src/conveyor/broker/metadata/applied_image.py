"""The newest image that this broker has applied to its partitions. The reconciler advances it; others wait for it."""

import asyncio
from typing import NamedTuple

from conveyor.kernel.errors import ErrorKind, RequestError


class _Waiter(NamedTuple):
    """A caller of `settled`."""

    seq: int
    done: asyncio.Future[None]


class AppliedImage:
    """See the module's docstring. seq: the number of the image; -1 before the first."""

    def __init__(self) -> None:
        self.seq = -1
        self._waiters: list[_Waiter] = []
        self._is_stopped = False

    async def settled(self, seq: int) -> None:
        """Return once this broker has applied the image of this number or a later one.

        Raises RequestError when the broker stops.
        """
        if self.seq < seq:
            self.check_running()
            waiter = _Waiter(seq, asyncio.get_running_loop().create_future())
            self._waiters.append(waiter)
            await waiter.done

    def check_running(self) -> None:
        """Raise RequestError if the broker stops."""
        if self._is_stopped:
            raise broker_stops()

    def advance(self, seq: int) -> None:
        """The image of this number is applied."""
        self.seq = seq
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if waiter.seq > seq:
                self._waiters.append(waiter)
            elif not waiter.done.done():
                waiter.done.set_result(None)

    def stop(self) -> None:
        """Apply no more images, and release all waiting callers: the broker stops, or has met a bug."""
        self._is_stopped = True
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done.done():
                waiter.done.set_exception(broker_stops())


def broker_stops() -> RequestError:
    return RequestError(ErrorKind.METADATA_UNAVAILABLE, "the broker is stopping")
