"""The room of dead letters, assembled: they are written and redriven; this face shows them.

A dead letter is a copy in its dead-letter topic that states its origin. Its id is the id of the original message,
because several subscriptions may share a dead-letter topic. Only the copies of current dead letters are read, so the
cost does not depend on the number of past dead letters.
"""

from collections.abc import Iterable, Sequence

import msgspec

from conveyor.broker.fetch.fetch import Fetch
from conveyor.broker.produce.broker_produce import Produce
from conveyor.broker.queues.dead_letters.dead_letter_copies import DeadLetter
from conveyor.broker.queues.dead_letters.dead_letter_reader import DeadLetterReader
from conveyor.broker.queues.dead_letters.dead_letter_redrive import DeadLetterRedrive
from conveyor.broker.queues.dead_letters.dead_letter_writer import DeadLetterWriter
from conveyor.broker.queues.dead_letters.dead_queue_answers import DeadQueueAnswers
from conveyor.broker.queues.queue_calls import QueueCalls
from conveyor.broker.services import Services
from conveyor.broker.topics.topics import Topics
from conveyor.kernel.access.caller import Caller
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.queues.delivery.inspection import MAX_PEEKED_BYTES
from conveyor.queues.subscription.policy import Subscription
from conveyor.records.message import is_message_id, parse_message_id


class DeadLetterTopic(msgspec.Struct, frozen=True):
    """A dead-letter topic. depth: the dead letters not redriven or dropped. subscriptions: those that send to it."""

    topic: str
    depth: int
    subscriptions: tuple[str, ...]


class PeekedLetters(msgspec.Struct, frozen=True):
    """A page of dead letters.

    without_copy: the number of dead letters whose copies are lost, because the dead-letter topic was deleted or
    replaced; None if not all copies were read.
    """

    letters: list[DeadLetter]
    without_copy: int | None


class DeadLetters:
    """See the module's docstring. Every method raises RequestError. redrive: delivers them again, or drops them."""

    def __init__(self, services: Services, topics: Topics, calls: QueueCalls, fetch: Fetch, produce: Produce) -> None:
        self._subscriptions = subscriptions = calls.subscriptions
        self._reader = reader = DeadLetterReader(services, subscriptions, calls.leaders, fetch.browser)
        self.redrive = DeadLetterRedrive(
            subscriptions=subscriptions, reader=reader, calls=calls, publisher=produce.messages, clock=services.clock
        )
        DeadLetterWriter(services, topics, subscriptions, calls.partitions, produce.messages)
        DeadQueueAnswers(services, subscriptions, calls, calls.leaders)

    async def topics(self, caller: Caller, subscriptions: Iterable[Subscription]) -> list[DeadLetterTopic]:
        """Return the topics that receive the dead letters of subscriptions, in so far as they do."""
        depths: dict[str, int] = {}
        names: dict[str, tuple[str, ...]] = {}
        for subscription in subscriptions:
            topic = subscription.policy.dead_letter_topic
            depth = await self._reader.count(caller, subscription)
            names[topic] = (*names.get(topic, ()), subscription.name)
            depths[topic] = depths.get(topic, 0) + depth
        return [DeadLetterTopic(topic, depths[topic], names[topic]) for topic in sorted(names)]

    async def peek(
        self,
        caller: Caller,
        name: str,
        limit: int,
        filter: str | None = None,  # noqa: A002
        after: str | None = None,
    ) -> PeekedLetters:
        """Return the oldest dead letters of a subscription, fewer if they are large.

        filter: a CEL expression over the copies. after: the `copy_id` of the last dead letter of the previous page.
        """
        subscription = self._subscriptions.existing(name)
        dead = await self._reader.count(caller, subscription)
        wanted = None if filter is None else self._reader.filter(filter)
        letters: list[DeadLetter] = []
        copied_count, left_bytes = 0, MAX_PEEKED_BYTES
        copies = await self._reader.copies(caller, subscription)
        async for letter in copies.all() if after is None else copies.all(_parsed(after)):
            copied_count += 1
            if wanted is not None and not await wanted.matches(letter):
                continue
            letters.append(letter)
            left_bytes -= letter.message.weight_bytes
            if len(letters) == limit or left_bytes <= 0:
                return PeekedLetters(letters, None)
        # Dead letters may have been added and removed since.
        dead = min(dead, await self._reader.count(caller, subscription))
        return PeekedLetters(letters, None if after is not None else max(0, dead - copied_count))

    async def unknown(self, caller: Caller, name: str, message_ids: Sequence[str]) -> list[str]:
        """Return the ids, without repetitions, that belong to no dead letter of a subscription."""
        subscription = self._subscriptions.existing(name)
        portions = self._reader.portions(caller, subscription, message_ids)
        dead = {(number, offset) async for number, offsets in portions for offset in offsets}
        return [
            message_id
            for message_id in dict.fromkeys(message_ids)
            if not (is_message_id(message_id) and parse_message_id(message_id) in dead)
        ]


def _parsed(message_id: str) -> tuple[int, int]:
    try:
        return parse_message_id(message_id)
    except ValueError as error:
        raise RequestError(ErrorKind.INVALID_REQUEST, str(error)) from error
