"""Lease requests that wait for a message, until one may have arrived or their wait time ends.

The requests of a subscription wait in a queue; a message wakes the first. A request that misses its wake-up because it
was cancelled wakes the next one instead.
"""

import asyncio
from collections import deque
from collections.abc import Collection
from uuid import UUID

from conveyor.kernel.errors import RequestError
from conveyor.queues.subscription.policy import Subscription

Waiter = asyncio.Future[None]


class LeaseWaiters:
    """The waiting requests of all subscriptions, by the topic's name and the subscription's id."""

    def __init__(self) -> None:
        self._waiting: dict[str, dict[UUID, deque[Waiter]]] = {}

    def subscriptions(self, topic: str) -> Collection[UUID]:
        """Return the subscriptions of a topic for which requests wait."""
        return self._waiting.get(topic, {}).keys()

    async def wait(self, subscription: Subscription, deadline: "WaitDeadline") -> None:
        """Wait behind the subscription's other requests. Raises the RequestError that ends the wait."""
        waiting = self._waiting.setdefault(subscription.topic, {})
        waiters = waiting.setdefault(subscription.id, deque())
        waiter: Waiter = asyncio.get_running_loop().create_future()
        waiters.append(waiter)
        deadline.waiter = waiter
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                _wake(waiters)  # This request was woken and cannot take the message: the next one may.
            raise
        finally:
            deadline.waiter = None
            if waiter in waiters:
                waiters.remove(waiter)
            if not waiters and waiting.get(subscription.id) is waiters:
                del waiting[subscription.id]
                if not waiting and self._waiting.get(subscription.topic) is waiting:
                    del self._waiting[subscription.topic]

    def wake(self, topic: str, subscription: UUID) -> None:
        """Wake the first request that waits for a subscription."""
        waiters = self._waiting.get(topic, {}).get(subscription)
        if waiters:
            _wake(waiters)

    def fail(self, subscription: Subscription, error: RequestError) -> None:
        """Answer every request that waits for a subscription with an error."""
        for waiter in self._waiting.get(subscription.topic, {}).get(subscription.id, ()):
            if not waiter.done():
                waiter.set_exception(error)

    def wake_all(self) -> None:
        """Wake every request."""
        for waiting in self._waiting.values():
            for waiters in waiting.values():
                while waiters:
                    _wake(waiters)


class WaitDeadline:
    """The end of one request's wait. waiter: the future that the request awaits at the moment, if any."""

    __slots__ = ("is_over", "waiter")

    def __init__(self) -> None:
        self.is_over = False
        self.waiter: Waiter | None = None

    def end(self) -> None:
        """Wake the request: its wait time has passed."""
        self.is_over = True
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)


def _wake(waiters: deque[Waiter]) -> None:
    while waiters:
        waiter = waiters.popleft()
        if not waiter.done():
            waiter.set_result(None)
            return
