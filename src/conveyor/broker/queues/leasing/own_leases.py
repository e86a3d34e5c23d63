"""Leases of messages in the partitions that this broker leads.

The partitions of a subscription take turns; where messages have priorities, the partition with the most urgent first
message is next.
"""

import asyncio
from collections.abc import Callable, Container
from functools import partial
from typing import NamedTuple
from uuid import UUID

from conveyor.broker.coordinators.queue_partition import QueuePartition
from conveyor.broker.coordinators.queue_partitions import QueuePartitions
from conveyor.broker.metadata.subscriptions import Subscriptions
from conveyor.kernel.access.caller import Caller
from conveyor.kernel.errors import RequestError
from conveyor.kernel.ports import Clock
from conveyor.queues.queue_commands import LeasedMessage, LeaseMessages
from conveyor.queues.subscription.policy import Subscription

_MAX_BYTES = 16 << 20

Reply = Callable[[list[LeasedMessage] | RequestError], None]


class LeaseRequest(NamedTuple):
    """A request for up to `max_messages`."""

    caller: Caller
    subscription: Subscription
    max_messages: int
    visibility_ms: int


class OwnLeases:
    def __init__(self, clock: Clock, subscriptions: Subscriptions, partitions: QueuePartitions) -> None:
        self.subscriptions = subscriptions
        self._clock = clock
        self._partitions = partitions
        self._next_partition: dict[UUID, int] = {}

    def take(self, request: LeaseRequest, reply: Reply) -> None:
        """Lease messages that are available. `reply` gets them: none if there are none, an error if all partitions with
        messages have refused. The leases of a request that is answered after its client has gone must be given back.
        """
        _Taking(self, request, reply).go_on()

    def forget(self, subscription: Subscription) -> None:
        """Forget whose turn it is: the subscription was deleted."""
        self._next_partition.pop(subscription.id, None)

    def choose(self, subscription: Subscription, failed: Container[int]) -> tuple[QueuePartition, int] | None:
        """Return the partition to ask, and the lowest priority to take from it before another partition is more urgent.

        None if there are no messages.
        """
        ready = self.ready(subscription, failed)
        if not ready:
            return None
        chosen = max(ready, key=lambda candidate: candidate[0])
        ready.remove(chosen)
        self._next_partition[subscription.id] = chosen[1].number + 1
        return chosen[1], max((priority for priority, _ in ready), default=0)

    def ready(self, subscription: Subscription, failed: Container[int] = ()) -> list[tuple[int, QueuePartition]]:
        """Return the partitions that have messages, with the priority of their first one, by turn."""
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


class _Taking:
    """One request, which asks partitions until it has enough messages, or there are no more."""

    __slots__ = ("_failures", "_is_asking", "_leases", "_left_bytes", "_own", "_reply", "_request", "_waits")

    def __init__(self, own: OwnLeases, request: LeaseRequest, reply: Reply) -> None:
        self._own = own
        self._request = request
        self._reply = reply
        self._leases: list[LeasedMessage] = []
        self._left_bytes = _MAX_BYTES
        self._failures: dict[int, RequestError] = {}
        self._is_asking = self._waits = False

    def go_on(self) -> None:
        """Ask the next partitions, until one does not answer at once: its answer then continues here."""
        try:
            while self._ask():
                if self._waits:
                    return
        except RequestError as error:  # The subscription was deleted.
            return self._reply(error)
        if self._failures and not self._leases:
            return self._reply(next(iter(self._failures.values())))
        self._reply(self._leases)

    def _ask(self) -> bool:
        """Ask a partition, unless there is enough, or no message is left. Raises RequestError."""
        request, left = self._request, self._request.max_messages - len(self._leases)
        if left <= 0 or self._left_bytes <= 0:
            return False
        chosen = self._own.choose(self._own.subscriptions.current(request.subscription), self._failures)
        if chosen is None:
            return False
        partition, lowest_priority = chosen
        command = LeaseMessages(
            subscription=request.subscription.id,
            count=left,
            max_bytes=self._left_bytes,
            visibility_ms=request.visibility_ms,
            lowest_priority=lowest_priority,
        )
        self._is_asking = self._waits = True
        partition.submit(command, partial(self._answered, partition.number))
        self._is_asking = False
        return True

    def _answered(self, number: int, answer: list[LeasedMessage] | RequestError) -> None:
        self._waits = False
        if isinstance(answer, RequestError):  # The other partitions can still serve the request.
            self._failures[number] = answer
        else:
            self._leases += answer
            self._left_bytes -= sum([leased.message.weight_bytes for leased in answer])
            if not answer:  # A filter that rejects most messages must not block the event loop.
                self._waits = True
                asyncio.get_running_loop().call_soon(self.go_on)
                return
        if not self._is_asking:
            self.go_on()
