"""Asks the queue of any partition, on the broker that leads it: this broker or another one."""

from collections.abc import Callable
from functools import partial
from typing import Any, Generic, TypeVar, cast
from uuid import UUID

import msgspec

from conveyor.broker.answers import answered
from conveyor.broker.coordinators.queue_partition import QueuePartition
from conveyor.broker.coordinators.queue_partitions import QueuePartitions
from conveyor.broker.metadata.subscriptions import Subscriptions
from conveyor.broker.partitions.own_writes import wait_for_commits
from conveyor.broker.partitions.partition_table import PartitionTable
from conveyor.broker.remote.calls import Call
from conveyor.broker.remote.leader_calls import LeaderCalls
from conveyor.broker.services import Services
from conveyor.broker.topics.topics import Topics
from conveyor.kernel.access.caller import Caller
from conveyor.kernel.errors import ErrorKind, NotLeader, RequestError
from conveyor.kernel.ids import TopicPartition
from conveyor.queues.queue_commands import (
    Acknowledge,
    Cancel,
    DropDeadLetters,
    Extend,
    NackMessages,
    QueueCommand,
    Redeliver,
    Redelivered,
    Reject,
    Release,
    SeekSubscription,
    Settled,
    SubscriptionCommand,
)
from conveyor.queues.subscription.policy import StartPosition, Subscription

Asked = TypeVar("Asked")
Reply = TypeVar("Reply")


class QueuePlace(msgspec.Struct, frozen=True, array_like=True):
    """The queue of one partition. topic_id: a topic that has taken the name since has other queues."""

    topic: str
    topic_id: UUID
    number: int


def place_of(subscription: Subscription, number: int) -> QueuePlace:
    """Return the place of a subscription's messages in one partition of its topic."""
    return QueuePlace(subscription.topic, subscription.topic_id, number)


class QueueAsk(msgspec.Struct, Generic[Asked], frozen=True, array_like=True):
    place: QueuePlace
    command: Asked


class BeginQueue(msgspec.Struct, frozen=True, array_like=True):
    """Begin a new subscription at its start position, unless it has begun there."""

    place: QueuePlace
    subscription: str
    subscription_id: UUID


class SeekQueue(msgspec.Struct, frozen=True, array_like=True):
    """Move a subscription to a position or an offset."""

    place: QueuePlace
    subscription: str
    subscription_id: UUID
    position: StartPosition | None
    offset: int | None


_REPLIES: dict[type, Any] = {
    Acknowledge: Settled,
    Cancel: None,
    DropDeadLetters: None,
    Extend: Settled,
    NackMessages: Settled,
    Redeliver: Redelivered,
    Reject: Settled,
    Release: None,
}
"""The reply of each command that other brokers send."""

_COMMANDS: dict[type, Call[QueueAsk[Any], Any]] = {
    command: Call(
        f"queue.{command.__name__}",
        QueueAsk[command],  # type: ignore[valid-type]
        reply,
        is_repeatable=lambda ask: ask.command.is_repeatable,
    )
    for command, reply in _REPLIES.items()
}
_BEGIN: Call[BeginQueue, None] = Call("queue.begin", BeginQueue, None, is_repeatable=True)
_SEEK: Call[SeekQueue, int] = Call("queue.seek", SeekQueue, int, is_repeatable=False)


class QueueCalls:
    """See the module's docstring. Every method raises RequestError.

    leaders: calls to the leaders of partitions. partitions: the queues that this broker leads.
    """

    def __init__(
        self,
        services: Services,
        *,
        leaders: LeaderCalls,
        topics: Topics,
        table: PartitionTable,
        subscriptions: Subscriptions,
        partitions: QueuePartitions,
    ) -> None:
        self._tasks = services.tasks
        self.leaders = leaders
        self._topics = topics
        self._table = table
        self.subscriptions = subscriptions
        self.partitions = partitions
        self._clock = services.clock
        for call in _COMMANDS.values():
            leaders.handlers.register(call, self._ask_here)
        leaders.handlers.register(_BEGIN, self._begin_here)
        leaders.handlers.register(_SEEK, self._seek_here)

    async def ask(self, caller: Caller, place: QueuePlace, command: QueueCommand[Reply]) -> Reply:
        """Return the reply of a partition's queue."""
        return await answered(partial(self.submit, caller, place, command))

    def submit(
        self,
        caller: Caller,
        place: QueuePlace,
        command: QueueCommand[Reply],
        reply: Callable[[Reply | RequestError], None],
    ) -> None:
        """Submit a command to a partition's queue. Only the queues of other brokers need a task."""
        queue = self.own(place)
        if queue is None:
            return self._tasks.answer(self._ask_leader(caller, place, command), reply)

        def replied(answer: Reply | RequestError) -> None:
            if isinstance(answer, NotLeader):  # The partition has moved: ask its new leader.
                self._tasks.answer(self._ask_leader(caller, place, command), reply)
            else:
                reply(answer)

        queue.submit(command, replied)

    async def _ask_leader(self, caller: Caller, place: QueuePlace, command: QueueCommand[Reply]) -> Reply:
        call = _COMMANDS[type(command)]
        return cast("Reply", await self.leaders.ask(caller, call, place.topic, place.number, QueueAsk(place, command)))

    async def begin(self, caller: Caller, subscription: Subscription, number: int) -> None:
        """Begin a new subscription in one partition, unless it has begun there."""
        request = BeginQueue(place_of(subscription, number), subscription.name, subscription.id)
        await self.leaders.ask(caller, _BEGIN, subscription.topic, number, request)

    async def seek(self, caller: Caller, subscription: Subscription, number: int, to: StartPosition | int) -> int:
        """Move a subscription in one partition, to a position or an offset. Returns the number of settled messages."""
        position, offset = (None, to) if isinstance(to, int) else (to, None)
        request = SeekQueue(place_of(subscription, number), subscription.name, subscription.id, position, offset)
        return await self.leaders.ask(caller, _SEEK, subscription.topic, number, request)

    def own(self, place: QueuePlace) -> QueuePartition | None:
        """Return the queue if it runs on this broker."""
        queue = self.partitions.find(TopicPartition(place.topic, place.number))
        return queue if queue is not None and queue.topic_id == place.topic_id else None

    async def here(self, place: QueuePlace) -> QueuePartition:
        """Return a queue that runs on this broker, loaded first if necessary. Raises RequestError: also NOT_LEADER."""
        self._check_topic(place)
        queue = self.own(place)
        if queue is not None:
            return queue
        self._table.find(place.topic, place.number).leading()
        await self.partitions.load_topic(place.topic)
        self._check_topic(place)
        queue = self.own(place)
        if queue is None:
            self._table.find(place.topic, place.number).leading()
            raise RequestError(ErrorKind.COORDINATOR_NOT_AVAILABLE, f"{place.topic}-{place.number} is being closed")
        return queue

    async def begun(self, place: QueuePlace, subscription: UUID) -> QueuePartition:
        """As `here`; the subscription has begun there, if it exists."""
        queue = await self.here(place)
        if queue.machine.queue(subscription) is None:
            await self.partitions.begin_subscriptions(queue)
        return queue

    async def _ask_here(self, caller: Caller, request: QueueAsk[Any]) -> Any:
        command = request.command
        if isinstance(command, SubscriptionCommand):
            return await (await self.begun(request.place, command.subscription)).ask(command)
        return await (await self.here(request.place)).ask(command)

    async def _begin_here(self, caller: Caller, request: BeginQueue) -> None:
        queue = await self.here(request.place)
        subscription = self.subscriptions.identified(request.subscription, request.subscription_id)
        await self.partitions.begin_subscription(queue, subscription)

    async def _seek_here(self, caller: Caller, request: SeekQueue) -> int:
        queue = await self.here(request.place)
        subscription = self.subscriptions.identified(request.subscription, request.subscription_id)
        await self.partitions.notify(queue, subscription)
        if request.position is not None:
            return await self.partitions.seek(queue, subscription, request.position)
        offset = request.offset or 0
        await self._check_offset(queue, offset)
        return await queue.ask(SeekSubscription(subscription=subscription.id, offset=offset))

    async def _check_offset(self, queue: QueuePartition, offset: int) -> None:
        messages = queue.messages
        await wait_for_commits([messages], self._clock)
        if not messages.log.log_start_offset <= offset <= messages.term.high_watermark:
            raise RequestError(
                ErrorKind.OFFSET_OUT_OF_RANGE,
                f"partition {queue.number} has offsets {messages.log.log_start_offset} to"
                f" {messages.term.high_watermark}, not {offset}",
            )

    def _check_topic(self, place: QueuePlace) -> None:
        if self._topics.existing(place.topic).topic_id != place.topic_id:
            raise RequestError(ErrorKind.UNKNOWN_TOPIC, f"topic '{place.topic}' was deleted")
