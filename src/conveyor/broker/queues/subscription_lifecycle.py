"""Subscriptions from creation to deletion: policy changes, pauses, seeks and purges in between.

Each change is stored in the metadata first, then passed to the queue of every partition of the topic. Names of
subscriptions are unique across the cluster.
"""

import logging
from collections.abc import Mapping, Sequence
from functools import partial

from conveyor.broker.coordinators.queue_partition import QueuePartition
from conveyor.broker.coordinators.queue_partitions import QueuePartitions
from conveyor.broker.metadata.subscriptions import ChangePush, Subscriptions
from conveyor.broker.queues.queue_calls import QueueCalls
from conveyor.broker.queues.subscribed_partitions import SubscribedPartitions
from conveyor.broker.services import Services
from conveyor.broker.topics.topics import Topics
from conveyor.kernel.access.caller import Caller
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.queues.push.push_target import PushTarget
from conveyor.queues.subscription.filters import Filter
from conveyor.queues.subscription.policy import NO_ANNOTATIONS, StartPosition, Subscription, default_policy
from conveyor.settings.tree import topic_settings

log = logging.getLogger(__name__)


class SubscriptionLifecycle:
    """See the module's docstring. Every method raises RequestError."""

    def __init__(
        self,
        services: Services,
        *,
        topics: Topics,
        subscriptions: Subscriptions,
        partitions: QueuePartitions,
        subscribed: SubscribedPartitions,
        calls: QueueCalls,
    ) -> None:
        self._slices = services.slices
        self._topics = topics
        self._subscriptions = subscriptions
        self._partitions = partitions
        self._subscribed = subscribed
        self._calls = calls

    async def create(
        self,
        caller: Caller,
        topic: str,
        name: str,
        start: StartPosition,
        document: Mapping[str, object],
        *,
        annotations: Mapping[str, str] = NO_ANNOTATIONS,
        push: PushTarget | None = None,
    ) -> Subscription:
        """Create a subscription. Once this returns, it receives every message from its start position on: also if it
        exists already on this topic (SUBSCRIPTION_ALREADY_EXISTS). If a partition cannot be reached it stays, because
        others may use it by then; the partition begins it later.
        """
        _check_filter(document)
        image = self._topics.existing(topic)
        self._subscriptions.check_new(image, name)  # Before the topic gets a companion.
        await self._partitions.load_topic(topic)
        settings = topic_settings(self._topics.settings.topics, image.config)
        default = default_policy(topic, settings.queue_max_in_flight)
        try:
            subscription = await self._subscriptions.add(
                topic, name, start, document, default, annotations=annotations, push=push
            )
        except RequestError as error:
            if error.kind is ErrorKind.SUBSCRIPTION_ALREADY_EXISTS:
                existing = self._subscriptions.existing(name)
                if existing.topic == topic:  # Another creation may be in progress.
                    await self._begin(caller, existing)
            raise
        await self._begin(caller, subscription)
        return subscription

    async def change(
        self,
        caller: Caller,
        name: str,
        document: Mapping[str, object],
        *,
        annotations: Mapping[str, str | None] = NO_ANNOTATIONS,
        change_push: ChangePush | None = None,
    ) -> Subscription:
        """Change fields of the policy, annotations (None removes one) and the target of the push, with immediate
        effect, also on messages that are already waiting.

        Other brokers apply the change when they see it in the metadata.
        """
        _check_filter(document)
        subscription = self._subscriptions.existing(name)
        partitions = await self._subscribed.ready(subscription)
        changed = await self._subscriptions.change(
            subscription, document, annotations=annotations, change_push=change_push
        )
        await self._notify(partitions, changed)
        return changed

    async def pause(self, caller: Caller, name: str) -> Subscription:
        """Lease no messages until `resume`."""
        return await self.change(caller, name, {"paused": True})

    async def resume(self, caller: Caller, name: str) -> Subscription:
        """Lease messages again."""
        return await self.change(caller, name, {"paused": False})

    async def delete(self, caller: Caller, name: str) -> None:
        """Delete a subscription and its settlements. The topic keeps the messages."""
        subscription = self._subscriptions.existing(name)
        await self._subscriptions.remove(subscription)
        await self._partitions.forgotten(subscription)

    async def seek(self, caller: Caller, name: str, to: StartPosition | Mapping[int, int]) -> None:
        """Move to a start position, or to an offset in some partitions.

        Messages before the position count as settled, messages from there on as new.
        """
        subscription = self._subscriptions.existing(name)
        await self._subscribed.ready(subscription)
        if isinstance(to, StartPosition):
            await self._seek(caller, subscription, to)
            return
        count = self._subscribed.count(subscription)
        for number in to:
            if not 0 <= number < count:
                raise RequestError(ErrorKind.INVALID_REQUEST, f"topic '{subscription.topic}' has no partition {number}")
        await self._slices.ask_each(lambda place: self._calls.seek(caller, subscription, *place), list(to.items()))

    async def purge(self, caller: Caller, name: str) -> int:
        """Settle all messages without delivering them. Returns how many were settled."""
        subscription = self._subscriptions.existing(name)
        await self._subscribed.ready(subscription)
        return sum(await self._seek(caller, subscription, StartPosition(kind="latest")))

    async def _begin(self, caller: Caller, subscription: Subscription) -> None:
        """Begin a subscription in every partition where it has not begun."""
        numbers = range(self._subscribed.count(subscription))
        try:
            await self._slices.ask_each(partial(self._calls.begin, caller, subscription), numbers)
        except RequestError as error:
            reason = f"subscription '{subscription.name}' exists, and has not begun in all partitions yet: "
            raise RequestError(error.kind, reason + error.message) from error

    async def _seek(self, caller: Caller, subscription: Subscription, to: StartPosition) -> list[int]:
        """Move the subscription in every partition. Returns the numbers of messages that this settles."""
        numbers = range(self._subscribed.count(subscription))
        return await self._slices.ask_each(lambda number: self._calls.seek(caller, subscription, number, to), numbers)

    async def _notify(self, partitions: Sequence[QueuePartition], subscription: Subscription) -> None:
        await self._slices.ask_each(lambda partition: self._partitions.notify(partition, subscription), partitions)


def _check_filter(document: Mapping[str, object]) -> None:
    expression = document.get("filter")
    if isinstance(expression, str) and expression:
        Filter(expression)
