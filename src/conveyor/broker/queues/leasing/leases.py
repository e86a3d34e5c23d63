"""Leasing messages: a request takes the messages that are available, or waits until one is.

The partitions of a subscription take turns; where messages have priorities, the partition with the most urgent first
message is next. A request that is cancelled while it waits, or while its leases are being written, leaves nothing
leased. Requests fail when their subscription is deleted, even if another one takes its name.

A request first takes messages of partitions that this broker leads, then asks the other leaders of the topic. Every few
requests it is the other way round, so that the messages of other brokers are not left behind. A request that waits,
waits for all leaders: see `remote_messages`. It also waits for a leader while none can be asked, and fails if there is
none at its end: that no broker could be asked does not mean that there are no messages.
"""

import asyncio
from collections.abc import Callable, Container, Sequence
from contextlib import suppress
from uuid import UUID

from conveyor.broker.answers import answered, emitted, ignored
from conveyor.broker.coordinators.queue_partition import QueuePartition
from conveyor.broker.coordinators.queue_partitions import QueuePartitions
from conveyor.broker.metadata.subscriptions import Subscriptions
from conveyor.broker.queues.leasing.lease import Lease
from conveyor.broker.queues.leasing.lease_waiters import LeaseWaiters, WaitDeadline
from conveyor.broker.queues.leasing.remote_leases import LEASE, LeaseHere, RemoteLeases
from conveyor.broker.queues.leasing.remote_messages import AWAIT_MESSAGES, AwaitMessages, RemoteMessages
from conveyor.broker.queues.queue_calls import QueueCalls
from conveyor.broker.queues.subscribed_partitions import SubscribedPartitions
from conveyor.broker.remote.leader_calls import LeaderCalls
from conveyor.broker.services import Services
from conveyor.kernel.access.caller import Caller
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.ids import NodeId
from conveyor.kernel.signal import Signal
from conveyor.queues.delivery.ack_id import LeaseId, encode_ack_id
from conveyor.queues.queue_commands import LeasedMessage, LeasedMessages, LeaseMessages, Release, Target
from conveyor.queues.subscription.policy import Subscription

_MAX_BYTES = 16 << 20
_OTHERS_FIRST_EVERY = 8


class Leases:
    """See the module's docstring."""

    def __init__(
        self,
        services: Services,
        subscriptions: Subscriptions,
        partitions: QueuePartitions,
        subscribed: SubscribedPartitions,
        calls: QueueCalls,
        leaders: LeaderCalls,
    ) -> None:
        self._metadata = services.metadata
        self._subscriptions = subscriptions
        self._partitions = partitions
        self._subscribed = subscribed
        self._clock = services.clock
        self._waiters = LeaseWaiters()
        self._next_partition: dict[UUID, int] = {}
        self._is_stopped = False
        self._leaders = leaders
        self._requests_count = 0
        self._watched: dict[UUID, Signal[None]] = {}
        """Emitted when a subscription has messages for the calls of other brokers that wait for them."""
        self._remote_leases = RemoteLeases(services, partitions, calls, leaders)
        self._remote_messages = RemoteMessages(services, leaders, self._waiters)
        leaders.handlers.register(LEASE, self._lease_here)
        leaders.handlers.register(AWAIT_MESSAGES, self._await_messages)
        subscriptions.removed.listen(self._subscription_removed)
        partitions.changed.listen(self._changed)

    def stop(self) -> None:
        """Answer every waiting request with no messages."""
        self._is_stopped = True
        self._waiters.wake_all()

    async def lease(
        self, caller: Caller, name: str, max_messages: int, wait_ms: int, visibility_ms: int | None
    ) -> list[Lease]:
        """Lease up to `max_messages`; none if none arrived within `wait_ms`.

        Raises RequestError: also NOT_LEADER, if no leader could be asked at the end.
        """
        subscription = self._subscriptions.existing(name)
        await self._subscribed.served(subscription)
        if visibility_ms is None:
            visibility_ms = subscription.policy.visibility_timeout_ms
        leases, has_leader = list[Lease](), True
        try:
            leases = await self._take_anywhere(caller, subscription, max_messages, visibility_ms)
        except RequestError as error:
            if error.kind is not ErrorKind.NOT_LEADER or wait_ms <= 0:
                raise
            has_leader = False
        if leases or wait_ms <= 0:
            return leases
        deadline = WaitDeadline()
        cancel = self._clock.time_out(wait_ms, deadline.end)
        try:
            with self._remote_messages.watching(subscription):
                while not (leases or self._is_stopped or deadline.is_over):
                    self._subscriptions.current(subscription)
                    if not self._remote_messages.is_ready(subscription):
                        await self._waiters.wait(subscription, deadline)
                    leases = await self._take_ready(caller, subscription, max_messages, visibility_ms)
        finally:
            cancel()
        if not (leases or has_leader or self._is_stopped):
            return await self._take_anywhere(caller, subscription, max_messages, visibility_ms)
        return leases

    async def _take_anywhere(
        self, caller: Caller, subscription: Subscription, count: int, visibility_ms: int
    ) -> list[Lease]:
        """Lease messages of this broker, or else of another one. Raises RequestError."""
        others = self._leaders.other_leaders(subscription.topic)
        if not others:
            if not self._leaders.all_leaders(subscription.topic):
                raise RequestError(ErrorKind.NOT_LEADER, f"no broker leads topic '{subscription.topic}' at the moment")
            return await self._take(subscription, count, visibility_ms)
        self._requests_count += 1
        first = self._requests_count % len(others)
        others = others[first:] + others[:first]
        if self._requests_count % _OTHERS_FIRST_EVERY == 0:
            leases = await self._take_from(caller, subscription, others, count, visibility_ms)
            return leases or await self._take(subscription, count, visibility_ms)
        failure: RequestError | None = None
        try:
            leases = await self._take(subscription, count, visibility_ms)
        except RequestError as error:
            self._subscriptions.current(subscription)
            leases, failure = [], error
        leases = leases or await self._take_from(caller, subscription, others, count, visibility_ms)
        if failure is not None and not leases:
            raise failure
        # Messages may have arrived here while others were asked. A request that waits now must miss none.
        return leases or await self._take(subscription, count, visibility_ms)

    async def _take_from(
        self, caller: Caller, subscription: Subscription, others: Sequence[NodeId], count: int, visibility_ms: int
    ) -> list[Lease]:
        """Lease messages of the first other broker that has some. Raises RequestError if all have refused."""
        failures: list[RequestError] = []
        for node_id in others:
            leases = await self._remote_leases.take(caller, subscription, node_id, count, visibility_ms)
            if isinstance(leases, RequestError):
                failures.append(leases)
            elif leases:
                return leases
        if len(failures) == len(others) == len(self._leaders.all_leaders(subscription.topic)):
            raise failures[0]
        return []

    async def _take_ready(
        self, caller: Caller, subscription: Subscription, count: int, visibility_ms: int
    ) -> list[Lease]:
        """Lease messages after a wake-up: of this broker, or of another one that has announced messages."""
        leases = await self._take(subscription, count, visibility_ms)
        while not leases and (ready := self._remote_messages.take_ready(subscription)) is not None:
            node_id, asked = ready
            try:
                answer = await self._remote_leases.take(caller, subscription, node_id, count, visibility_ms)
                leases = [] if isinstance(answer, RequestError) else answer
            finally:
                asked(bool(leases))
            leases = leases or await self._take(subscription, count, visibility_ms)
        return leases

    async def _lease_here(self, caller: Caller, request: LeaseHere) -> list[Lease]:
        """Answer another broker."""
        subscription = self._subscriptions.identified(request.subscription, request.subscription_id)
        await self._subscribed.served(subscription)
        return await self._take(subscription, request.count, request.visibility_ms)

    async def _await_messages(self, caller: Caller, request: AwaitMessages) -> bool:
        """Answer another broker, once there are messages. Raises RequestError if none of them can be leased now."""
        subscription = self._subscriptions.identified(request.subscription, request.subscription_id)
        await self._subscribed.ready(subscription)
        answers = [partition.lease_refusal() for _, partition in self._ready(subscription, ())]
        refusals = [answer for answer in answers if answer is not None]
        if refusals and len(refusals) == len(answers):
            raise refusals[0]
        if self._ready(subscription, ()):
            return True
        return await emitted(self._watched.setdefault(subscription.id, Signal()), self._clock, request.wait_ms)

    def give_back(self, caller: Caller, name: str, leases: Sequence[Lease]) -> None:
        """End leases that reached no client: their messages count as never delivered. Those of a deleted subscription
        have ended.
        """
        with suppress(RequestError):
            self._remote_leases.give_back(caller, self._subscriptions.existing(name), leases)

    def _changed(self, partition: QueuePartition) -> None:
        """Wake the first waiting request of each subscription that has messages in this partition."""
        changed = partition.machine.take_changed()
        topic = partition.messages.identity.topic
        waiting = self._waiters.subscriptions(topic)
        for subscription in changed if waiting or self._watched else ():
            if (subscription in waiting or subscription in self._watched) and _has_messages(partition, subscription):
                self._waiters.wake(topic, subscription)
                watched = self._watched.pop(subscription, None)
                if watched is not None:
                    watched.emit(None)

    def _subscription_removed(self, subscription: Subscription) -> None:
        kind, deleted = ErrorKind.UNKNOWN_SUBSCRIPTION, f"subscription '{subscription.name}'"
        if subscription.topic_id not in self._metadata.image.names_by_id:
            kind, deleted = ErrorKind.UNKNOWN_TOPIC, f"topic '{subscription.topic}'"
        self._next_partition.pop(subscription.id, None)
        self._watched.pop(subscription.id, None)
        self._waiters.fail(subscription, RequestError(kind, f"{deleted} was deleted"))

    async def _take(self, subscription: Subscription, count: int, visibility_ms: int) -> list[Lease]:
        taken: list[tuple[QueuePartition, LeasedMessage]] = []
        left_bytes = _MAX_BYTES
        failures: dict[int, RequestError] = {}
        try:
            while len(taken) < count and left_bytes > 0:
                chosen = self._choose(self._subscriptions.current(subscription), failures)
                if chosen is None:
                    break
                partition, lowest_priority = chosen
                command = LeaseMessages(
                    subscription=subscription.id,
                    count=count - len(taken),
                    max_bytes=left_bytes,
                    visibility_ms=visibility_ms,
                    lowest_priority=lowest_priority,
                )
                try:
                    leased = await _ask(partition, command)
                except RequestError as error:  # The other partitions can still serve the request.
                    failures[partition.number] = error
                    continue
                taken += [(partition, message) for message in leased.messages]
                left_bytes -= sum(message.message.weight_bytes for message in leased.messages)
                if not leased.messages:
                    await asyncio.sleep(0)  # A filter that rejects most messages must not block the event loop.
        except asyncio.CancelledError:
            for partition, message in taken:
                _release(partition, subscription.id, [message])
            raise
        if failures and not taken:
            raise next(iter(failures.values()))
        return [_lease(subscription, partition, message) for partition, message in taken]

    def _choose(self, subscription: Subscription, failed: Container[int]) -> tuple[QueuePartition, int] | None:
        """Return the partition to ask, and the lowest priority to take from it before another partition is more urgent.

        None if there are no messages. A request that then waits without an `await` in between misses no message.
        """
        ready = self._ready(subscription, failed)
        if not ready:
            return None
        chosen = max(ready, key=lambda candidate: candidate[0])
        ready.remove(chosen)
        self._next_partition[subscription.id] = chosen[1].number + 1
        return chosen[1], max((priority for priority, _ in ready), default=0)

    def _ready(self, subscription: Subscription, failed: Container[int]) -> list[tuple[int, QueuePartition]]:
        """Return the partitions of this broker that have messages, with the priority of their first one, by turn."""
        partitions = self._partitions.of(subscription.topic_id)
        now_ms = self._clock.now_ms()
        first = self._next_partition.get(subscription.id, 0)
        ready: list[tuple[int, QueuePartition]] = []
        for place in range(len(partitions)):
            partition = partitions[(first + place) % len(partitions)]
            queue = partition.machine.queue(subscription.id)
            if partition.number in failed or queue is None or not queue.has_messages:
                continue
            priority = queue.deliveries.available.first_priority(now_ms)
            if priority is not None:
                ready.append((priority, partition))
        return ready


def _has_messages(partition: QueuePartition, subscription: UUID) -> bool:
    """Return whether a subscription could lease a message now."""
    queue = partition.machine.queue(subscription)
    return queue is not None and queue.has_messages


async def _ask(partition: QueuePartition, command: LeaseMessages) -> LeasedMessages:
    """Ask one partition. Leases that arrive after the request was cancelled are given back."""

    def submit(answer: Callable[[LeasedMessages | RequestError], None]) -> None:
        partition.submit(command, answer)  # The command is not withdrawn: its leases are given back.

    return await answered(submit, lambda leased: _release(partition, command.subscription, leased.messages))


def _release(partition: QueuePartition, subscription: UUID, messages: Sequence[LeasedMessage]) -> None:
    targets = tuple(Target(leased.message.offset, (leased.incarnation, leased.number)) for leased in messages)
    if targets:
        partition.submit(Release(subscription=subscription, targets=targets), ignored)


def _lease(subscription: Subscription, partition: QueuePartition, leased: LeasedMessage) -> Lease:
    lease_id = LeaseId(partition.number, leased.message.offset, leased.incarnation, leased.number)
    ack_id = encode_ack_id(subscription.id, lease_id)
    return Lease(ack_id, leased.message, leased.delivery_count, leased.ends_ms)
