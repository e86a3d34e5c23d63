"""Requests for leases: each takes the messages that there are, or waits in line for some until its time is up.

A subscription's partitions take turns; where messages have priorities, the partition whose first is the most urgent is
next. A request that is cancelled while it waits, or while its leases are being written, leaves nothing leased. Requests
end with their subscription, also if another takes its name.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Container, Sequence
from uuid import UUID

from conveyor.broker.hosts.queue_partition import QueuePartition
from conveyor.broker.metadata.subscriptions import Subscriptions
from conveyor.kernel.errors import RequestError
from conveyor.kernel.ports import Clock
from conveyor.queues.delivery.ack_id import LeaseName, encode_ack_id
from conveyor.queues.queue_commands import LeasedMessage, LeasedMessages, LeaseMessages, Release, Target
from conveyor.queues.subscription.policy import Subscription

_MAX_BYTES = 16 << 20

Waiter = asyncio.Future[None]
Leased = tuple[str, LeasedMessage]
"""A lease by its ack id."""


class LeaseRequests:
    """See the module's docstring. partitions_of: the loaded partitions of a topic, by its id."""

    def __init__(
        self, subscriptions: Subscriptions, partitions_of: Callable[[UUID], Sequence[QueuePartition]], clock: Clock
    ) -> None:
        self._subscriptions = subscriptions
        self._partitions_of = partitions_of
        self._clock = clock
        self._waiting: dict[str, dict[UUID, deque[Waiter]]] = {}
        self._turns: dict[UUID, int] = {}
        self._is_stopped = False

    async def lease(self, subscription: Subscription, count: int, wait_ms: int, visibility_ms: int) -> list[Leased]:
        """Up to `count` messages; none if none has come within wait_ms. Raises RequestError."""
        leased = await self._take(subscription, count, visibility_ms)
        if leased or wait_ms <= 0:
            return leased
        patience = _Patience()
        cancel = self._clock.time_out(wait_ms, patience.end)
        try:
            while not (leased or self._is_stopped or patience.is_over):
                await self._wait(subscription, patience)
                leased = await self._take(subscription, count, visibility_ms)
        finally:
            cancel()
        return leased

    def give_back(self, subscription: Subscription, leased: Sequence[tuple[int, Target]]) -> None:
        """Leases, by partition, that reached nobody: as if they had never been given."""
        partitions = self._partitions_of(subscription.topic_id)
        for number, target in leased:
            partitions[number].submit(Release(subscription=subscription.id, targets=(target,)), lambda _: None)

    def changed(self, partition: QueuePartition) -> None:
        """A partition may have something new: wake the first request of each subscription that waits for it."""
        changed = partition.machine.take_changed()
        waiting = self._waiting.get(partition.messages.identity.topic)
        if not waiting:
            return
        for subscription in changed:
            waiters = waiting.get(subscription)
            if waiters and partition.has_messages(subscription):
                _wake(waiters)

    def end(self, subscription: Subscription, error: RequestError) -> None:
        """A subscription is deleted: fail the requests that wait for it."""
        self._turns.pop(subscription.id, None)
        for waiter in self._waiting.get(subscription.topic, {}).get(subscription.id, ()):
            if not waiter.done():
                waiter.set_exception(error)

    def stop(self) -> None:
        """Answer all who wait: with nothing."""
        self._is_stopped = True
        for waiting in self._waiting.values():
            for waiters in waiting.values():
                while waiters:
                    _wake(waiters)

    async def _take(self, subscription: Subscription, count: int, visibility_ms: int) -> list[Leased]:
        taken: list[tuple[QueuePartition, LeasedMessage]] = []
        left_bytes = _MAX_BYTES
        failures: dict[int, RequestError] = {}
        try:
            while len(taken) < count and left_bytes > 0:
                chosen = self._next(self._subscriptions.current(subscription), failures)
                if chosen is None:
                    break
                partition, floor = chosen
                wanted = LeaseMessages(
                    subscription=subscription.id,
                    count=count - len(taken),
                    max_bytes=left_bytes,
                    visibility_ms=visibility_ms,
                    lowest_priority=floor,
                )
                try:
                    found = await _lease(partition, wanted)
                except RequestError as error:  # The other partitions go on.
                    failures[partition.number] = error
                    continue
                taken += [(partition, each) for each in found.messages]
                left_bytes -= sum(each.message.weight_bytes for each in found.messages)
                if not found.messages:
                    await asyncio.sleep(0)  # A filter lets little through: others have a turn, too.
        except asyncio.CancelledError:
            for partition, each in taken:
                _release(partition, subscription.id, [each])
            raise
        if failures and not taken:
            raise next(iter(failures.values()))
        return [(_ack_id(subscription, partition, each), each) for partition, each in taken]

    def _next(self, subscription: Subscription, without: Container[int]) -> tuple[QueuePartition, int] | None:
        """The partition to ask, and the priority down to which its messages come before all others'.

        None: there is nothing. A request that then waits, with no await in between, misses no message.
        """
        partitions = self._partitions_of(subscription.topic_id)
        now_ms = self._clock.now_ms()
        turn = self._turns.get(subscription.id, 0)
        ready: list[tuple[int, QueuePartition]] = []
        for place in range(len(partitions)):
            partition = partitions[(turn + place) % len(partitions)]
            queue = partition.machine.queue(subscription.id)
            if partition.number in without or queue is None or not queue.has_messages:
                continue
            priority = queue.deliveries.available.first_priority(now_ms)
            if priority is not None:
                ready.append((priority, partition))
        if not ready:
            return None
        chosen = max(ready, key=lambda each: each[0])
        ready.remove(chosen)
        self._turns[subscription.id] = chosen[1].number + 1
        return chosen[1], max((priority for priority, _ in ready), default=0)

    async def _wait(self, subscription: Subscription, patience: "_Patience") -> None:
        self._subscriptions.current(subscription)
        waiting = self._waiting.setdefault(subscription.topic, {})
        waiters = waiting.setdefault(subscription.id, deque())
        waiter: Waiter = asyncio.get_running_loop().create_future()
        waiters.append(waiter)
        patience.waiter = waiter
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                _wake(waiters)  # It was told, and cannot take it: the next one may.
            raise
        finally:
            patience.waiter = None
            if waiter in waiters:
                waiters.remove(waiter)
            if not waiters and waiting.get(subscription.id) is waiters:
                del waiting[subscription.id]
                if not waiting and self._waiting.get(subscription.topic) is waiting:
                    del self._waiting[subscription.topic]


class _Patience:
    """How long one request still waits: until it is over, with `waiter` as what it waits for meanwhile, if it does."""

    __slots__ = ("is_over", "waiter")

    def __init__(self) -> None:
        self.is_over = False
        self.waiter: Waiter | None = None

    def end(self) -> None:
        self.is_over = True
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)


def _wake(waiters: deque[Waiter]) -> None:
    while waiters:
        waiter = waiters.popleft()
        if not waiter.done():
            waiter.set_result(None)
            return


async def _lease(partition: QueuePartition, command: LeaseMessages) -> LeasedMessages:
    """Ask one partition. If nobody waits for the answer any more when it comes, it is given back."""
    answered: asyncio.Future[object] | None = None
    answers: list[object] = []

    def respond(reply: object) -> None:
        answers.append(reply)
        if answered is None:
            return
        if not answered.cancelled():
            answered.set_result(reply)
        elif isinstance(reply, LeasedMessages):
            _release(partition, command.subscription, reply.messages)

    partition.submit(command, respond)
    if not answers:
        answered = asyncio.get_running_loop().create_future()
        try:
            await answered
        except asyncio.CancelledError:
            if answers and isinstance(answers[0], LeasedMessages):  # It came in the turn of the cancellation.
                _release(partition, command.subscription, answers[0].messages)
            raise
    reply = answers[0]
    if isinstance(reply, RequestError):
        raise reply
    assert isinstance(reply, LeasedMessages)
    return reply


def _release(partition: QueuePartition, subscription: UUID, messages: Sequence[LeasedMessage]) -> None:
    targets = tuple(Target(each.message.offset, (each.incarnation, each.number)) for each in messages)
    if targets:
        partition.submit(Release(subscription=subscription, targets=targets), lambda _: None)


def _ack_id(subscription: Subscription, partition: QueuePartition, leased: LeasedMessage) -> str:
    name = LeaseName(partition.number, leased.message.offset, leased.incarnation, leased.number)
    return encode_ack_id(subscription.id, name)
