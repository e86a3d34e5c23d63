"""Shows messages without leasing them: by subscription, and their state in each subscription."""

from functools import partial
from uuid import UUID

import msgspec

from conveyor.broker.coordinators.queue_partition import QueuePartition
from conveyor.broker.metadata.subscriptions import Subscriptions
from conveyor.broker.queues.message_targets import check_number, parse_place
from conveyor.broker.queues.queue_calls import QueueCalls, QueuePlace
from conveyor.broker.queues.subscribed_partitions import SubscribedPartitions
from conveyor.broker.remote.calls import Call
from conveyor.broker.remote.leader_calls import LeaderCalls
from conveyor.broker.services import Services
from conveyor.cluster.topic_decisions import existing_topic
from conveyor.kernel.access.caller import Caller
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.queues.delivery.inspection import Peek, Peeked, message_state
from conveyor.queues.queue_commands import MessageState
from conveyor.records.message import Message, format_message_id


class PeekHere(msgspec.Struct, frozen=True, array_like=True):
    """Return the first unsettled messages of the partitions that the asked broker leads."""

    subscription: str
    subscription_id: UUID
    max_messages: int


class StatesHere(msgspec.Struct, frozen=True, array_like=True):
    """Return the state of a message in each subscription of its topic."""

    place: QueuePlace
    offset: int


_PEEK: Call[PeekHere, list[Peeked]] = Call("queue.peek", PeekHere, list[Peeked], is_repeatable=True)
_STATES: Call[StatesHere, dict[str, MessageState]] = Call(
    "queue.states", StatesHere, dict[str, MessageState], is_repeatable=True
)


class MessageInspection:
    """See the module's docstring. Every method raises RequestError."""

    def __init__(
        self,
        services: Services,
        subscriptions: Subscriptions,
        partitions: SubscribedPartitions,
        calls: QueueCalls,
        leaders: LeaderCalls,
    ) -> None:
        self._calls = calls
        self._leaders = leaders
        leaders.handlers.register(_PEEK, self._peek_here)
        leaders.handlers.register(_STATES, self._states_here)
        self._metadata = services.metadata
        self._subscriptions = subscriptions
        self._partitions = partitions
        self._clock = services.clock
        self._slices = services.slices

    async def peek(self, caller: Caller, name: str, max_messages: int) -> list[Peeked]:
        """Return the first unsettled messages of each partition, by offset; fewer than `max_messages` if large."""
        subscription = self._subscriptions.existing(name)
        request = PeekHere(name, subscription.id, max_messages)
        messages = await self._peek_here(caller, request)
        if len(messages) < max_messages:
            for answer in await self._leaders.ask_others(caller, _PEEK, subscription.topic, request):
                messages += answer
        messages.sort(key=lambda peeked: (peeked.message.partition, peeked.message.offset))
        return messages[:max_messages]

    async def _peek_here(self, caller: Caller, request: "PeekHere") -> list[Peeked]:
        subscription = self._subscriptions.identified(request.subscription, request.subscription_id)
        partitions = await self._partitions.committed(subscription)
        peek = Peek(request.max_messages, self._clock.now_ms())
        for partition in partitions:
            queue = partition.machine.queue(subscription.id)
            if queue is not None and not peek.is_done:
                search = peek.search(queue, partition.source, partition.stable_offset)
                while not await partition.read(search):
                    await self._slices.turn()
        return peek.found

    async def message_states(self, caller: Caller, topic: str, message_id: str) -> dict[str, MessageState]:
        """Return the state of a message in each subscription of its topic, by the subscription's name."""
        image = existing_topic(self._metadata.image, topic)
        subscriptions = self._subscriptions.all(topic)
        number, offset = parse_place(message_id)
        check_number(number, len(image.partitions), topic)
        if not subscriptions:
            return {}
        request = StatesHere(QueuePlace(topic, image.topic_id, number), offset)
        return await self._leaders.ask(caller, _STATES, topic, number, request)

    async def _states_here(self, caller: Caller, request: "StatesHere") -> dict[str, MessageState]:
        topic, offset = request.place.topic, request.offset
        message_id = format_message_id(request.place.number, offset)
        states: dict[str, MessageState] = {}
        for subscription in self._subscriptions.all(topic):
            await self._partitions.ready(subscription)
            partition = await self._calls.here(request.place)
            message = await _read(partition, offset)
            if message is None:
                raise RequestError(ErrorKind.UNKNOWN_MESSAGE, f"topic '{topic}' has no message '{message_id}'")
            queue = partition.machine.queue(subscription.id)
            if queue is not None:
                state = message_state(queue, message, self._clock.now_ms())
                if offset in partition.machine.cancelled:
                    state = MessageState("cancelled", settled_ms=state.settled_ms)
                states[subscription.name] = state
            partition.check_delivering()
        return states


async def _read(partition: QueuePartition, offset: int) -> Message | None:
    if offset >= partition.stable_offset:
        return None
    return await partition.read(partial(partition.source.get, offset))
