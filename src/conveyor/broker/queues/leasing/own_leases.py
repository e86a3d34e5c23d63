"""Leases of messages in the partitions that this broker leads.

The partitions of a subscription take turns; where messages have priorities, the partition with the most urgent first
message is next.
"""

from bisect import bisect_left
from collections.abc import Callable
from functools import partial
from heapq import heapify, heappop, heappush
from operator import attrgetter
from typing import NamedTuple
from uuid import UUID

from conveyor.broker.coordinators.queue_partition import QueuePartition
from conveyor.broker.coordinators.queue_partitions import QueuePartitions
from conveyor.broker.metadata.subscriptions import Subscriptions
from conveyor.broker.slices import Slices
from conveyor.kernel.access.caller import Caller
from conveyor.kernel.errors import RequestError
from conveyor.kernel.ports import Clock
from conveyor.queues.queue_commands import LeasedMessage, LeaseMessages
from conveyor.queues.subscription.policy import MAX_IN_FLIGHT_PER_KEY, Subscription

_MAX_BYTES = 16 << 20
"""The most that several messages weigh together: they fit into one call between brokers."""
_ASKED_IN_A_TURN = 50
"""Partitions of one request, each with few messages, between two turns of the event loop."""

Reply = Callable[[list[LeasedMessage] | RequestError], None]


class LeaseRequest(NamedTuple):
    """A request for up to `max_messages`. client_id: what the client calls itself. max_bytes: the most that several
    messages weigh together. max_per_key: see `LeaseMessages`.
    """

    caller: Caller
    subscription: Subscription
    max_messages: int
    visibility_ms: int
    client_id: str = ""
    max_bytes: int = _MAX_BYTES
    max_per_key: int = MAX_IN_FLIGHT_PER_KEY


class OwnLeases:
    def __init__(self, clock: Clock, subscriptions: Subscriptions, partitions: QueuePartitions, slices: Slices) -> None:
        self.slices = slices
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

    def ready(self, subscription: Subscription) -> list[tuple[int, QueuePartition]]:
        """Return the partitions that have messages, with the priority of their first one, by turn."""
        partitions = self._partitions.of(subscription.topic_id)
        now_ms = self._clock.now_ms()
        number = self._next_partition.get(subscription.id, 0)
        first = bisect_left(partitions, number, key=attrgetter("number")) if number else 0
        ready: list[tuple[int, QueuePartition]] = []
        for partition in partitions[first:] + partitions[:first]:
            priority = _first_priority(partition, subscription.id, now_ms)
            if priority is not None:
                ready.append((priority, partition))
        return ready

    def priority_of(self, partition: QueuePartition, subscription: Subscription) -> int | None:
        """Return the priority of the first message of a partition; None if it has none."""
        return _first_priority(partition, subscription.id, self._clock.now_ms())

    def end_turn(self, partition: QueuePartition, subscription: Subscription) -> None:
        """A partition was asked: the next request begins with the one behind it."""
        self._next_partition[subscription.id] = partition.number + 1


def _first_priority(partition: QueuePartition, subscription_id: UUID, now_ms: int) -> int | None:
    queue = partition.machine.queue(subscription_id)
    if queue is None or not queue.has_messages:
        return None
    return queue.deliveries.available.first_priority(now_ms)


class _Taking:
    """One request, which asks partitions until it has enough messages, or there are no more. Once it has some, it also
    ends at a partition that delivers none: the next message there may not fit.

    The partitions with messages are looked up once, and kept in a heap: the next one to ask has the most urgent first
    message, and of several the one whose turn it is. One that was asked returns behind all others.
    """

    __slots__ = (
        "_asked", "_failures", "_is_asking", "_leases", "_left_bytes", "_own", "_ready", "_reply", "_request", "_turns",
        "_waits", "_weighed",
    )  # fmt: skip

    def __init__(self, own: OwnLeases, request: LeaseRequest, reply: Reply) -> None:
        self._own = own
        self._request = request
        self._reply = reply
        self._leases: list[LeasedMessage] = []
        self._weighed = 0
        """The leases that `_left_bytes` takes into account."""
        self._left_bytes = min(request.max_bytes, _MAX_BYTES)
        self._failures: dict[int, RequestError] = {}
        self._ready: list[tuple[int, int, QueuePartition]] | None = None
        """By urgency, then by turn."""
        self._asked: QueuePartition | None = None
        self._turns = 0
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
        request, leases = self._request, self._leases
        left = request.max_messages - len(leases)
        if left <= 0:
            return False
        self._left_bytes -= sum([leased.message.weight_bytes for leased in leases[self._weighed :]])
        self._weighed = len(leases)
        if self._left_bytes <= 0:
            return False
        partition = self._next(self._own.subscriptions.current(request.subscription))
        if partition is None:
            return False
        ready = self._ready
        command = LeaseMessages(
            subscription=request.subscription.id,
            count=left,
            max_bytes=self._left_bytes,
            visibility_ms=request.visibility_ms,
            at_least_one=not leases,
            lowest_priority=-ready[0][0] if ready else 0,
            max_per_key=request.max_per_key,
            caller=request.caller,
            client_id=request.client_id,
        )
        self._is_asking = self._waits = True
        partition.submit(command, partial(self._answered, partition))
        self._is_asking = False
        if not self._waits and self._turns % _ASKED_IN_A_TURN == 0:
            self._pause()
        return True

    def _next(self, subscription: Subscription) -> QueuePartition | None:
        """Return the partition to ask; None if no message is left."""
        ready, asked = self._ready, self._asked
        if ready is None:
            listed = self._own.ready(subscription)
            ready = [(-priority, turn, partition) for turn, (priority, partition) in enumerate(listed, -len(listed))]
            heapify(ready)
            self._ready = ready
        elif asked is not None and (priority := self._own.priority_of(asked, subscription)) is not None:
            heappush(ready, (-priority, self._turns, asked))
        while ready and ready[0][2].is_stopped:  # Another broker leads it by now.
            heappop(ready)
        if not ready:
            return None
        self._asked = chosen = heappop(ready)[2]
        self._turns += 1
        self._own.end_turn(chosen, subscription)
        return chosen

    def _pause(self) -> None:
        """Let others have the event loop, and other long requests their turns. A broker that stops asks no more."""
        self._waits = True
        if not self._own.slices.later(self.go_on):
            self._reply(self._leases)

    def _answered(self, partition: QueuePartition, answer: list[LeasedMessage] | RequestError) -> None:
        self._waits = False
        if isinstance(answer, RequestError):  # The other partitions can still serve the request.
            self._failures[partition.number] = answer
            self._asked = None
        else:
            self._leases += answer
            if not answer:
                if not self._leases:  # A filter that rejects most messages must not block the event loop.
                    return self._pause()
                self._left_bytes = 0  # The next message may not fit.
        if not self._is_asking:
            self.go_on()
