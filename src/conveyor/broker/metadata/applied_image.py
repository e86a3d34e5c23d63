"""The newest image that this broker has applied to its partitions. The reconciler advances it; others wait for it."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from conveyor.broker.answers import answered
from conveyor.kernel.errors import ErrorKind, RequestError


class _Waiter(NamedTuple):
    """A caller of `settled`."""

    seq: int
    reply: Callable[[RequestError | None], None]


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
            await answered(partial(self._wait, seq))

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
            else:
                waiter.reply(None)

    def stop(self) -> None:
        """Apply no more images, and release all waiting callers: the broker stops, or has met a bug."""
        self._is_stopped = True
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            waiter.reply(broker_stops())

    def _wait(self, seq: int, reply: Callable[[RequestError | None], None]) -> None:
        self._waiters.append(_Waiter(seq, reply))


def broker_stops() -> RequestError:
    return RequestError(ErrorKind.METADATA_UNAVAILABLE, "the broker is stopping")
