"""Leasing messages: a request takes the messages that are available, or waits until one is.

The partitions of a subscription take turns; where messages have priorities, the partition with the most urgent first
message is next. A request that is cancelled while it waits, or while its leases are being written, leaves nothing
leased. Requests fail when their subscription is deleted, even if another one takes its name.
"""

import asyncio
from collections.abc import Callable, Container, Sequence
from typing import NamedTuple
from uuid import UUID

from conveyor.broker.answers import answered, ignored
from conveyor.broker.hosts.queue_partition import QueuePartition
from conveyor.broker.hosts.queue_partitions import QueuePartitions
from conveyor.broker.metadata.metadata import Metadata
from conveyor.broker.metadata.subscriptions import Subscriptions
from conveyor.broker.queues.lease_waiters import LeaseWaiters, WaitDeadline
from conveyor.broker.queues.message_targets import find_target
from conveyor.broker.queues.subscribed_partitions import SubscribedPartitions
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.ports import Clock
from conveyor.queues.delivery.ack_id import LeaseId, encode_ack_id
from conveyor.queues.queue_commands import LeasedMessage, LeasedMessages, LeaseMessages, Release, Target
from conveyor.queues.subscription.policy import Subscription
from conveyor.records.message import Message

_MAX_BYTES = 16 << 20


class Lease(NamedTuple):
    """A leased message."""

    ack_id: str
    message: Message
    delivery_count: int
    expires_ms: int


class Leases:
    """See the module's docstring."""

    def __init__(
        self,
        *,
        metadata: Metadata,
        subscriptions: Subscriptions,
        partitions: QueuePartitions,
        subscribed: SubscribedPartitions,
        clock: Clock,
    ) -> None:
        self._metadata = metadata
        self._subscriptions = subscriptions
        self._partitions = partitions
        self._subscribed = subscribed
        self._clock = clock
        self._waiters = LeaseWaiters()
        self._next_partition: dict[UUID, int] = {}
        self._is_stopped = False
        subscriptions.when_removed(self._subscription_removed)

    def stop(self) -> None:
        """Answer every waiting request with no messages."""
        self._is_stopped = True
        self._waiters.wake_all()

    async def lease(self, name: str, max_messages: int, wait_ms: int, visibility_ms: int | None) -> list[Lease]:
        """Lease up to `max_messages`; none if none arrived within `wait_ms`. Raises RequestError."""
        subscription = self._subscriptions.existing(name)
        await self._subscribed.served(subscription)
        if visibility_ms is None:
            visibility_ms = subscription.policy.visibility_timeout_ms
        leases = await self._take(subscription, max_messages, visibility_ms)
        if leases or wait_ms <= 0:
            return leases
        deadline = WaitDeadline()
        cancel = self._clock.time_out(wait_ms, deadline.end)
        try:
            while not (leases or self._is_stopped or deadline.is_over):
                self._subscriptions.current(subscription)
                await self._waiters.wait(subscription, deadline)
                leases = await self._take(subscription, max_messages, visibility_ms)
        finally:
            cancel()
        return leases

    def give_back(self, name: str, leases: Sequence[Lease]) -> None:
        """End leases that reached no client: their messages count as never delivered. Raises RequestError."""
        subscription = self._subscriptions.existing(name)
        partitions = self._partitions.of(subscription.topic_id)
        for lease in leases:
            resolved = find_target(subscription, lease.ack_id, len(partitions))
            if not isinstance(resolved, RequestError):
                number, target = resolved
                partitions[number].submit(Release(subscription=subscription.id, targets=(target,)), ignored)

    def changed(self, partition: QueuePartition) -> None:
        """Wake the first waiting request of each subscription that has messages in this partition."""
        changed = partition.machine.take_changed()
        topic = partition.messages.identity.topic
        waiting = self._waiters.subscriptions(topic)
        for subscription in changed if waiting else ():
            if subscription in waiting and partition.has_messages(subscription):
                self._waiters.wake(topic, subscription)

    def _subscription_removed(self, subscription: Subscription) -> None:
        kind, deleted = ErrorKind.UNKNOWN_SUBSCRIPTION, f"subscription '{subscription.name}'"
        if subscription.topic_id not in self._metadata.image.names_by_id:
            kind, deleted = ErrorKind.UNKNOWN_TOPIC, f"topic '{subscription.topic}'"
        self._next_partition.pop(subscription.id, None)
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
        if not ready:
            return None
        chosen = max(ready, key=lambda candidate: candidate[0])
        ready.remove(chosen)
        self._next_partition[subscription.id] = chosen[1].number + 1
        return chosen[1], max((priority for priority, _ in ready), default=0)


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
