"""Topics as queues: subscriptions, leases, and what becomes of leased messages. Any door's codec over one machine.

A lease is asked of the partition whose first message is the most urgent; whoever finds nothing waits, and is told when
there is something. Names of subscriptions are unique in the broker.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple
from uuid import UUID

from conveyor.broker.hosts.inboxes import Inboxes
from conveyor.broker.hosts.queue_loading import QueueLoader
from conveyor.broker.hosts.queue_partition import QueuePartition
from conveyor.broker.hosts.queue_partitions import QueuePartitions
from conveyor.broker.metadata.subscriptions import Subscriptions
from conveyor.broker.partitions.own_writes import wait_for_commits
from conveyor.broker.queues.leases import LeaseRequests
from conveyor.broker.queues.message_targets import find_target, numbered, parse_place
from conveyor.broker.queues.queue_calls import ask
from conveyor.broker.queues.queue_rates import QueueRates
from conveyor.broker.tasks import Tasks
from conveyor.broker.topics.topics import Topics
from conveyor.cluster.image import QUEUE_STATE, TopicImage, companion_of
from conveyor.kernel.errors import ErrorKind, RequestError, StorageFailure
from conveyor.kernel.ports import Clock
from conveyor.queues.delivery.inspection import MAX_PEEKED_BYTES, Peeked, count_messages, message_state, peek
from conveyor.queues.queue_commands import (
    Acknowledge,
    Cancel,
    Extend,
    ForgetSubscription,
    MessageState,
    PutSubscription,
    QueueCounts,
    QueueProbe,
    Reject,
    Retry,
    Seek,
    Settled,
    Target,
)
from conveyor.queues.subscription.filters import Filter
from conveyor.queues.subscription.policy import Start, Subscription, default_policy
from conveyor.records.message import Message, is_waiting_id, parse_waiting_id
from conveyor.replication.partition import Partition

log = logging.getLogger(__name__)

MAX_TARGETS = 10_000


class Lease(NamedTuple):
    """One message, handed out for a time."""

    ack_id: str
    message: Message
    delivery_count: int
    expires_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionStats:
    """How a subscription stands: messages by where they are, and what has happened since the broker started.

    depth: could be leased now. delayed: not due yet, or waiting for their next delivery. unsettled: all that is not
    done. acked, retried: counts. ack_rate, retry_rate: per second, over the last minute.
    """

    depth: int
    in_flight: int
    delayed: int
    dead: int
    unsettled: int
    oldest_age_ms: int | None
    acked: int
    retried: int
    ack_rate: float
    retry_rate: float
    filter_errors: int


class Queues:
    """See the module's docstring. Everything raises RequestError."""

    def __init__(
        self,
        *,
        topics: Topics,
        subscriptions: Subscriptions,
        partitions: QueuePartitions,
        inboxes: Inboxes,
        requests: LeaseRequests,
        clock: Clock,
        tasks: Tasks,
    ) -> None:
        self._topics = topics
        self._subscriptions = subscriptions
        self._partitions = partitions
        self._inboxes = inboxes
        self._requests = requests
        self._clock = clock
        self._rates = QueueRates(clock, partitions.probe)
        self._loader = QueueLoader(
            topics=topics, subscriptions=subscriptions, partitions=partitions, clock=clock, tasks=tasks, load=self._load
        )
        topics.when_grown(self._topic_grown)
        topics.when_deleted(self._topic_deleted)

    async def start(self) -> None:
        """Load what has subscriptions, while requests are served already."""
        await self._subscriptions.load()
        for each in self.all():
            self._rates.follow(each.id)
        for topic in self._subscriptions.topics():
            self._loader.begin(topic)

    def stop(self) -> None:
        """Answer everybody who waits."""
        self._loader.stop()
        self._requests.stop()
        self._rates.stop()
        self._partitions.stop()

    def unloaded(self) -> dict[str, str]:
        """The topics that have subscriptions and not all of their queues, and why."""
        return self._loader.unloaded()

    def faults(self) -> dict[str, str]:
        """The subscriptions that are not served, though their topic's queues are loaded, and why."""
        found = {each.name: self._fault(each) for each in self.all()}
        return {name: fault for name, fault in found.items() if fault is not None}

    def partition_replaced(self, partition: Partition) -> None:
        """A partition is served again, as another one: make its queue anew, if it is one or has the state of one."""
        name = partition.identity.topic
        topic = companion_of(QUEUE_STATE, name) or name
        self._loader.begin(topic)

    def existing(self, name: str) -> Subscription:
        return self._subscriptions.existing(name)

    def all(self, topic: str | None = None) -> list[Subscription]:
        """The subscriptions of a topic, or all, by name."""
        return self._subscriptions.all(topic)

    async def create(self, topic: str, name: str, start: Start, document: Mapping[str, object]) -> Subscription:
        """Make a subscription: every message from its start on is its own when this returns."""
        _check_filter(document)
        partitions = await self._partitions.load(self._topics.existing(topic).name)
        default = default_policy(topic, partitions[0].messages.log.topic.queue_max_in_flight)
        subscription = await self._subscriptions.create(topic, name, start, document, default)
        self._rates.follow(subscription.id)
        try:
            partitions = await self._partitions.load(topic)  # The last of the others may have been deleted meanwhile.
            await self._tell(partitions, subscription)
            await self._gather([self._begin(subscription, each, start) for each in partitions])
        except RequestError as error:
            await self._subscriptions.delete(subscription)  # It was promised no message: it can be made anew.
            self._forget(subscription, error)
            for each in self._partitions.of(subscription.topic_id):
                each.submit(ForgetSubscription(subscription=subscription.id), lambda _: None)
            raise
        return subscription

    async def change(self, name: str, document: Mapping[str, object]) -> Subscription:
        """Change fields of its policy: at once, also for messages that wait."""
        _check_filter(document)
        before = self.existing(name)
        partitions = await self._ready(before)
        changed = await self._subscriptions.change(name, document)
        await self._tell(partitions, changed)
        return changed

    async def delete(self, name: str) -> None:
        """Forget a subscription and what it has settled; the messages stay."""
        gone = self.existing(name)
        await self._subscriptions.delete(gone)
        self._forget(gone, RequestError(ErrorKind.UNKNOWN_SUBSCRIPTION, f"subscription '{name}' was deleted"))
        try:
            await self._tell(self._partitions.of(gone.topic_id), gone)
        except RequestError as error:  # The queues that were not reached forget it when they are loaded.
            log.warning("queues not told of a deletion subscription=%s reason=%s", name, error)
        if not self._subscriptions.has_any(gone.topic_id):
            self._partitions.unload(gone.topic_id)

    async def lease(self, name: str, max_messages: int, wait_ms: int, visibility_ms: int | None) -> list[Lease]:
        """Up to so many messages; the answer is empty if none has come in time. Cancelling it leaves nothing leased."""
        subscription = self.existing(name)
        self._check_served(subscription, await self._ready(subscription))
        if visibility_ms is None:
            visibility_ms = subscription.policy.visibility_timeout_ms
        leased = await self._requests.lease(subscription, max_messages, wait_ms, visibility_ms)
        return [Lease(ack_id, each.message, each.delivery_count, each.ends_ms) for ack_id, each in leased]

    def give_back(self, name: str, leases: Sequence[Lease]) -> None:
        """These leases reached nobody: as if they had never been given."""
        subscription = self.existing(name)
        count = len(self._partitions.of(subscription.topic_id))
        found = [find_target(subscription, each.ack_id, count) for each in leases]
        self._requests.give_back(subscription, [each for each in found if not isinstance(each, RequestError)])

    async def ack(self, name: str, targets: Sequence[str]) -> list[RequestError | None]:
        """These are done: never delivered again, once this returns."""
        subscription = self.existing(name)
        return await self._settle(
            subscription, targets, lambda mine: Acknowledge(subscription=subscription.id, targets=mine)
        )

    async def nack(self, name: str, targets: Sequence[str], delay_ms: int | None) -> list[RequestError | None]:
        """These failed. delay_ms: until they are delivered again; None for the subscription's backoff."""
        subscription = self.existing(name)
        return await self._settle(
            subscription, targets, lambda mine: Retry(subscription=subscription.id, targets=mine, delay_ms=delay_ms)
        )

    async def extend(self, name: str, targets: Sequence[str], visibility_ms: int) -> list[RequestError | None]:
        """The leases of these end so long from now."""
        subscription = self.existing(name)
        return await self._settle(
            subscription,
            targets,
            lambda mine: Extend(subscription=subscription.id, targets=mine, visibility_ms=visibility_ms),
        )

    async def reject(self, name: str, targets: Sequence[str], reason: str) -> list[RequestError | None]:
        """These go to the dead-letter topic at once."""
        subscription = self.existing(name)
        return await self._settle(
            subscription, targets, lambda mine: Reject(subscription=subscription.id, targets=mine, reason=reason)
        )

    async def seek(self, name: str, to: Start | Mapping[int, int]) -> None:
        """Go to a place, or to an offset in some partitions: what is before counts as settled, what is after as new."""
        subscription = self.existing(name)
        partitions = await self._ready(subscription)
        if isinstance(to, Start):
            await self._gather([self._begin(subscription, each, to) for each in partitions])
            return
        for number, offset in to.items():
            if not 0 <= number < len(partitions):
                raise RequestError(ErrorKind.INVALID_REQUEST, f"topic '{subscription.topic}' has no partition {number}")
            messages = partitions[number].messages
            await wait_for_commits([messages], self._clock)
            if not messages.log.log_start_offset <= offset <= messages.high_watermark:
                raise RequestError(
                    ErrorKind.OFFSET_OUT_OF_RANGE,
                    f"partition {number} has offsets {messages.log.log_start_offset} to {messages.high_watermark},"
                    f" not {offset}",
                )
        await self._gather(
            [ask(partitions[number], Seek(subscription=subscription.id, offset=at)) for number, at in to.items()]
        )

    async def purge(self, name: str) -> int:
        """Count everything there is as settled. Returns how many messages that were."""
        subscription = self.existing(name)
        partitions = await self._ready(subscription)
        return sum(await self._gather([self._begin(subscription, each, Start(kind="latest")) for each in partitions]))

    async def pause(self, name: str) -> Subscription:
        """Hand nothing out until `resume`."""
        return await self.change(name, {"paused": True})

    async def resume(self, name: str) -> Subscription:
        return await self.change(name, {"paused": False})

    async def peek(self, name: str, max_messages: int) -> list[Peeked]:
        """Messages that are not settled, without a lease: the first of each partition, by offset; fewer if large."""
        subscription = self.existing(name)
        found: list[Peeked] = []
        left_bytes = MAX_PEEKED_BYTES
        for each in await self._committed(subscription):
            queue = each.machine.queue(subscription.id)
            if queue is not None and len(found) < max_messages and left_bytes > 0:
                end, now_ms = each.messages.high_watermark, self._clock.now_ms()
                with _reading(each):
                    peeked = peek(queue, each.source, end, max_messages - len(found), now_ms, left_bytes)
                left_bytes -= sum(one.message.weight_bytes for one in peeked)
                found += peeked
        return found

    async def stats(self, name: str) -> SubscriptionStats:
        """How a subscription stands."""
        subscription = self.existing(name)
        counts = self._count(subscription, await self._committed(subscription))
        probe, now_ms = self._partitions.probe(subscription.id), self._clock.now_ms()
        ack_rate, retry_rate = self._rates.measure(subscription.id)
        return SubscriptionStats(
            depth=counts.available,
            in_flight=counts.in_flight,
            delayed=counts.withheld,
            dead=counts.dead,
            unsettled=counts.unsettled,
            oldest_age_ms=None if counts.oldest_ms is None else max(0, now_ms - counts.oldest_ms),
            acked=probe.acknowledged,
            retried=probe.retried + probe.expired,
            ack_rate=ack_rate,
            retry_rate=retry_rate,
            filter_errors=probe.filter_errors,
        )

    def measures(self) -> list[tuple[Subscription, QueueCounts, QueueProbe]]:
        """Of every subscription whose partitions are loaded: how it stands, and what has happened."""
        return [
            (each, self._count(each, self._partitions.of(each.topic_id)), self._partitions.probe(each.id))
            for each in self.all()
        ]

    async def message_states(self, topic: str, message_id: str) -> dict[str, MessageState]:
        """What each subscription of a topic has done with a message."""
        self._topics.existing(topic)
        if is_waiting_id(message_id):
            return {each.name: MessageState("delayed") for each in self.all(topic)}
        number, offset = parse_place(message_id)
        states: dict[str, MessageState] = {}
        for subscription in self.all(topic):
            partition = numbered(await self._ready(subscription), number, topic)
            with _reading(partition):
                message = partition.source.get(offset) if offset < partition.messages.high_watermark else None
            if message is None:
                raise RequestError(ErrorKind.UNKNOWN_MESSAGE, f"topic '{topic}' has no message '{message_id}'")
            queue = partition.machine.queue(subscription.id)
            if queue is not None:
                states[subscription.name] = message_state(queue, message, self._clock.now_ms())
                if offset in partition.machine.cancelled:
                    states[subscription.name] = MessageState("cancelled")
        return states

    async def cancel(self, topic: str, message_id: str) -> None:
        """Let nobody see a delayed message, who takes it as from a queue; nobody at all, where it waits in an inbox."""
        if is_waiting_id(message_id):
            self._topics.existing(topic)
            return await self._inboxes.cancel(topic, *parse_waiting_id(message_id))
        number, offset = parse_place(message_id)
        partition = numbered(await self._partitions.load(topic), number, topic)
        await ask(partition, Cancel(offset=offset))

    def _count(self, subscription: Subscription, partitions: Sequence[QueuePartition]) -> QueueCounts:
        """Over all partitions."""
        counts = [_counts(each, subscription.id) for each in partitions]
        return QueueCounts(
            unsettled=sum(each.unsettled for each in counts),
            available=sum(each.available for each in counts),
            in_flight=sum(each.in_flight for each in counts),
            withheld=sum(each.withheld for each in counts),
            dead=sum(each.dead for each in counts),
            oldest_ms=min((each.oldest_ms for each in counts if each.oldest_ms is not None), default=None),
        )

    async def _ready(self, subscription: Subscription) -> list[QueuePartition]:
        """The partitions of its topic, in each of which it has begun."""
        partitions = self._partitions.of(subscription.topic_id)
        if len(partitions) != len(self._topics.existing(subscription.topic).partitions):
            partitions = await self._partitions.load(subscription.topic)
            self._subscriptions.current(subscription)
        if all(each.machine.queue(subscription.id) is not None for each in partitions):
            return partitions
        await self._tell(partitions, subscription)
        for each in partitions:
            if each.machine.queue(subscription.id) is None:
                is_older = each.number < subscription.partition_count
                await self._begin(subscription, each, subscription.start if is_older else Start(kind="earliest"))
        return partitions

    async def _committed(self, subscription: Subscription) -> list[QueuePartition]:
        """The partitions of its topic, in each of which all that was acknowledged before this call is committed."""
        partitions = await self._ready(subscription)
        await wait_for_commits([each.messages for each in partitions], self._clock)
        return partitions

    async def _begin(self, subscription: Subscription, partition: QueuePartition, start: Start) -> int:
        await wait_for_commits([partition.messages], self._clock)
        end = int(partition.messages.high_watermark)
        if start.kind == "earliest":
            offset = int(partition.messages.log.log_start_offset)
        elif start.kind == "latest":
            offset = end
        else:
            with _reading(partition):
                offset = partition.source.first_offset_after(start.timestamp_ms, end)
        settled = await ask(partition, Seek(subscription=subscription.id, offset=offset))
        assert isinstance(settled, int)
        return settled

    async def _tell(self, partitions: Sequence[QueuePartition], subscription: Subscription) -> None:
        """Let the machines know what has become of a subscription: it is new, changed, or deleted."""
        await self._gather([self._tell_one(each, subscription) for each in partitions])

    async def _tell_one(self, partition: QueuePartition, subscription: Subscription) -> None:
        """What holds when the machine is asked counts, as the subscription may be deleted at any time."""
        if self._subscriptions.exists(subscription):
            await ask(partition, PutSubscription(subscription=self._subscriptions.current(subscription)))
        else:
            await ask(partition, ForgetSubscription(subscription=subscription.id))

    async def _settle(
        self,
        subscription: Subscription,
        targets: Sequence[str],
        command: Callable[[tuple[Target, ...]], Acknowledge | Retry | Extend | Reject],
    ) -> list[RequestError | None]:
        if len(targets) > MAX_TARGETS:
            raise RequestError(ErrorKind.INVALID_REQUEST, f"{len(targets)} messages at once: at most {MAX_TARGETS}")
        partitions = await self._ready(subscription)
        results: list[RequestError | None] = [None] * len(targets)
        by_partition: dict[int, list[tuple[int, Target]]] = {}
        for place, text in enumerate(targets):
            found = find_target(subscription, text, len(partitions))
            if isinstance(found, RequestError):
                results[place] = found
            else:
                by_partition.setdefault(found[0], []).append((place, found[1]))
        asked = [
            ask(partitions[number], command(tuple(target for _, target in mine)))
            for number, mine in by_partition.items()
        ]
        for mine, settled in zip(by_partition.values(), await self._gather(asked), strict=True):
            outcome: Settled = settled
            for (place, _), error in zip(mine, outcome, strict=True):
                results[place] = error
        return results

    def _fault(self, subscription: Subscription) -> str | None:
        queues = [each.machine.queue(subscription.id) for each in self._partitions.of(subscription.topic_id)]
        return next((each.fault for each in queues if each is not None and each.fault is not None), None)

    def _check_served(self, subscription: Subscription, partitions: Sequence[QueuePartition]) -> None:
        """Raises RequestError: who waited for messages would wait in vain."""
        fault = self._fault(subscription)
        if fault is not None:
            raise RequestError(ErrorKind.INVALID_FILTER, fault)
        errors = [error for each in partitions if (error := each.offline_error()) is not None]
        if len(errors) == len(partitions):
            raise errors[0]

    async def _load(self, topic: str) -> None:
        """All queues of a topic, each from the partitions that there are now."""
        await self._partitions.load(topic)
        await self._partitions.refresh(topic)
        for each in self.all(topic):
            await self._ready(each)
            if (fault := self._fault(each)) is not None:
                log.error("subscription not served name=%s reason=%s", each.name, fault)

    async def _topic_grown(self, topic: str) -> None:
        """Load the new partitions: requests that wait learn of messages only in partitions that are loaded."""
        if self.all(topic):
            await self._loader.load_quietly(topic)

    async def _topic_deleted(self, topic: TopicImage) -> None:
        for gone in await self._subscriptions.topic_deleted(topic):
            self._forget(gone, RequestError(ErrorKind.UNKNOWN_TOPIC, f"topic '{topic.name}' was deleted"))
        self._partitions.topic_deleted(topic)

    def _forget(self, gone: Subscription, error: RequestError) -> None:
        """End what serves a subscription that is deleted."""
        self._requests.end(gone, error)
        self._rates.forget(gone.id)
        self._partitions.forget(gone.id)

    async def _gather(self, asked: Sequence[Coroutine[Any, Any, Any]]) -> list[Any]:
        """One after the other would wait for the disk each time."""
        if len(asked) == 1:
            return [await asked[0]]
        return await asyncio.gather(*asked)


@contextmanager
def _reading(partition: QueuePartition) -> Iterator[None]:
    """A partition that cannot be read goes offline, and says so. Raises RequestError."""
    try:
        yield
    except StorageFailure as failure:
        raise partition.messages.failed_read(failure) from failure


def _counts(partition: QueuePartition, subscription: UUID) -> QueueCounts:
    queue = partition.machine.queue(subscription)
    if queue is None:
        return QueueCounts()
    return count_messages(queue, partition.source, partition.messages.high_watermark)


def _check_filter(document: Mapping[str, object]) -> None:
    expression = document.get("filter")
    if isinstance(expression, str) and expression:
        Filter(expression)
