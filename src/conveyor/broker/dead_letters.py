"""Dead letters: what they are, delivered again, or given up. The subscription's own state says which still count.

A dead letter lies in its dead-letter topic as a copy that says where it came from; it is named by the id of the
original, as several subscriptions may share that topic. Redriving delivers the original again, to its subscription
alone; where the original is gone from its log, the copy is published for that one alone.
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
from conveyor.queues.message import Message, is_message_id, parse_message_id
from conveyor.queues.policy import Subscription
from conveyor.queues.range_set import RangeSet

_READ_AT_ONCE = 500
_AT_ONCE = 500
_PORTION_SECONDS = 0.1
"""With a rate, so much of a second is redriven at once."""

Place = tuple[int, int]
"""The partition and the offset of an original."""

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
    """What a copy in a dead-letter topic says. Times in ms since the epoch.

    message: as the copy has it, but at the place of the original. copy_id: the id of the copy in the dead-letter topic.
    """

    message: Message
    copy_id: str
    reason: str
    deliveries: int
    first_failure_ms: int
    last_failure_ms: int
    subscription: str

    @property
    def place(self) -> Place:
        """Where the original lies, or lay."""
        return self.message.partition, self.message.offset


@dataclass(frozen=True, slots=True)
class PeekedLetters:
    """Dead letters that were looked at.

    without_copy: how many there are besides that no copy shows, as the dead-letter topic was deleted, or another took
    its place; None if not all copies were looked at.
    """

    letters: list[DeadLetter]
    without_copy: int | None


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
    ) -> PeekedLetters:
        """The oldest dead letters of a subscription, fewer if they are large.

        filter: in CEL, over the copies. after: the `copy_id` of the last one seen.
        """
        subscription, dead = self._subscriptions.existing(name), await self.count(name)
        wanted = None if filter is None else Filter(filter)
        found: dict[Place, DeadLetter] = {}
        copied: set[Place] = set()
        left_bytes = MAX_PEEKED_BYTES
        async for letter in self._copies(subscription, after):
            copied.add(letter.place)
            if letter.place in found or not _matches(wanted, letter):
                continue
            found[letter.place] = letter
            left_bytes -= len(letter.message.value or b"")
            if len(found) == limit or left_bytes <= 0:
                return PeekedLetters(list(found.values()), None)
        dead = min(dead, await self.count(name))  # Letters may have come and gone meanwhile.
        return PeekedLetters(list(found.values()), None if after is not None else max(0, dead - len(copied)))

    async def unknown(self, name: str, message_ids: Sequence[str]) -> list[str]:
        """Those of some ids, each once, that name no dead letter of a subscription."""
        subscription = self._subscriptions.existing(name)
        partitions = await self._partitions.load(subscription.topic)
        return [
            each
            for each in dict.fromkeys(message_ids)
            if not (is_message_id(each) and _is_dead(subscription, partitions, parse_message_id(each)))
        ]

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
        started_ms = self._clock.steady_ms()
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
                dropped.setdefault(letter.message.partition, []).append(letter.message.offset)
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
            by_partition.setdefault(letter.message.partition, {})[letter.message.offset] = letter
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
        offsets = tuple(each.message.offset for each in letters)
        await ask(partition, DropDeadLetters(subscription=subscription.id, offsets=offsets))

    async def _letters(
        self, subscription: Subscription, expression: str | None, message_ids: Sequence[str] | None
    ) -> AsyncIterator[DeadLetter]:
        """Those that are meant and have a copy, each once."""
        wanted = None if expression is None else Filter(expression)
        named = None if message_ids is None else _places(message_ids)
        seen: set[Place] = set()
        async for letter in self._copies(subscription):
            if letter.place in seen or (named is not None and letter.place not in named):
                continue
            if _matches(wanted, letter):
                seen.add(letter.place)
                yield letter
            if named is not None:
                named.discard(letter.place)
                if not named:
                    return

    async def _copies(self, subscription: Subscription, after: str | None = None) -> AsyncIterator[DeadLetter]:
        """Copies of those that still count, oldest first in each partition of the dead-letter topic.

        One that died again after a redrive has a copy of each time.
        """
        partitions = await self._partitions.load(subscription.topic)
        topic = self._topics.image.topics.get(subscription.policy.dead_letter_topic)
        first, last_seen = (0, -1) if after is None else _parsed(after)
        for number in range(first, 0 if topic is None else len(topic.partitions)):
            start = last_seen + 1 if number == first else 0
            async for message in self._messages.read_all(
                subscription.policy.dead_letter_topic, number, _READ_AT_ONCE, start
            ):
                letter = read_dead_letter(message)
                if (
                    letter is not None
                    and letter.subscription == subscription.name
                    and letter.message.topic == subscription.topic
                    and _is_dead(subscription, partitions, letter.place)
                ):
                    yield letter

    async def _sleep_until(self, time_ms: int) -> None:
        left_ms = time_ms - self._clock.steady_ms()
        if left_ms <= 0:
            return
        over = asyncio.get_running_loop().create_future()
        cancel = self._clock.call_later(left_ms, lambda: None if over.done() else over.set_result(None))
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
        origin = message._replace(
            topic=_text(message, attributes.DEAD_TOPIC),
            partition=int(_text(message, attributes.DEAD_PARTITION)),
            offset=int(_text(message, attributes.DEAD_OFFSET)),
        )
        return DeadLetter(
            message=origin,
            copy_id=message.message_id,
            reason=_text(message, attributes.DEAD_REASON),
            deliveries=int(_text(message, attributes.DEAD_DELIVERIES)),
            first_failure_ms=int(_text(message, attributes.DEAD_FIRST_FAILURE_MS)),
            last_failure_ms=int(_text(message, attributes.DEAD_LAST_FAILURE_MS)),
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


def _places(message_ids: Sequence[str]) -> set[Place]:
    """What is no id of a message names no place."""
    return {parse_message_id(each) for each in message_ids if is_message_id(each)}


def _dead(subscription: Subscription, partition: QueuePartition) -> RangeSet:
    queue = partition.machine.queue(subscription.id)
    return RangeSet() if queue is None else queue.progress.dead


def _is_dead(subscription: Subscription, partitions: Sequence[QueuePartition], place: Place) -> bool:
    number, offset = place
    return 0 <= number < len(partitions) and offset in _dead(subscription, partitions[number])


def _dead_offsets(
    subscription: Subscription, partition: QueuePartition, message_ids: Sequence[str] | None
) -> list[int]:
    """The dead letters of a partition, whatever became of their copies: all, or those that are named."""
    dead = _dead(subscription, partition)
    if message_ids is None:
        return [offset for start, end in dead for offset in range(start, end)]
    named = sorted(_places(message_ids))
    return [offset for number, offset in named if number == partition.number and offset in dead]


def _matches(wanted: Filter | None, letter: DeadLetter) -> bool:
    try:
        return wanted is None or wanted.matches(letter.message)
    except FilterFailure as failure:
        raise RequestError(
            ErrorKind.INVALID_FILTER, f"the filter fails on dead letter '{letter.message.message_id}': {failure}"
        ) from failure
