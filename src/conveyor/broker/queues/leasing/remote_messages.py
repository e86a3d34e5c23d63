"""Knows which other brokers have messages for a subscription, while requests wait for them.

For each subscription with waiting requests, and each other broker that leads partitions of its topic, one call waits
there until messages are available. It leases nothing, so no message is lost with a call that nobody waits for any more.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from uuid import UUID

import msgspec

from conveyor.broker.answers import answered, pause
from conveyor.broker.queues.leasing.lease_waiters import LeaseWaiters
from conveyor.broker.remote.calls import Call
from conveyor.broker.remote.leader_calls import LeaderCalls
from conveyor.broker.services import Services
from conveyor.cluster.image import ClusterImage
from conveyor.kernel.errors import RequestError
from conveyor.kernel.ids import NodeId
from conveyor.kernel.peers import PeerUnreachable
from conveyor.queues.subscription.policy import Subscription

_WAIT_MS = 20_000
_GRACE_MS = 5_000
_RETRY_MS = 500
_EMPTY_MS = 20
"""The pause after a broker had messages that this one did not get."""


class AwaitMessages(msgspec.Struct, frozen=True, array_like=True):
    """Answer True once the broker could lease a message to the subscription, False after `wait_ms`."""

    subscription: str
    subscription_id: UUID
    wait_ms: int


AWAIT_MESSAGES: Call[AwaitMessages, bool] = Call("queue.await", AwaitMessages, bool, is_repeatable=True)


class _Watch:
    """The waiting requests of one subscription, and the brokers that are watched for them."""

    def __init__(self, subscription: Subscription) -> None:
        self.subscription = subscription
        self.requests_count = 0
        self.tasks: dict[NodeId, asyncio.Task[None]] = {}
        self.ready: dict[NodeId, Callable[[bool], None]] = {}
        """The brokers that have messages, and the functions to call when their messages were asked for."""


class RemoteMessages:
    """See the module's docstring. waiters: the requests that wait for messages."""

    def __init__(self, services: Services, leaders: LeaderCalls, waiters: LeaseWaiters) -> None:
        self._leaders = leaders
        self._own_caller = services.own_caller  # One call serves the requests of several clients.
        self._clock = services.clock
        self._tasks = services.tasks
        self._waiters = waiters
        self._watches: dict[UUID, _Watch] = {}
        services.metadata.listen(self._observe)

    @contextmanager
    def watching(self, subscription: Subscription) -> Iterator[None]:
        """Watch the other brokers while a request waits."""
        watch = self._watches.get(subscription.id)
        if watch is None:
            watch = self._watches[subscription.id] = _Watch(subscription)
        watch.requests_count += 1
        self._follow_leaders(watch)
        try:
            yield
        finally:
            watch.requests_count -= 1
            if not watch.requests_count:
                del self._watches[subscription.id]
                for task in watch.tasks.values():
                    task.cancel()

    def is_ready(self, subscription: Subscription) -> bool:
        """Return whether another broker may have messages that were not asked for yet."""
        watch = self._watches.get(subscription.id)
        return watch is not None and bool(watch.ready)

    def take_ready(self, subscription: Subscription) -> tuple[NodeId, Callable[[bool], None]] | None:
        """Return a broker that has messages.

        The caller asks for them, then calls the function with whether it got any.
        """
        watch = self._watches.get(subscription.id)
        return watch.ready.popitem() if watch is not None and watch.ready else None

    def _observe(self, old: ClusterImage, new: ClusterImage) -> None:
        if self._watches and old.topics is not new.topics:
            for watch in self._watches.values():
                self._follow_leaders(watch)

    def _follow_leaders(self, watch: _Watch) -> None:
        try:
            nodes = self._leaders.leaders(watch.subscription.topic).others
        except RequestError:  # The topic was deleted: its waiting requests end.
            nodes = ()
        for node_id in watch.tasks.keys() - set(nodes):
            watch.tasks.pop(node_id).cancel()
            watch.ready.pop(node_id, None)
        for node_id in nodes:
            if node_id not in watch.tasks:
                watch.tasks[node_id] = self._tasks.start(self._follow(watch, node_id))

    async def _follow(self, watch: _Watch, node_id: NodeId) -> None:
        request = AwaitMessages(watch.subscription.name, watch.subscription.id, _WAIT_MS)
        while True:
            try:
                has_messages = await self._leaders.ask_node(
                    self._own_caller, AWAIT_MESSAGES, node_id, request, _WAIT_MS + _GRACE_MS
                )
            except (RequestError, PeerUnreachable):
                await pause(self._clock, _RETRY_MS)
                continue
            if has_messages and not await self._taken(watch, node_id):
                await pause(self._clock, _EMPTY_MS)

    async def _taken(self, watch: _Watch, node_id: NodeId) -> bool:
        """Wake a request, and wait until one has asked the broker. Returns whether it has got messages."""

        def submit(taken: Callable[[bool], None]) -> None:
            watch.ready[node_id] = taken
            self._waiters.wake(watch.subscription.topic, watch.subscription.id)

        return await answered(submit)
