"""Redriving and dropping dead letters.

Redriving delivers the original message again, to its subscription alone. If the original is gone from its log, the copy
is published to the topic for that subscription alone.
"""

from collections.abc import AsyncIterator, Callable, Sequence

from conveyor.broker.answers import pause
from conveyor.broker.metadata.subscriptions import Subscriptions
from conveyor.broker.produce.message_publisher import MessagePublisher
from conveyor.broker.produce.outgoing_message import OutgoingMessage
from conveyor.broker.queues.dead_letters.dead_letter_copies import DeadLetter
from conveyor.broker.queues.dead_letters.dead_letter_reader import DeadLetterReader
from conveyor.broker.queues.dead_letters.dead_queue import AT_ONCE
from conveyor.broker.queues.queue_calls import QueueCalls, place_of
from conveyor.kernel.access.caller import Caller
from conveyor.kernel.errors import RequestError
from conveyor.kernel.ports import Clock
from conveyor.queues.queue_commands import DropDeadLetters, Redeliver
from conveyor.queues.subscription.policy import Subscription
from conveyor.records import message_attributes

_PORTION_SECONDS = 0.1
"""With a rate, dead letters are redriven in portions of this duration."""

Progress = Callable[[int, int], None]
"""Called with the number of dead letters redriven so far, and their total."""


class DeadLetterRedrive:
    """See the module's docstring. Every method raises RequestError."""

    def __init__(
        self,
        *,
        subscriptions: Subscriptions,
        reader: DeadLetterReader,
        calls: QueueCalls,
        publisher: MessagePublisher,
        clock: Clock,
    ) -> None:
        self._subscriptions = subscriptions
        self._reader = reader
        self._calls = calls
        self._publisher = publisher
        self._clock = clock

    async def redrive(
        self,
        caller: Caller,
        name: str,
        filter: str | None = None,  # noqa: A002
        message_ids: Sequence[str] | None = None,
        rate: float | None = None,
        progress: Progress | None = None,
    ) -> int:
        """Deliver dead letters again: all of them, or only those that match a filter and ids of original messages.

        rate: the most per second. Returns how many were redriven.
        """
        subscription = self._subscriptions.existing(name)
        total, done = await self._reader.count(caller, subscription), 0
        portion = AT_ONCE if rate is None else max(1, min(AT_ONCE, int(rate * _PORTION_SECONDS)))
        started_ms = self._clock.steady_ms()
        async for number, offsets in self._selected(caller, subscription, filter, message_ids, portion):
            gone = await self._redeliver(caller, subscription, number, offsets)
            done += len(offsets) - len(gone) + await self._redeliver_copies(caller, subscription, number, gone)
            if progress is not None:
                progress(done, total)
            if rate is not None:
                await self._sleep_until(started_ms + int(1000 * done / rate))
        return done

    async def drop(
        self,
        caller: Caller,
        name: str,
        filter: str | None = None,  # noqa: A002
        message_ids: Sequence[str] | None = None,
    ) -> int:
        """Settle dead letters without delivering them. Their copies stay in the dead-letter topic. Returns how many."""
        subscription = self._subscriptions.existing(name)
        dropped = 0
        async for number, offsets in self._selected(caller, subscription, filter, message_ids, AT_ONCE):
            await self._drop_offsets(caller, subscription, number, offsets)
            dropped += len(offsets)
        return dropped

    async def _selected(
        self,
        caller: Caller,
        subscription: Subscription,
        expression: str | None,
        message_ids: Sequence[str] | None,
        at_once: int,
    ) -> AsyncIterator[tuple[int, Sequence[int]]]:
        """Yield the partition and the offsets of the dead letters to act on, in portions."""
        if expression is None:
            async for portion in self._reader.portions(caller, subscription, message_ids, at_once):
                yield portion
            return
        async for letters in _portions(self._reader.matching(caller, subscription, expression, message_ids), at_once):
            matching_ids = [letter.message.message_id for letter in letters]
            async for portion in self._reader.portions(caller, subscription, matching_ids, at_once):
                yield portion

    async def _redeliver_copies(
        self, caller: Caller, subscription: Subscription, number: int, offsets: Sequence[int]
    ) -> int:
        """Deliver the copies of dead letters whose originals are gone. Returns how many copies were found."""
        if not offsets:
            return 0
        copies = await self._reader.copies(caller, subscription)
        letters = [letter async for letter in copies.of({number: offsets})]
        await self._republish(caller, subscription, number, letters)
        return len(letters)

    async def _republish(
        self, caller: Caller, subscription: Subscription, number: int, letters: Sequence[DeadLetter]
    ) -> None:
        """Publish the copies of dead letters whose originals are gone from their log, for this subscription alone."""
        if not letters:
            return
        self._reader.check(subscription)  # `publish` may create the topic, but looks for it before its first await.
        copies = [_republished(subscription, letter) for letter in letters]
        for result in await self._publisher.publish(caller, subscription.topic, copies, are_copies=True):
            if isinstance(result, RequestError):
                raise result
        offsets = [letter.message.offset for letter in letters]
        await self._drop_offsets(caller, subscription, number, offsets)

    async def _redeliver(
        self, caller: Caller, subscription: Subscription, number: int, offsets: Sequence[int]
    ) -> Sequence[int]:
        """Deliver the originals again. Returns the offsets of those that are gone."""
        gone: list[int] = []
        while offsets:
            command = Redeliver(subscription=subscription.id, offsets=tuple(offsets))
            redelivered = await self._calls.ask(caller, place_of(subscription, number), command)
            gone += redelivered.gone
            offsets = offsets[redelivered.reached_count :]
        return gone

    async def _drop_offsets(
        self, caller: Caller, subscription: Subscription, number: int, offsets: Sequence[int]
    ) -> None:
        command = DropDeadLetters(subscription=subscription.id, offsets=tuple(offsets))
        await self._calls.ask(caller, place_of(subscription, number), command)

    async def _sleep_until(self, time_ms: int) -> None:
        left_ms = time_ms - self._clock.steady_ms()
        if left_ms > 0:
            await pause(self._clock, left_ms)


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
    names = {message_attributes.ONLY_FOR, *message_attributes.DEAD_HEADERS}
    kept = tuple(header for header in letter.message.headers if header[0] not in names)
    addressee = (message_attributes.ONLY_FOR, subscription.name.encode())
    return OutgoingMessage(value=letter.message.value, key=letter.message.key, headers=(*kept, addressee))
