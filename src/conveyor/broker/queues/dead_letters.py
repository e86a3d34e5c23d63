"""Dead letters: looked at, delivered again, or given up. The subscription's own state says which still count.

A dead letter lies in its dead-letter topic as a copy that says where it came from; it is named by the id of the
original, as several subscriptions may share that topic. Redriving delivers the original again, to its subscription
alone; where the original is gone from its log, the copy is published for that one alone. All costs what it is asked
for, and not what has ever died: copies are read only where they lie, and only where they are needed.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from conveyor.broker.hosts.queue_partition import QueuePartition
from conveyor.broker.hosts.queue_partitions import QueuePartitions
from conveyor.broker.metadata.subscriptions import Subscriptions
from conveyor.broker.produce.message_publisher import Messages, OutgoingMessage
from conveyor.broker.queues.dead_letter_copies import DeadLetter, DeadLetterCopies, Place
from conveyor.broker.queues.queue_calls import ask
from conveyor.broker.topics.topics import Topics
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.ports import Clock
from conveyor.kernel.range_set import RangeSet
from conveyor.queues.delivery.inspection import MAX_PEEKED_BYTES
from conveyor.queues.queue_commands import DropDeadLetters, Redeliver
from conveyor.queues.subscription.filters import Filter, FilterFailure
from conveyor.queues.subscription.policy import Subscription
from conveyor.records import message_attributes as attributes
from conveyor.records.message import is_message_id, parse_message_id

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
            depth = await self._count(each)
            names[topic] = (*names.get(topic, ()), each.name)
            depths[topic] = depths.get(topic, 0) + depth
        return [DeadLetterTopic(topic, depths[topic], names[topic]) for topic in sorted(names)]

    async def count(self, name: str) -> int:
        """How many dead letters a subscription has."""
        return await self._count(self._subscriptions.existing(name))

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
        subscription = self._subscriptions.existing(name)
        dead = await self._count(subscription)
        wanted = None if filter is None else Filter(filter)
        found: list[DeadLetter] = []
        copied_count, left_bytes = 0, MAX_PEEKED_BYTES
        copies = await self._copies(subscription)
        async for letter in copies.all() if after is None else copies.all(_parsed(after)):
            copied_count += 1
            if not _matches(wanted, letter):
                continue
            found.append(letter)
            left_bytes -= letter.message.weight_bytes
            if len(found) == limit or left_bytes <= 0:
                return PeekedLetters(found, None)
        dead = min(dead, await self._count(subscription))  # Letters may have come and gone meanwhile.
        return PeekedLetters(found, None if after is not None else max(0, dead - copied_count))

    async def unknown(self, name: str, message_ids: Sequence[str]) -> list[str]:
        """Those of some ids, each once, that name no dead letter of a subscription."""
        subscription = self._subscriptions.existing(name)
        partitions = await self._load(subscription)
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
        dropped = 0
        if filter is not None:
            async for letters in _portions(self._matching(subscription, filter, message_ids), _AT_ONCE):
                for partition, mine in await self._by_partition(subscription, letters):
                    await ask(partition, DropDeadLetters(subscription=subscription.id, offsets=tuple(mine)))
                dropped += len(letters)
            return dropped
        for partition in await self._load(subscription):
            for offsets in _dead_portions(subscription, partition, message_ids, _AT_ONCE):
                await ask(partition, DropDeadLetters(subscription=subscription.id, offsets=offsets))
                dropped += len(offsets)
        return dropped

    async def _redriven(
        self,
        subscription: Subscription,
        expression: str | None,
        message_ids: Sequence[str] | None,
        at_once: int,
    ) -> AsyncIterator[int]:
        """Redrives a portion at each step, and says how many letters that were."""
        if expression is not None:
            async for letters in _portions(self._matching(subscription, expression, message_ids), at_once):
                await self._redrive(subscription, letters)
                yield len(letters)
            return
        for partition in await self._load(subscription):
            for offsets in _dead_portions(subscription, partition, message_ids, at_once):
                gone = await ask(partition, Redeliver(subscription=subscription.id, offsets=offsets))
                yield len(offsets) - len(gone) + await self._redeliver_copies(subscription, partition, gone)

    async def _redrive(self, subscription: Subscription, letters: Sequence[DeadLetter]) -> None:
        for partition, mine in await self._by_partition(subscription, letters):
            gone = await ask(partition, Redeliver(subscription=subscription.id, offsets=tuple(mine)))
            await self._republish(subscription, partition, [mine[offset] for offset in gone])

    async def _redeliver_copies(
        self, subscription: Subscription, partition: QueuePartition, offsets: Sequence[int]
    ) -> int:
        """Deliver the copies of dead letters whose originals are gone. Returns of how many there are copies."""
        if not offsets:
            return 0
        copies = await self._copies(subscription)
        letters = [letter async for letter in copies.of({(partition.number, offset) for offset in offsets})]
        await self._republish(subscription, partition, letters)
        return len(letters)

    async def _republish(
        self, subscription: Subscription, partition: QueuePartition, letters: Sequence[DeadLetter]
    ) -> None:
        """Publish letters whose originals are gone from their log, for this subscription alone."""
        if not letters:
            return
        self._check(subscription)  # Nothing is awaited before `publish` looks for the topic, and may make it.
        copies = [_republished(subscription, each) for each in letters]
        for result in await self._messages.publish(subscription.topic, copies):
            if isinstance(result, RequestError):
                raise result
        offsets = tuple(each.message.offset for each in letters)
        await ask(partition, DropDeadLetters(subscription=subscription.id, offsets=offsets))

    async def _matching(
        self, subscription: Subscription, expression: str, message_ids: Sequence[str] | None
    ) -> AsyncIterator[DeadLetter]:
        """Those whose copies match, of all or of those that are named."""
        wanted, copies = Filter(expression), await self._copies(subscription)
        async for letter in copies.all() if message_ids is None else copies.of(_places(message_ids)):
            if _matches(wanted, letter):
                yield letter

    async def _by_partition(
        self, subscription: Subscription, letters: Sequence[DeadLetter]
    ) -> list[tuple[QueuePartition, dict[int, DeadLetter]]]:
        """Letters by the partition and the offset of their originals."""
        partitions = await self._load(subscription)
        found: dict[int, dict[int, DeadLetter]] = {}
        for letter in letters:
            found.setdefault(letter.message.partition, {})[letter.message.offset] = letter
        return [(partitions[number], mine) for number, mine in found.items()]

    async def _copies(self, subscription: Subscription) -> DeadLetterCopies:
        partitions = await self._load(subscription)
        topic = self._topics.image.topics.get(self._subscriptions.current(subscription).policy.dead_letter_topic)
        return DeadLetterCopies(subscription, partitions, topic, self._messages)

    async def _count(self, subscription: Subscription) -> int:
        queues = [each.machine.queue(subscription.id) for each in await self._load(subscription)]
        return sum(each.progress.dead.count for each in queues if each is not None)

    async def _load(self, subscription: Subscription) -> list[QueuePartition]:
        """The partitions of a subscription's topic, as long as there is the subscription."""
        self._check(subscription)
        partitions = await self._partitions.load(subscription.topic)
        self._check(subscription)
        return partitions

    def _check(self, subscription: Subscription) -> None:
        """Raises RequestError if a subscription is deleted, or its topic, though others may have their names."""
        self._subscriptions.current(subscription)
        if self._topics.existing(subscription.topic).topic_id != subscription.topic_id:
            raise RequestError(ErrorKind.UNKNOWN_TOPIC, f"topic '{subscription.topic}' was deleted")

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


def _parsed(message_id: str) -> tuple[int, int]:
    try:
        return parse_message_id(message_id)
    except ValueError as error:
        raise RequestError(ErrorKind.INVALID_REQUEST, str(error)) from error


def _places(message_ids: Sequence[str]) -> set[Place]:
    """What is no id of a message names no place."""
    return {parse_message_id(each) for each in message_ids if is_message_id(each)}


def _dead(subscription: Subscription, partition: QueuePartition) -> RangeSet:
    queue = partition.machine.queue(subscription.id)
    return RangeSet() if queue is None else queue.progress.dead


def _is_dead(subscription: Subscription, partitions: Sequence[QueuePartition], place: Place) -> bool:
    number, offset = place
    return 0 <= number < len(partitions) and offset in _dead(subscription, partitions[number])


def _dead_portions(
    subscription: Subscription, partition: QueuePartition, message_ids: Sequence[str] | None, at_once: int
) -> Iterator[tuple[int, ...]]:
    """The dead letters of a partition, with or without copies: all that it has now, or those that are named."""
    end = int(partition.messages.high_watermark)
    named = None if message_ids is None else _named(partition, message_ids)
    start = 0
    while True:
        dead = _dead(subscription, partition)
        meant = (
            dead.members(start, end) if named is None else (each for each in named if each >= start and each in dead)
        )
        portion = tuple(islice(meant, at_once))
        if not portion:
            return
        yield portion
        start = portion[-1] + 1


def _named(partition: QueuePartition, message_ids: Sequence[str]) -> list[int]:
    return sorted(offset for number, offset in _places(message_ids) if number == partition.number)


def _matches(wanted: Filter | None, letter: DeadLetter) -> bool:
    try:
        return wanted is None or wanted.matches(letter.message)
    except FilterFailure as failure:
        raise RequestError(
            ErrorKind.INVALID_FILTER, f"the filter fails on dead letter '{letter.message.message_id}': {failure}"
        ) from failure
