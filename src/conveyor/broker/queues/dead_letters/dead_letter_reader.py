"""The dead letters of a subscription. The subscription's state lists them; their copies in the dead-letter topic hold
their content.
"""

from collections.abc import AsyncIterator, Sequence

from conveyor.broker.answers import all_answered
from conveyor.broker.fetch.message_browser import MessageBrowser
from conveyor.broker.metadata.subscriptions import Subscriptions
from conveyor.broker.queues.dead_letters.dead_letter_copies import CopiesTopic, DeadLetter, DeadLetterCopies
from conveyor.broker.queues.dead_letters.dead_queue import AT_ONCE, DeadQueue
from conveyor.broker.queues.dead_letters.letter_filter import LetterFilter
from conveyor.broker.remote.leader_calls import LeaderCalls
from conveyor.broker.services import Services
from conveyor.cluster.topic_decisions import existing_topic
from conveyor.kernel.access.caller import Caller
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.queues.subscription.policy import Subscription
from conveyor.records.message import is_message_id, parse_message_id


class DeadLetterReader:
    """See the module's docstring. Every method raises RequestError."""

    def __init__(
        self,
        services: Services,
        subscriptions: Subscriptions,
        leaders: LeaderCalls,
        browser: MessageBrowser,
    ) -> None:
        self._metadata = services.metadata
        self._subscriptions = subscriptions
        self._leaders = leaders
        self._browser = browser
        self._slices = services.slices

    async def copies(self, caller: Caller, subscription: Subscription) -> DeadLetterCopies:
        """Return the copies in the subscription's current dead-letter topic."""
        queues = self._queues(caller, subscription)
        topic = self._metadata.image.topics.get(self._subscriptions.current(subscription).policy.dead_letter_topic)
        ends = {} if topic is None else await self._browser.end_offsets(caller, topic.name)
        return DeadLetterCopies(caller, subscription, queues, CopiesTopic(topic, ends), self._browser, self._slices)

    async def count(self, caller: Caller, subscription: Subscription) -> int:
        """Return the number of dead letters that were neither redriven nor dropped."""
        queues = self._queues(caller, subscription)
        pages = await all_answered([queue.page() for queue in queues])
        self.check(subscription)
        return sum(page.count for page in pages)

    def _queues(self, caller: Caller, subscription: Subscription) -> list[DeadQueue]:
        """Return the dead letters in each partition, in order. Fails if the subscription was deleted."""
        self.check(subscription)
        partitions = existing_topic(self._metadata.image, subscription.topic).partitions
        return [DeadQueue(self._leaders, caller, subscription, number) for number in range(len(partitions))]

    def check(self, subscription: Subscription) -> None:
        """Raise RequestError if the subscription or its topic was deleted, even if another one has its name now."""
        self._subscriptions.current(subscription)
        if existing_topic(self._metadata.image, subscription.topic).topic_id != subscription.topic_id:
            raise RequestError(ErrorKind.UNKNOWN_TOPIC, f"topic '{subscription.topic}' was deleted")

    def filter(self, expression: str) -> LetterFilter:
        """Return the filter of one request."""
        return LetterFilter(expression, self._slices)

    async def matching(
        self, caller: Caller, subscription: Subscription, expression: str, message_ids: Sequence[str] | None
    ) -> AsyncIterator[DeadLetter]:
        """Yield the dead letters whose copies match a filter. message_ids: of their originals; None for all."""
        wanted, copies = self.filter(expression), await self.copies(caller, subscription)
        async for letter in copies.all() if message_ids is None else copies.of(_offsets_by_partition(message_ids)):
            if await wanted.matches(letter):
                yield letter

    async def portions(
        self, caller: Caller, subscription: Subscription, message_ids: Sequence[str] | None, at_once: int = AT_ONCE
    ) -> AsyncIterator[tuple[int, Sequence[int]]]:
        """Yield the partition and the offsets of dead letters in portions: of all, or of those among `message_ids`.

        Of all, messages at or beyond the partition's present end are left out, so that the portions end. An earlier
        message that becomes a dead letter meanwhile is included unless its place has been passed.
        """
        queues = self._queues(caller, subscription)
        if message_ids is not None:
            wanted = _offsets_by_partition(message_ids)
            for queue in queues:
                offsets = wanted.get(queue.number, ())
                for first in range(0, len(offsets), at_once):
                    if dead := await queue.find(offsets[first : first + at_once]):
                        yield queue.number, dead
            return
        before = await all_answered([queue.page() for queue in queues])
        for queue, (count, end) in zip(queues, ((page.count, page.end) for page in before), strict=True):
            start = 0
            while count and (dead := [offset for offset in (await queue.page(start, at_once)).offsets if offset < end]):
                yield queue.number, dead
                start = dead[-1] + 1


def _offsets_by_partition(message_ids: Sequence[str]) -> dict[int, list[int]]:
    """Return the offsets that ids of messages name, ascending, by partition; malformed ids are left out."""
    offsets: dict[int, list[int]] = {}
    places = {parse_message_id(message_id) for message_id in message_ids if is_message_id(message_id)}
    for number, offset in sorted(places):
        offsets.setdefault(number, []).append(offset)
    return offsets
