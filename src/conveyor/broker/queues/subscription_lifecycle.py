"""Subscriptions from creation to deletion: policy changes, pauses, seeks and purges in between.

Each change is stored in the metadata first, then passed to the queue of every partition of the topic. Names of
subscriptions are unique across the cluster.
"""

import logging
from collections.abc import Mapping, Sequence

from conveyor.broker.answers import all_answered, ignored
from conveyor.broker.hosts.queue_partition import QueuePartition
from conveyor.broker.hosts.queue_partitions import QueuePartitions
from conveyor.broker.metadata.subscriptions import Subscriptions
from conveyor.broker.partitions.own_writes import wait_for_commits
from conveyor.broker.queues.subscribed_partitions import SubscribedPartitions
from conveyor.broker.topics.topics import Topics
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.ports import Clock
from conveyor.queues.queue_commands import ForgetSubscription, SeekSubscription
from conveyor.queues.subscription.filters import Filter
from conveyor.queues.subscription.policy import StartPosition, Subscription, default_policy

log = logging.getLogger(__name__)


class SubscriptionLifecycle:
    """See the module's docstring. Every method raises RequestError."""

    def __init__(
        self,
        *,
        topics: Topics,
        subscriptions: Subscriptions,
        partitions: QueuePartitions,
        subscribed: SubscribedPartitions,
        clock: Clock,
    ) -> None:
        self._topics = topics
        self._subscriptions = subscriptions
        self._partitions = partitions
        self._subscribed = subscribed
        self._clock = clock

    async def create(self, topic: str, name: str, start: StartPosition, document: Mapping[str, object]) -> Subscription:
        """Create a subscription. Once this returns, it receives every message from its start position on."""
        _check_filter(document)
        partitions = await self._partitions.load(self._topics.existing(topic).name)
        default = default_policy(topic, partitions[0].messages.log.topic.queue_max_in_flight)
        subscription = await self._subscriptions.add(topic, name, start, document, default)
        try:
            partitions = await self._partitions.load(topic)  # Deleting the last other subscription unloads them.
            await self._notify(partitions, subscription)
            await all_answered([partition.begin(subscription.id, start) for partition in partitions])
        except RequestError:
            await self._subscriptions.remove(subscription)  # The caller may retry: no message was promised.
            for partition in self._partitions.of(subscription.topic_id):
                partition.submit(ForgetSubscription(subscription=subscription.id), ignored)
            raise
        return subscription

    async def change(self, name: str, document: Mapping[str, object]) -> Subscription:
        """Change fields of the policy, with immediate effect, also on messages that are already waiting."""
        _check_filter(document)
        partitions = await self._subscribed.ready(self._subscriptions.existing(name))
        changed = await self._subscriptions.change_policy(name, document)
        await self._notify(partitions, changed)
        return changed

    async def pause(self, name: str) -> Subscription:
        """Lease no messages until `resume`."""
        return await self.change(name, {"paused": True})

    async def resume(self, name: str) -> Subscription:
        """Lease messages again."""
        return await self.change(name, {"paused": False})

    async def delete(self, name: str) -> None:
        """Delete a subscription and its settlements. The topic keeps the messages."""
        subscription = self._subscriptions.existing(name)
        await self._subscriptions.remove(subscription)
        try:
            await self._notify(self._partitions.of(subscription.topic_id), subscription)
        except RequestError as error:  # A queue that was not reached forgets the subscription when it is next loaded.
            log.warning("queues not notified of a deletion subscription=%s reason=%s", name, error)
        if not self._subscriptions.has_any(subscription.topic_id):
            self._partitions.unload(subscription.topic)

    async def seek(self, name: str, to: StartPosition | Mapping[int, int]) -> None:
        """Move to a start position, or to an offset in some partitions.

        Messages before the position count as settled, messages from there on as new.
        """
        subscription = self._subscriptions.existing(name)
        partitions = await self._subscribed.ready(subscription)
        if isinstance(to, StartPosition):
            await all_answered([partition.begin(subscription.id, to) for partition in partitions])
            return
        for number, offset in to.items():
            if not 0 <= number < len(partitions):
                raise RequestError(ErrorKind.INVALID_REQUEST, f"topic '{subscription.topic}' has no partition {number}")
            await self._check_offset(partitions[number], offset)
        await all_answered(
            [
                partitions[number].ask(SeekSubscription(subscription=subscription.id, offset=offset))
                for number, offset in to.items()
            ]
        )

    async def purge(self, name: str) -> int:
        """Settle all messages without delivering them. Returns how many were settled."""
        subscription = self._subscriptions.existing(name)
        partitions = await self._subscribed.ready(subscription)
        latest = StartPosition(kind="latest")
        return sum(await all_answered([partition.begin(subscription.id, latest) for partition in partitions]))

    async def _check_offset(self, partition: QueuePartition, offset: int) -> None:
        messages = partition.messages
        await wait_for_commits([messages], self._clock)
        if not messages.log.log_start_offset <= offset <= messages.high_watermark:
            raise RequestError(
                ErrorKind.OFFSET_OUT_OF_RANGE,
                f"partition {partition.number} has offsets {messages.log.log_start_offset} to"
                f" {messages.high_watermark}, not {offset}",
            )

    async def _notify(self, partitions: Sequence[QueuePartition], subscription: Subscription) -> None:
        await all_answered([self._partitions.notify(partition, subscription) for partition in partitions])


def _check_filter(document: Mapping[str, object]) -> None:
    expression = document.get("filter")
    if isinstance(expression, str) and expression:
        Filter(expression)
