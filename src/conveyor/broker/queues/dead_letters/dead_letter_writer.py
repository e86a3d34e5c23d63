"""Moves undeliverable messages to their dead-letter topics: a message is settled only once its copy is durable.

If the copy cannot be written, the message stays unsettled and the move is retried. After a crash between copying
and settling, the message is copied again: a dead letter may have two copies but is never lost. Moves end when the
subscription is deleted.

However many messages are undeliverable, few are in memory: one partition at a time moves about a megabyte to a
dead-letter topic, and so do a few topics at a time. A topic that refuses does not delay the others.
"""

import asyncio
import logging
from collections.abc import Mapping
from functools import partial
from uuid import UUID
from weakref import WeakValueDictionary

from conveyor.broker.answers import answered, pause
from conveyor.broker.coordinators.queue_partition import QueuePartition
from conveyor.broker.coordinators.queue_partitions import QueuePartitions
from conveyor.broker.metadata.subscriptions import Subscriptions
from conveyor.broker.produce.message_publisher import MessagePublisher
from conveyor.broker.produce.outgoing_message import OutgoingMessage
from conveyor.broker.services import Services
from conveyor.broker.topics.topics import Topics
from conveyor.cluster.image import TopicImage
from conveyor.cluster.topic_creation import TopicRequest
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.queues.delivery.dead_lettering import DeadLettering
from conveyor.queues.messages.dead_copies import Copy, CopyLog
from conveyor.queues.queue_commands import MoveToDeadLetters
from conveyor.queues.subscription.policy import Subscription
from conveyor.queues.subscription.queue_records import Attempt
from conveyor.records import message_attributes
from conveyor.records.compression import MAX_UNPACKED_BYTES
from conveyor.records.message import Message
from conveyor.records.record import Header

log = logging.getLogger(__name__)

_AT_ONCE = 100
_AT_ONCE_BYTES = 1 << 20
"""A move has these messages, and no more of them than that, unless the last one is larger."""
_TOPICS_AT_ONCE = 16
_FIRST_WAIT_MS = 100
_LONGEST_WAIT_MS = 30_000
_CONFIG = {"retention.ms": "-1", "max.message.bytes": str(2 * MAX_UNPACKED_BYTES)}
"""The configuration of dead-letter topics created here: no retention limit, messages of any size, no delay."""
_MIN_INSYNC = "min.insync.replicas"
_NOT_COPIED = (
    message_attributes.DELAY_MS,
    message_attributes.DELIVER_AT_MS,
    message_attributes.TTL_MS,
    message_attributes.DEDUP_ID,
    message_attributes.ONLY_FOR,
)


class DeadLetterWriter:
    def __init__(
        self,
        services: Services,
        topics: Topics,
        subscriptions: Subscriptions,
        partitions: QueuePartitions,
        publisher: MessagePublisher,
    ) -> None:
        self._topics = topics
        self._subscriptions = subscriptions
        self._publisher = publisher
        self._own_caller = services.own_caller
        self._clock = services.clock
        self._tasks = services.tasks
        self._running: set[tuple[UUID, QueuePartition]] = set()
        self._lanes: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """For the moves to one dead-letter topic, by its name."""
        self._room = asyncio.Semaphore(_TOPICS_AT_ONCE)
        partitions.changed.listen(self._changed)

    def _changed(self, partition: QueuePartition) -> None:
        """Begin to move a partition's undeliverable messages, unless a move is running."""
        for queue in partition.machine.agenda.dead_lettering():
            subscription = queue.subscription
            place = (subscription.id, partition)
            if place not in self._running and self._subscriptions.exists(subscription):
                self._running.add(place)
                self._tasks.start(self._move_all(subscription, partition))

    def _dead_lettering(self, subscription: Subscription, partition: QueuePartition) -> DeadLettering | None:
        """Return the undeliverable messages, if there are any and this queue still serves the subscription: another one
        may have taken the name of either.
        """
        queue = partition.machine.queue(subscription.id)
        if queue is None or partition.is_stopped or not self._subscriptions.exists(subscription):
            return None
        return queue.deliveries.dead_lettering or None

    async def _move_all(self, subscription: Subscription, partition: QueuePartition) -> None:
        wait_ms = _FIRST_WAIT_MS
        try:
            while self._dead_lettering(subscription, partition) is not None:
                try:
                    await self._move(subscription, partition)
                    wait_ms = _FIRST_WAIT_MS
                    continue
                except RequestError as error:  # Its traceback refers to the messages: it must not last.
                    log.warning(
                        "dead letters wait subscription=%s partition=%s topic=%s: %s",
                        subscription.name, partition.messages.identity, subscription.policy.dead_letter_topic,
                        error.detached(),
                    )  # fmt: skip
                await pause(self._clock, wait_ms)
                wait_ms = min(2 * wait_ms, _LONGEST_WAIT_MS)
        finally:
            self._running.discard((subscription.id, partition))

    async def _move(self, subscription: Subscription, partition: QueuePartition) -> None:
        """Move the first messages, if there are any still. Raises RequestError if one could not be read or copied.

        The state has committed by then that they are undeliverable: otherwise the next leader may deliver them.
        """
        dead_lettering = self._dead_lettering(subscription, partition)
        if dead_lettering is None:
            return
        first = dead_lettering.first(_AT_ONCE)
        state = partition.partition
        await answered(partial(state.leading().when_committed, state.log.log_end_offset))
        async with self._lanes.setdefault(subscription.policy.dead_letter_topic, asyncio.Lock()), self._room:
            waiting: Mapping[int, Attempt] = self._dead_lettering(subscription, partition) or {}
            left = {offset: attempt for offset, attempt in first if offset in waiting}
            if not left:
                return
            read = await _read(subscription, partition, left)
            letters = {offset: letter for offset, letter in read.items() if letter is not None}
            copies, errors = await self._copy(subscription, partition.number, letters)
            moved = tuple(offset for offset in read if offset not in errors)
            del read, letters
        await partition.ask(MoveToDeadLetters(subscription=subscription.id, offsets=moved, copies=copies))
        if errors:
            dead_lettering = self._dead_lettering(subscription, partition)
            if dead_lettering is not None:
                dead_lettering.postpone(errors)
            raise next(iter(errors.values()))

    async def _copy(
        self, subscription: Subscription, origin: int, letters: Mapping[int, OutgoingMessage]
    ) -> tuple[dict[int, Copy], dict[int, RequestError]]:
        """Publish the dead letters of a partition. Returns the places of the copies, and the errors of the others."""
        if not letters:
            return {}, {}
        name = self._subscriptions.current(subscription).policy.dead_letter_topic
        topic = await self._topics.ensure(
            self._own_caller, _topic_request(name, self._topics.existing(subscription.topic), origin)
        )
        results = await self._publisher.publish(self._own_caller, name, list(letters.values()))
        self._check(topic)
        errors: dict[int, RequestError] = {}
        copies: dict[int, Copy] = {}
        for offset, result in zip(letters, results, strict=True):
            if isinstance(result, RequestError):
                errors[offset] = result
            else:
                copies[offset] = Copy(CopyLog(topic.topic_id, result.partition), result.offset)
        return copies, errors

    def _check(self, topic: TopicImage) -> None:
        """Raise RequestError if a dead-letter topic was deleted, even if another one has its name now."""
        if self._topics.existing(topic.name).topic_id != topic.topic_id:
            raise RequestError(ErrorKind.UNKNOWN_TOPIC, f"topic '{topic.name}' was deleted")


async def _read(
    subscription: Subscription, partition: QueuePartition, attempts: Mapping[int, Attempt]
) -> dict[int, OutgoingMessage | None]:
    """Return the copies of the messages of one move; None for one that the log has lost. Raises RequestError."""
    letters: dict[int, OutgoingMessage | None] = {}
    left_bytes = _AT_ONCE_BYTES
    for offset, attempt in attempts.items():
        message = await partition.read(partial(partition.source.get, offset))
        letters[offset] = None if message is None else _dead_letter(subscription, message, attempt)
        left_bytes -= 0 if message is None else message.weight_bytes
        if left_bytes <= 0:
            break
    return letters


def _topic_request(name: str, source: TopicImage, number: int) -> TopicRequest:
    """Return the request for a dead-letter topic that keeps its records as safe as the topic of the originals does."""
    own = {setting: value for setting, value in source.config.items() if setting == _MIN_INSYNC}
    factor = source.partitions[number].replication_factor
    return TopicRequest(name=name, replication_factor=factor, config=_CONFIG | own)


def _dead_letter(subscription: Subscription, message: Message, attempt: Attempt) -> OutgoingMessage:
    """Return the copy of a message; its headers state the origin and the reason."""
    origin: list[Header] = [
        (message_attributes.DEAD_REASON, (attempt.dead_letter_reason or "").encode()),
        (message_attributes.DEAD_TOPIC, message.topic.encode()),
        (message_attributes.DEAD_PARTITION, str(message.partition).encode()),
        (message_attributes.DEAD_OFFSET, str(message.offset).encode()),
        (message_attributes.DEAD_SUBSCRIPTION, subscription.name.encode()),
        (message_attributes.DEAD_DELIVERIES, str(attempt.deliveries).encode()),
        (message_attributes.DEAD_FIRST_FAILURE_MS, str(attempt.first_failure_ms).encode()),
        (message_attributes.DEAD_LAST_FAILURE_MS, str(attempt.last_failure_ms).encode()),
    ]
    kept = [header for header in message.headers if header[0] not in _NOT_COPIED]
    return OutgoingMessage(value=message.value, key=message.key, headers=(*kept, *origin))
