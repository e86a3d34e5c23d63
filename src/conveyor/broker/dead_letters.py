"""Dead letters: what they are, delivered again, or given up. The subscription's own state says which still count.

A dead letter lies in its dead-letter topic as a copy that says where it came from. Redriving delivers the original
again, to its subscription alone; where the original is gone from its log, the copy is published for that one alone.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass

from conveyor.broker.messages import Messages, OutgoingMessage
from conveyor.broker.queue_calls import ask
from conveyor.broker.queue_partition import QueuePartition
from conveyor.broker.queue_partitions import QueuePartitions
from conveyor.broker.subscriptions import Subscriptions
from conveyor.broker.topics import Topics
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.ports import Clock
from conveyor.queues import attributes
from conveyor.queues.attributes import last_header
from conveyor.queues.commands import DropDeadLetters, Redeliver
from conveyor.queues.filters import Filter, FilterFailure
from conveyor.queues.inspection import MAX_PEEKED_BYTES
from conveyor.queues.message import Message, format_message_id, parse_message_id
from conveyor.queues.policy import Subscription

_READ_AT_ONCE = 500
_AT_ONCE = 500
_PORTION_SECONDS = 0.1
"""With a rate, so much of a second is redriven at once."""

Progress = Callable[[int, int], None]
"""Told how many dead letters are done, of how many."""


@dataclass(frozen=True, slots=True)
class DeadLetterTopic:
    """A topic that takes dead letters: how many of them still count, and of which subscriptions."""

    topic: str
    depth: int
    subscriptions: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A copy in a dead-letter topic, and what its headers say. Times in ms since the epoch."""

    message: Message
    reason: str
    deliveries: int
    first_failure_ms: int
    last_failure_ms: int
    origin_topic: str
    origin_partition: int
    origin_offset: int
    subscription: str

    @property
    def origin_id(self) -> str:
        """The message_id of the original."""
        return format_message_id(self.origin_partition, self.origin_offset)


class DeadLetters:
    """See the module's docstring. Everything raises RequestError."""

    def __init__(
        self,
        *,
        topics: Topics,
        subscriptions: Subscriptions,
        partitions: QueuePartitions,
        messages: Messages,
        clock: Clock,
    ) -> None:
        self._topics = topics
        self._subscriptions = subscriptions
        self._partitions = partitions
        self._messages = messages
        self._clock = clock

    async def all(self) -> list[DeadLetterTopic]:
        """Every topic that some subscription sends its dead letters to."""
        depths: dict[str, int] = {}
        names: dict[str, tuple[str, ...]] = {}
        for each in self._subscriptions.all():
            topic = each.policy.dead_letter_topic
            names[topic] = (*names.get(topic, ()), each.name)
            depths[topic] = depths.get(topic, 0) + await self.count(each.name)
        return [DeadLetterTopic(topic, depths[topic], names[topic]) for topic in sorted(names)]

    async def count(self, name: str) -> int:
        """How many dead letters a subscription has."""
        subscription = self._subscriptions.existing(name)
        queues = [each.machine.queue(subscription.id) for each in await self._partitions.load(subscription.topic)]
        return sum(each.progress.dead.count for each in queues if each is not None)

    async def peek(
        self,
        name: str,
        limit: int,
        filter: str | None = None,  # noqa: A002
        after: str | None = None,
    ) -> list[DeadLetter]:
        """The oldest dead letters of a subscription, fewer if they are large.

        filter: in CEL, over the copies. after: the last one seen.
        """
        found = []
        left_bytes = MAX_PEEKED_BYTES
        async for letter in self._letters(self._subscriptions.existing(name), filter, None, after):
            found.append(letter)
            left_bytes -= len(letter.message.value or b"")
            if len(found) == limit or left_bytes <= 0:
                break
        return found

    async def redrive(
        self,
        name: str,
        filter: str | None = None,  # noqa: A002
        message_ids: Sequence[str] | None = None,
        rate: float | None = None,
        progress: Progress | None = None,
    ) -> int:
        """Deliver dead letters again: all, those that match, or those that are named by the id of the original.

        rate: at most so many a second. Returns how many.
        """
        subscription = self._subscriptions.existing(name)
        total, done = await self.count(name), 0
        portion = _AT_ONCE if rate is None else max(1, min(_AT_ONCE, int(rate * _PORTION_SECONDS)))
        started_ms = self._clock.now_ms()
        async for redriven in self._redriven(subscription, filter, message_ids, portion):
            done += redriven
            if progress is not None:
                progress(done, total)
            if rate is not None:
                await self._sleep_until(started_ms + int(1000 * done / rate))
        return done

    async def drop(
        self,
        name: str,
        filter: str | None = None,  # noqa: A002
        message_ids: Sequence[str] | None = None,
    ) -> int:
        """Give dead letters up: they count no more. Their copies stay in the dead-letter topic, as it keeps them."""
        subscription = self._subscriptions.existing(name)
        partitions = await self._partitions.load(subscription.topic)
        dropped: dict[int, list[int]] = {}
        if filter is None:
            for partition in partitions:
                dropped[partition.number] = _dead_offsets(subscription, partition, message_ids)
        else:
            async for letter in self._letters(subscription, filter, message_ids):
                dropped.setdefault(letter.origin_partition, []).append(letter.origin_offset)
        for number, offsets in dropped.items():
            await ask(partitions[number], DropDeadLetters(subscription=subscription.id, offsets=tuple(offsets)))
        return sum(map(len, dropped.values()))

    async def _redriven(
        self,
        subscription: Subscription,
        expression: str | None,
        message_ids: Sequence[str] | None,
        at_once: int,
    ) -> AsyncIterator[int]:
        """Redrives a portion at each step, and tells how many it was; last those whose copies are gone."""
        async for letters in _portions(self._letters(subscription, expression, message_ids), at_once):
            await self._redrive(subscription, letters)
            yield len(letters)
        for partition in await self._partitions.load(subscription.topic) if expression is None else ():
            offsets = _dead_offsets(subscription, partition, message_ids)
            for place in range(0, len(offsets), at_once):
                mine = tuple(offsets[place : place + at_once])
                gone = await ask(partition, Redeliver(subscription=subscription.id, offsets=mine))
                yield len(mine) - len(gone)

    async def _redrive(self, subscription: Subscription, letters: Sequence[DeadLetter]) -> None:
        partitions = await self._partitions.load(subscription.topic)
        by_partition: dict[int, dict[int, DeadLetter]] = {}
        for letter in letters:
            by_partition.setdefault(letter.origin_partition, {})[letter.origin_offset] = letter
        for number, mine in by_partition.items():
            gone = await ask(partitions[number], Redeliver(subscription=subscription.id, offsets=tuple(mine)))
            await self._republish(subscription, partitions[number], [mine[offset] for offset in gone])

    async def _republish(
        self, subscription: Subscription, partition: QueuePartition, letters: Sequence[DeadLetter]
    ) -> None:
        """Publish letters whose originals are gone from their log, for this subscription alone."""
        if not letters:
            return
        copies = [_republished(subscription, each) for each in letters]
        for result in await self._messages.publish(subscription.topic, copies):
            if isinstance(result, RequestError):
                raise result
        offsets = tuple(each.origin_offset for each in letters)
        await ask(partition, DropDeadLetters(subscription=subscription.id, offsets=offsets))

    async def _letters(
        self,
        subscription: Subscription,
        expression: str | None,
        message_ids: Sequence[str] | None,
        after: str | None = None,
    ) -> AsyncIterator[DeadLetter]:
        """Those that still count, each once, oldest first in each partition of the dead-letter topic."""
        wanted = None if expression is None else Filter(expression)
        named = None if message_ids is None else set(message_ids)
        partitions = await self._partitions.load(subscription.topic)
        topic = self._topics.image.topics.get(subscription.policy.dead_letter_topic)
        seen: set[tuple[int, int]] = set()
        first, last_seen = (0, -1) if after is None else _parsed(after)
        for number in range(first, 0 if topic is None else len(topic.partitions)):
            start = last_seen + 1 if number == first else 0
            async for message in self._messages.read_all(
                subscription.policy.dead_letter_topic, number, _READ_AT_ONCE, start
            ):
                letter = read_dead_letter(message)
                if (
                    letter is None
                    or letter.subscription != subscription.name
                    or letter.origin_topic != subscription.topic
                ):
                    continue
                place = (letter.origin_partition, letter.origin_offset)
                if place in seen or not _counts(subscription, partitions, letter):
                    continue
                if named is not None and letter.origin_id not in named:
                    continue
                if wanted is None or _matches(wanted, message):
                    seen.add(place)
                    yield letter
                if named is not None:
                    named.discard(letter.origin_id)
                    if not named:
                        return

    async def _sleep_until(self, time_ms: int) -> None:
        if time_ms <= self._clock.now_ms():
            return
        over = asyncio.get_running_loop().create_future()
        cancel = self._clock.call_at(time_ms, lambda: None if over.done() else over.set_result(None))
        try:
            await over
        finally:
            cancel()


async def _portions(letters: AsyncIterator[DeadLetter], size: int) -> AsyncIterator[list[DeadLetter]]:
    portion: list[DeadLetter] = []
    async for letter in letters:
        portion.append(letter)
        if len(portion) == size:
            yield portion
            portion = []
    if portion:
        yield portion


def _republished(subscription: Subscription, letter: DeadLetter) -> OutgoingMessage:
    names = {attributes.ONLY_FOR, *attributes.DEAD_HEADERS}
    kept = tuple(each for each in letter.message.headers if each[0] not in names)
    addressee = (attributes.ONLY_FOR, subscription.name.encode())
    return OutgoingMessage(value=letter.message.value, key=letter.message.key, headers=(*kept, addressee))


def read_dead_letter(message: Message) -> DeadLetter | None:
    """What a message says of itself, if it is a dead letter."""
    try:
        return DeadLetter(
            message=message,
            reason=_text(message, attributes.DEAD_REASON),
            deliveries=int(_text(message, attributes.DEAD_DELIVERIES)),
            first_failure_ms=int(_text(message, attributes.DEAD_FIRST_FAILURE_MS)),
            last_failure_ms=int(_text(message, attributes.DEAD_LAST_FAILURE_MS)),
            origin_topic=_text(message, attributes.DEAD_TOPIC),
            origin_partition=int(_text(message, attributes.DEAD_PARTITION)),
            origin_offset=int(_text(message, attributes.DEAD_OFFSET)),
            subscription=_text(message, attributes.DEAD_SUBSCRIPTION),
        )
    except ValueError:
        return None


def _parsed(message_id: str) -> tuple[int, int]:
    try:
        return parse_message_id(message_id)
    except ValueError as error:
        raise RequestError(ErrorKind.INVALID_REQUEST, str(error)) from error


def _text(message: Message, name: str) -> str:
    """Raises ValueError if there is no such header."""
    value = last_header(message.headers, name)
    if value is None:
        raise ValueError(name)
    return value.decode()


def _counts(subscription: Subscription, partitions: Sequence[QueuePartition], letter: DeadLetter) -> bool:
    if not 0 <= letter.origin_partition < len(partitions):
        return False
    queue = partitions[letter.origin_partition].machine.queue(subscription.id)
    return queue is not None and letter.origin_offset in queue.progress.dead


def _dead_offsets(
    subscription: Subscription, partition: QueuePartition, message_ids: Sequence[str] | None
) -> list[int]:
    """The dead letters of a partition, whatever became of their copies: all, or those that are named."""
    queue = partition.machine.queue(subscription.id)
    ranges = () if queue is None else queue.progress.dead
    named = None if message_ids is None else set(message_ids)
    return [
        offset
        for start, end in ranges
        for offset in range(start, end)
        if named is None or format_message_id(partition.number, offset) in named
    ]


def _matches(wanted: Filter, message: Message) -> bool:
    try:
        return wanted.matches(message)
    except FilterFailure as failure:
        raise RequestError(
            ErrorKind.INVALID_FILTER, f"the filter fails on dead letter '{message.message_id}': {failure}"
        ) from failure
