"""Moves messages that are given up to their dead-letter topics: copied there, durably, and only then settled.

If the copy cannot be written the message stays where it is, and another attempt follows. A crash between copy and
settling leaves a second copy: a dead letter may come twice, and is never lost. All this ends with the subscription.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from uuid import UUID

from conveyor.broker.hosts.queue_partition import QueuePartition
from conveyor.broker.metadata.subscriptions import Subscriptions
from conveyor.broker.produce.message_publisher import Messages, OutgoingMessage
from conveyor.broker.queues.dead_letter_copies import read_dead_letter
from conveyor.broker.queues.queue_calls import ask
from conveyor.broker.tasks import Tasks
from conveyor.broker.topics.topics import Topics
from conveyor.cluster.image import TopicImage
from conveyor.cluster.topic_creation import TopicRequest
from conveyor.kernel.errors import ErrorKind, RequestError, StorageFailure
from conveyor.kernel.ports import Clock
from conveyor.queues.messages.dead_copies import Copy, CopyLog
from conveyor.queues.queue_commands import MoveToDeadLetters
from conveyor.queues.subscription.policy import Subscription
from conveyor.queues.subscription.queue_records import Attempt
from conveyor.records import message_attributes as attributes
from conveyor.records.compression import MAX_UNPACKED_BYTES
from conveyor.records.message import Message
from conveyor.records.record import Header

log = logging.getLogger(__name__)

_AT_ONCE = 100
_FIRST_WAIT_MS = 100
_LONGEST_WAIT_MS = 30_000
_CONFIG = {"retention.ms": "-1", "max.message.bytes": str(2 * MAX_UNPACKED_BYTES), "delay.enable": "false"}
"""Of a dead-letter topic that is made here: it keeps letters for ever, takes whatever another topic can hold, and has
them at once."""
_NOT_COPIED = (attributes.DELAY_MS, attributes.DELIVER_AT_MS, attributes.TTL_MS, attributes.DEDUP_ID)


class Burials:
    """See the module's docstring."""

    def __init__(
        self, *, topics: Topics, subscriptions: Subscriptions, messages: Messages, clock: Clock, tasks: Tasks
    ) -> None:
        self._topics = topics
        self._subscriptions = subscriptions
        self._messages = messages
        self._clock = clock
        self._tasks = tasks
        self._running: set[tuple[UUID, QueuePartition]] = set()

    def changed(self, partition: QueuePartition) -> None:
        """Begin to move what is on its way to the dead-letter topic, unless that has begun."""
        for subscription in partition.machine.with_doomed():
            place = (subscription.id, partition)
            if place not in self._running and self._subscriptions.exists(subscription):
                self._running.add(place)
                self._tasks.start(self._bury_all(subscription, partition))

    def _goes_on(self, subscription: Subscription, partition: QueuePartition) -> bool:
        """Whether the queue still serves the subscription: another may have taken its place, or its name."""
        return not partition.is_stopped and self._subscriptions.exists(subscription)

    async def _bury_all(self, subscription: Subscription, partition: QueuePartition) -> None:
        wait_ms = _FIRST_WAIT_MS
        try:
            while self._goes_on(subscription, partition) and (
                doomed := partition.machine.doomed(subscription.id, _AT_ONCE)
            ):
                try:
                    await self._bury(subscription, partition, doomed)
                    wait_ms = _FIRST_WAIT_MS
                except (RequestError, StorageFailure) as error:
                    log.warning(
                        "dead letters wait subscription=%s partition=%s topic=%s: %s",
                        subscription.name, partition.messages.identity, subscription.policy.dead_letter_topic, error,
                    )  # fmt: skip
                    await self._pause(wait_ms)
                    wait_ms = min(2 * wait_ms, _LONGEST_WAIT_MS)
        finally:
            self._running.discard((subscription.id, partition))

    async def _bury(
        self, subscription: Subscription, partition: QueuePartition, doomed: Sequence[tuple[int, Attempt]]
    ) -> None:
        """Raises RequestError if some could not be copied, StorageFailure if they could not be read."""
        found = {offset: (partition.source.get(offset), attempt) for offset, attempt in doomed}
        letters = {
            offset: _dead_letter(subscription, message, attempt)
            for offset, (message, attempt) in found.items()
            if message is not None
        }
        copies, errors = await self._copy(subscription, partition.number, letters)
        buried = tuple(offset for offset in found if offset not in errors)
        await ask(partition, MoveToDeadLetters(subscription=subscription.id, offsets=buried, copies=copies))
        if errors:
            partition.machine.postpone(subscription.id, errors)
            raise next(iter(errors.values()))

    async def _copy(
        self, subscription: Subscription, origin: int, letters: Mapping[int, OutgoingMessage]
    ) -> tuple[dict[int, Copy], dict[int, RequestError]]:
        """Publish letters of a partition. Returns where the copies lie, and why the topic has not taken the others."""
        if not letters:
            return {}, {}
        name = self._subscriptions.current(subscription).policy.dead_letter_topic
        topic = await self._topics.ensure(TopicRequest(name=name, config=_CONFIG))
        ends = self._messages.end_offsets(name)
        results = await self._messages.publish(name, list(letters.values()))
        self._check(topic)
        errors: dict[int, RequestError] = {}
        copies: dict[int, Copy] = {}
        waiting: dict[int, set[int]] = {}
        for offset, result in zip(letters, results, strict=True):
            if isinstance(result, RequestError):
                errors[offset] = result
            elif result.offset >= 0:
                copies[offset] = Copy(CopyLog(topic.topic_id, result.partition), result.offset)
            else:
                waiting.setdefault(result.partition, set()).add(offset)
        for number, offsets in waiting.items():
            places = await self._forwarded(subscription, topic, number, ends[number], origin, offsets)
            copies |= {offset: Copy(CopyLog(topic.topic_id, number), place) for offset, place in places.items()}
        return copies, errors

    async def _forwarded(
        self, subscription: Subscription, topic: TopicImage, number: int, start: int, origin: int, offsets: set[int]
    ) -> dict[int, int]:
        """Where the copies of some originals lie that go through an inbox, once they are in the topic.

        Raises RequestError: also UNKNOWN_TOPIC, if the topic was deleted, and its inbox with it.
        """
        found: dict[int, int] = {}
        while True:
            async for message in self._messages.read_all(topic.name, number, _AT_ONCE, start):
                letter = read_dead_letter(message)
                start = message.offset + 1
                if (
                    letter is not None
                    and (letter.subscription, letter.message.topic) == (subscription.name, subscription.topic)
                    and letter.message.partition == origin
                    and letter.message.offset in offsets
                ):
                    found[letter.message.offset] = message.offset
            self._check(topic)
            if len(found) == len(offsets):
                return found
            await self._pause(_FIRST_WAIT_MS)
            self._subscriptions.current(subscription)

    def _check(self, topic: TopicImage) -> None:
        """Raises RequestError if a dead-letter topic was deleted, though another may have its name."""
        if self._topics.existing(topic.name).topic_id != topic.topic_id:
            raise RequestError(ErrorKind.UNKNOWN_TOPIC, f"topic '{topic.name}' was deleted")

    async def _pause(self, wait_ms: int) -> None:
        over = asyncio.get_running_loop().create_future()
        cancel = self._clock.call_later(wait_ms, lambda: None if over.done() else over.set_result(None))
        try:
            await over
        finally:
            cancel()


def _dead_letter(subscription: Subscription, message: Message, attempt: Attempt) -> OutgoingMessage:
    """A copy that says where it comes from and why."""
    origin: list[Header] = [
        (attributes.DEAD_REASON, (attempt.doomed or "").encode()),
        (attributes.DEAD_TOPIC, message.topic.encode()),
        (attributes.DEAD_PARTITION, str(message.partition).encode()),
        (attributes.DEAD_OFFSET, str(message.offset).encode()),
        (attributes.DEAD_SUBSCRIPTION, subscription.name.encode()),
        (attributes.DEAD_DELIVERIES, str(attempt.deliveries).encode()),
        (attributes.DEAD_FIRST_FAILURE_MS, str(attempt.first_failure_ms).encode()),
        (attributes.DEAD_LAST_FAILURE_MS, str(attempt.last_failure_ms).encode()),
    ]
    kept = [each for each in message.headers if each[0] not in _NOT_COPIED]
    return OutgoingMessage(value=message.value, key=message.key, headers=(*kept, *origin))
