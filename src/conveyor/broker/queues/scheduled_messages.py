"""Lists messages that are not due: those that a subscription withholds, and the records of a delayed topic."""

from collections.abc import Sequence
from typing import Literal, NamedTuple
from uuid import UUID

import msgspec

from conveyor.broker.coordinators.forwarders import Forwarders
from conveyor.broker.coordinators.queue_partition import QueuePartition
from conveyor.broker.queues.message_targets import Position, parse_position
from conveyor.broker.queues.queue_calls import QueueCalls
from conveyor.broker.queues.subscribed_partitions import SubscribedPartitions
from conveyor.broker.remote.calls import Call
from conveyor.broker.services import Services
from conveyor.broker.slices import SLICE_ITEMS
from conveyor.cluster.topic_decisions import existing_topic
from conveyor.delay.forwarding import place_of
from conveyor.kernel.access.caller import Caller
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.heap_search import PLACES_AT_ONCE
from conveyor.queues.delivery.scheduled import ScheduledSearch
from conveyor.queues.subscription.policy import Subscription

_PLACES_OF_AN_ITEM = PLACES_AT_ONCE // SLICE_ITEMS
_ITEMS_OF_A_PARTITION = 12
"""Those of a slice that a partition counts for, whatever it withholds."""


class ScheduledMessage(msgspec.Struct, frozen=True, order=True, array_like=True):
    """A message that is not due. reason: `delay` before its first delivery, `backoff` after a failed one.

    delivery_count: the number of failed deliveries. Messages are in the order of their times, partitions and offsets.
    """

    due_ms: int
    partition: int
    offset: int
    reason: Literal["delay", "backoff"]
    delivery_count: int

    @property
    def position(self) -> Position:
        """The place in a list."""
        return Position(self.due_ms, self.partition, self.offset)


class SchedulePart(msgspec.Struct, frozen=True, array_like=True):
    """The first messages of some partitions. is_complete: all messages of these are known by now."""

    messages: list[ScheduledMessage]
    is_complete: bool


class ScheduledHere(msgspec.Struct, frozen=True, array_like=True):
    """Return the first scheduled messages of the partitions that the asked broker leads."""

    subscription: str
    subscription_id: UUID
    after: Position
    limit: int


class DelayedHere(msgspec.Struct, frozen=True, array_like=True):
    """Return the first records that are not due of the partitions of a delayed topic that the asked broker leads."""

    topic: str
    topic_id: UUID
    after: Position
    limit: int


class SchedulePage(NamedTuple):
    """A page of a list. next: the position at which the next page continues; None after the last one."""

    messages: Sequence[ScheduledMessage]
    next: str | None
    is_complete: bool


_SCHEDULED: Call[ScheduledHere, SchedulePart] = Call("queue.scheduled", ScheduledHere, SchedulePart, is_repeatable=True)
_DELAYED: Call[DelayedHere, SchedulePart] = Call("delayed.scheduled", DelayedHere, SchedulePart, is_repeatable=True)


class ScheduledMessages:
    """See the module's docstring. Every method raises RequestError."""

    def __init__(
        self, services: Services, partitions: SubscribedPartitions, calls: QueueCalls, forwarders: Forwarders
    ) -> None:
        self._metadata = services.metadata
        self._clock = services.clock
        self._slices = services.slices
        self._partitions = partitions
        self._subscriptions = calls.subscriptions
        self._leaders = calls.leaders
        self._forwarders = forwarders
        self._leaders.handlers.register(_SCHEDULED, self._scheduled_here)
        self._leaders.handlers.register(_DELAYED, self._delayed_here)

    async def of_subscription(self, caller: Caller, name: str, after: str | None, limit: int) -> SchedulePage:
        """Return messages that a subscription withholds, sorted by their due times. after: `next` of a page."""
        subscription = self._subscriptions.existing(name)
        request = ScheduledHere(subscription.name, subscription.id, parse_position(after), limit)
        parts = [
            await self._scheduled_here(caller, request),
            *await self._leaders.ask_others(caller, _SCHEDULED, subscription.topic, request),
        ]
        return _page(parts, limit)

    async def of_topic(self, caller: Caller, topic: str, after: str | None, limit: int) -> SchedulePage:
        """Return records of a delayed topic that are not forwarded, sorted by their due times. after: `next` of a page.

        Raises also RequestError (INVALID_REQUEST) if the topic is not a delayed one.
        """
        image = existing_topic(self._metadata.image, topic)
        position = parse_position(after)
        if image.delay_target is None:
            reason = (
                f"topic '{topic}' is not a delayed topic: each subscription has a list of the messages it withholds"
            )
            raise RequestError(ErrorKind.INVALID_REQUEST, reason)
        request = DelayedHere(topic, image.topic_id, position, limit)
        parts = [
            await self._delayed_here(caller, request),
            *await self._leaders.ask_others(caller, _DELAYED, topic, request),
        ]
        return _page(parts, limit)

    async def _scheduled_here(self, caller: Caller, request: ScheduledHere) -> SchedulePart:
        subscription = self._subscriptions.identified(request.subscription, request.subscription_id)
        gathered = _Gathered(request.limit)
        partitions = await self._partitions.committed(subscription)
        async for partition in self._slices.each(partitions, gathered.weigh):
            await self._search_queue(partition, subscription, request, gathered)
        return gathered.part

    async def _search_queue(
        self, partition: QueuePartition, subscription: Subscription, request: ScheduledHere, gathered: "_Gathered"
    ) -> None:
        number, stable_offset = partition.number, partition.stable_offset
        after = request.after.in_partition(number, self._clock.now_ms())
        while (queue := partition.machine.queue(subscription.id)) is not None:
            search = ScheduledSearch(queue, after, request.limit)
            with search.begun():
                while not await partition.read(search.go_on):
                    await self._slices.turn()
            partition.check_delivering()
            if search.is_current:
                found = [
                    ScheduledMessage(due_ms, number, offset, "backoff" if is_failed else "delay", deliveries)
                    for due_ms, offset, is_failed, deliveries in search.found()
                ]
                return gathered.add(found, search.places_count, is_complete=search.is_complete(stable_offset))
            await self._slices.turn()

    async def _delayed_here(self, caller: Caller, request: DelayedHere) -> SchedulePart:
        image = existing_topic(self._metadata.image, request.topic)
        if image.topic_id != request.topic_id:
            raise RequestError(ErrorKind.UNKNOWN_TOPIC, f"topic '{request.topic}' was deleted")
        gathered = _Gathered(request.limit)
        async for number in self._slices.each(range(len(image.partitions)), gathered.weigh):
            if self._leaders.leads_here(request.topic, number):
                await self._search_delayed(number, request, gathered)
        return gathered.part

    async def _search_delayed(self, number: int, request: DelayedHere, gathered: "_Gathered") -> None:
        forwarder = await self._forwarders.of(request.topic, number)
        await forwarder.committed()
        stable_offset = forwarder.stable_offset
        after = request.after.in_partition(number, self._clock.now_ms())
        with forwarder.machine.search(after, request.limit) as search:
            while not search.go_on():
                await self._slices.turn()
            forwarder.check_running()
            places = map(place_of, search.found)
        found = [ScheduledMessage(due_ms, number, offset, "delay", 0) for due_ms, offset in places]
        is_complete = forwarder.machine.scanned_offset >= stable_offset
        gathered.add(found, search.places_count, is_complete=is_complete)


class _Gathered:
    """The first messages of the partitions so far."""

    def __init__(self, limit: int) -> None:
        self.part = SchedulePart([], is_complete=True)
        self._limit = limit
        self._places_count = 0

    def add(self, found: list[ScheduledMessage], places_count: int, *, is_complete: bool) -> None:
        """Add the first messages of a partition. places_count: those that were searched."""
        messages = sorted(self.part.messages + found)[: self._limit] if found else self.part.messages
        self.part = SchedulePart(messages, is_complete=self.part.is_complete and is_complete)
        self._places_count = places_count + (2 * len(messages) if found else 0)

    def weigh(self, _partition: object) -> int:
        """Return as how many items of a slice the last partition counts."""
        places_count, self._places_count = self._places_count, 0
        return _ITEMS_OF_A_PARTITION + places_count // _PLACES_OF_AN_ITEM


def _page(parts: Sequence[SchedulePart], limit: int) -> SchedulePage:
    messages = sorted(message for part in parts for message in part.messages)[:limit]
    following = str(messages[-1].position) if len(messages) == limit else None
    return SchedulePage(messages, following, all(part.is_complete for part in parts))
