"""The dead letters of a subscription. The subscription's state lists them; their copies in the dead-letter topic hold
their content.
"""

from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from itertools import islice

from conveyor.broker.answers import all_answered
from conveyor.broker.coordinators.queue_partitions import QueuePartitions
from conveyor.broker.fetch.message_browser import MessageBrowser
from conveyor.broker.metadata.subscriptions import Subscriptions
from conveyor.broker.queues.dead_letters.dead_letter_copies import DeadLetter, DeadLetterCopies, Place
from conveyor.broker.queues.dead_letters.dead_queue import (
    DEAD,
    DeadHere,
    DeadQueue,
    DeadState,
    dead_queue,
    from_state,
    to_state,
)
from conveyor.broker.queues.dead_letters.letter_filter import LetterFilter
from conveyor.broker.queues.queue_calls import QueueCalls, place_of
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
        partitions: QueuePartitions,
        calls: QueueCalls,
        leaders: LeaderCalls,
        browser: MessageBrowser,
    ) -> None:
        self._metadata = services.metadata
        self._subscriptions = subscriptions
        self._partitions = partitions
        self._calls = calls
        self._leaders = leaders
        self._browser = browser
        self._slices = services.slices
        leaders.handlers.register(DEAD, self._dead_here)

    async def copies(self, caller: Caller, subscription: Subscription) -> DeadLetterCopies:
        """Return the copies in the subscription's current dead-letter topic."""
        partitions = await self.load(caller, subscription)
        topic = self._metadata.image.topics.get(self._subscriptions.current(subscription).policy.dead_letter_topic)
        ends = {} if topic is None else await self._browser.end_offsets(caller, topic.name)
        return DeadLetterCopies(caller, subscription, partitions, topic, ends, self._browser)

    async def count(self, caller: Caller, subscription: Subscription) -> int:
        """Return the number of dead letters that were neither redriven nor dropped."""
        return sum(partition.dead.count for partition in await self.load(caller, subscription))

    async def load(self, caller: Caller, subscription: Subscription) -> list[DeadQueue]:
        """Return the dead letters in each partition, in order. Fails if the subscription was deleted."""
        self.check(subscription)
        await self._partitions.load_topic(subscription.topic)
        self.check(subscription)
        numbers = range(len(existing_topic(self._metadata.image, subscription.topic).partitions))
        queues = await all_answered([self._load_one(caller, subscription, number) for number in numbers])
        self.check(subscription)
        return queues

    async def _load_one(self, caller: Caller, subscription: Subscription, number: int) -> DeadQueue:
        place = place_of(subscription, number)
        queue = self._calls.own(place)
        if queue is not None:
            return dead_queue(subscription, queue)
        request = DeadHere(place, subscription.name, subscription.id)
        return from_state(number, await self._leaders.ask(caller, DEAD, subscription.topic, number, request))

    async def _dead_here(self, caller: Caller, request: DeadHere) -> DeadState:
        subscription = self._subscriptions.identified(request.subscription, request.subscription_id)
        return to_state(dead_queue(subscription, await self._calls.here(request.place)))

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
        async for letter in copies.all() if message_ids is None else copies.of(_places(message_ids)):
            if await wanted.matches(letter):
                yield letter

    async def portions(
        self, caller: Caller, subscription: Subscription, message_ids: Sequence[str] | None, at_once: int
    ) -> AsyncIterator[tuple[int, tuple[int, ...]]]:
        """Yield the partition and the offsets of dead letters in portions: of all, or of those among `message_ids`.

        Dead letters that are added while the portions are consumed are left out.
        """
        wanted = None if message_ids is None else _by_partition(_places(message_ids))
        for partition in await self.load(caller, subscription):
            if wanted is None or partition.number in wanted:
                offsets = None if wanted is None else wanted[partition.number]
                for portion in _portions(partition, offsets, at_once):
                    yield partition.number, portion
                await self._slices.turn()


def _portions(partition: DeadQueue, wanted: Sequence[int] | None, at_once: int) -> Iterator[tuple[int, ...]]:
    start = 0
    while True:
        dead = partition.dead
        if wanted is None:
            offsets = dead.members(start, partition.end)
        else:
            offsets = (offset for offset in wanted if offset >= start and offset in dead)
        portion = tuple(islice(offsets, at_once))
        if not portion:
            return
        yield portion
        start = portion[-1] + 1


def _places(message_ids: Sequence[str]) -> set[Place]:
    """Return the places that the ids identify; malformed ids are left out."""
    return {parse_message_id(message_id) for message_id in message_ids if is_message_id(message_id)}


def _by_partition(places: Collection[Place]) -> dict[int, list[int]]:
    """Return the offsets in each partition, ascending."""
    offsets: dict[int, list[int]] = {}
    for number, offset in sorted(places):
        offsets.setdefault(number, []).append(offset)
    return offsets
