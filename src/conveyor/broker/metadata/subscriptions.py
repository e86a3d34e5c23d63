"""The subscriptions in the metadata, by name, by id and by topic.

A subscription refers to its topic by id: a topic that reuses the name of a deleted one inherits none of its
subscriptions. A subscription has its own id for the same reason: `current` refuses a subscription whose name now
belongs to another one. This module changes only the metadata; `broker.queues.subscription_lifecycle` also informs
the queues.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from uuid import UUID

from conveyor.broker.services import Services
from conveyor.cluster.changes import SubscriptionPut, SubscriptionRemoved
from conveyor.cluster.image import DELAY_TARGET, ClusterImage, TopicImage, changed_keys
from conveyor.cluster.topic_decisions import existing_user_topic
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.ids import TopicId
from conveyor.kernel.signal import Signal
from conveyor.queues.push.push_target import PushTarget
from conveyor.queues.subscription.policy import (
    NO_ANNOTATIONS,
    Policy,
    StartPosition,
    Subscription,
    changed_annotations,
    check_name,
    decode_subscription,
    encode_subscription,
    policy_from_document,
)

ChangePush = Callable[[PushTarget | None], PushTarget | None]
"""Returns the new target of a subscription's push, from the present one. Raises RequestError."""


class Subscriptions:
    """A view of the cluster image, kept up to date. Proposes changes of subscriptions."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._metadata = services.metadata
        self._new_id = services.new_id
        self._by_name: dict[str, Subscription] = {}
        self._by_topic: dict[UUID, dict[UUID, Subscription]] = {}
        self._partition_count = 0
        """Of all subscriptions together; each counts the partitions of its topic."""
        self._push_count = 0
        self.added: Signal[Subscription] = Signal()
        """A subscription has appeared in the metadata."""
        self.changed: Signal[Subscription] = Signal()
        """The policy of a subscription, or the target of its push, has changed."""
        self.removed: Signal[Subscription] = Signal()
        """A subscription was deleted, alone or with its topic."""
        self._metadata.listen(self._observe)

    def existing(self, name: str) -> Subscription:
        """Return the subscription of this name. Raises RequestError (UNKNOWN_SUBSCRIPTION)."""
        subscription = self._by_name.get(name)
        if subscription is None:
            raise RequestError(ErrorKind.UNKNOWN_SUBSCRIPTION, f"subscription '{name}' does not exist")
        return subscription

    def identified(self, name: str, subscription_id: UUID) -> Subscription:
        """Return the subscription with this name and id. Raises RequestError (UNKNOWN_SUBSCRIPTION)."""
        subscription = self.existing(name)
        if subscription.id != subscription_id:
            raise RequestError(ErrorKind.UNKNOWN_SUBSCRIPTION, f"subscription '{name}' was deleted")
        return subscription

    def current(self, subscription: Subscription) -> Subscription:
        """Return the subscription with its current policy.

        Raises RequestError (UNKNOWN_SUBSCRIPTION) if it was deleted.
        """
        if not self.exists(subscription):
            raise RequestError(ErrorKind.UNKNOWN_SUBSCRIPTION, f"subscription '{subscription.name}' was deleted")
        return self._by_name[subscription.name]

    def exists(self, subscription: Subscription) -> bool:
        """Return whether the subscription still exists."""
        current = self._by_name.get(subscription.name)
        return current is not None and current.id == subscription.id

    def all(self, topic: str | None = None) -> list[Subscription]:
        """Return the subscriptions of a topic, or all subscriptions for None, sorted by name."""
        if topic is None:
            return [self._by_name[name] for name in sorted(self._by_name)]
        image = self._metadata.image.topics.get(topic)
        subscriptions = () if image is None else self._by_topic.get(image.topic_id, {}).values()
        return sorted(subscriptions, key=lambda subscription: subscription.name)

    def by_id(self, topic_id: UUID) -> dict[UUID, Subscription]:
        """Return the subscriptions of a topic, by their id."""
        return dict(self._by_topic.get(topic_id, {}))

    def has_any(self, topic_id: UUID) -> bool:
        """Return whether a topic has subscriptions."""
        return topic_id in self._by_topic

    def topics(self) -> set[str]:
        """Return the names of the topics that have subscriptions."""
        return {next(iter(subscriptions.values())).topic for subscriptions in self._by_topic.values()}

    def check_new(self, topic: TopicImage, name: str) -> None:
        """Raise RequestError (POLICY_VIOLATION) if a subscription would exceed the limit, unless it exists."""
        if name not in self._by_name:
            self._check_room(len(topic.partitions), ErrorKind.POLICY_VIOLATION)

    def check_growth(self, topic: TopicImage, count: int) -> None:
        """Raise RequestError (INVALID_PARTITIONS) if a topic has too many subscriptions to get `count` partitions."""
        added = (count - len(topic.partitions)) * len(self._by_topic.get(topic.topic_id, ()))
        if added:
            self._check_room(added, ErrorKind.INVALID_PARTITIONS)

    async def add(
        self,
        topic: str,
        name: str,
        start: StartPosition,
        document: Mapping[str, object],
        default: Policy,
        *,
        annotations: Mapping[str, str] = NO_ANNOTATIONS,
        push: PushTarget | None = None,
    ) -> Subscription:
        """Store a new subscription. `default` provides the fields that the document omits. Raises RequestError."""
        check_name(name)
        annotations = changed_annotations(NO_ANNOTATIONS, annotations)
        policy, subscription_id = policy_from_document(topic, document, default), self._new_id()

        def decide(image: ClusterImage) -> list[SubscriptionPut]:
            self._refuse_second(image, topic, name)
            found = existing_user_topic(image, topic)
            if found.delay_target is not None:
                reason = f"topic '{topic}' is a delayed topic: subscribe to its target ({DELAY_TARGET})"
                raise RequestError(ErrorKind.INVALID_SUBSCRIPTION, reason)
            self.check_new(found, name)
            if push is not None:
                self._check_push_count()
            subscription = Subscription(
                id=subscription_id,
                name=name,
                topic=topic,
                topic_id=found.topic_id,
                start=start,
                partition_count=len(found.partitions),
                policy=policy,
                annotations=annotations,
                push=push,
            )
            return [_put(subscription)]

        await self._metadata.propose(decide)
        found = self.existing(name)
        if found.id != subscription_id:
            raise RequestError(ErrorKind.UNKNOWN_SUBSCRIPTION, f"subscription '{name}' was deleted")
        return found

    async def change(
        self,
        wanted: Subscription,
        document: Mapping[str, object],
        *,
        annotations: Mapping[str, str | None] = NO_ANNOTATIONS,
        change_push: ChangePush | None = None,
    ) -> Subscription:
        """Store a policy with the document's fields replaced, annotations with those given set, or removed for None,
        and the changed target of the push. Raises RequestError.
        """

        def decide(image: ClusterImage) -> list[SubscriptionPut]:
            before = self.current(wanted)
            policy = policy_from_document(before.topic, document, before.policy)
            annotated = changed_annotations(before.annotations, annotations)
            push = before.push if change_push is None else change_push(before.push)
            if push is not None and before.push is None:
                self._check_push_count()
            after = replace(before, policy=policy, annotations=annotated, push=push)
            return [] if after == before else [_put(after)]

        await self._metadata.propose(decide)
        return self.current(wanted)

    async def remove(self, subscription: Subscription) -> None:
        """Remove a subscription, if it still exists. Raises RequestError."""
        await self._metadata.propose(
            lambda _: [SubscriptionRemoved(name=subscription.name)] if self.exists(subscription) else []
        )

    def _observe(self, old: ClusterImage, new: ClusterImage) -> None:
        if old.names_by_id is not new.names_by_id:
            self._count_again(old, new)
        for name in changed_keys(old.subscriptions, new.subscriptions):
            before, after = self._by_name.get(name), new.subscriptions.get(name)
            is_same = before is not None and after is not None and after.subscription_id == before.id
            if before is not None and not is_same:
                self._forget(before)
                self._partition_count -= _partition_count(new, before.topic_id)
                self.removed.emit(before)
            if after is not None:
                subscription = decode_subscription(after.document)
                self._keep(subscription)
                self._partition_count += 0 if is_same else _partition_count(new, subscription.topic_id)
                (self.changed if is_same else self.added).emit(subscription)

    def _count_again(self, old: ClusterImage, new: ClusterImage) -> None:
        """Count the partitions that topics with subscriptions have got or lost. A topic that is deleted has none."""
        for name in changed_keys(old.topics, new.topics):
            before = old.topics.get(name)
            if before is not None and (subscriptions := self._by_topic.get(before.topic_id)):
                added = _partition_count(new, before.topic_id) - len(before.partitions)
                self._partition_count += added * len(subscriptions)

    def _check_room(self, added: int, kind: ErrorKind) -> None:
        total, limit = self._partition_count + added, self._services.settings.broker.max_subscription_partitions
        if total > limit:
            raise RequestError(
                kind,
                f"with {added} more there would be {total} subscription partitions in the cluster,"
                f" broker.max_subscription_partitions is {limit}: delete subscriptions, or raise the limit",
            )

    def _check_push_count(self) -> None:
        limit = self._services.settings.push.max_targets
        if self._push_count >= limit:
            raise RequestError(
                ErrorKind.POLICY_VIOLATION,
                f"{self._push_count} subscriptions push, push.max_targets is {limit}: remove the target of one, or"
                " raise the limit",
            )

    def _keep(self, subscription: Subscription) -> None:
        before = self._by_name.get(subscription.name)
        self._push_count += (subscription.push is not None) - (before is not None and before.push is not None)
        self._by_name[subscription.name] = subscription
        self._by_topic.setdefault(subscription.topic_id, {})[subscription.id] = subscription

    def _forget(self, subscription: Subscription) -> None:
        del self._by_name[subscription.name]
        self._push_count -= subscription.push is not None
        subscriptions = self._by_topic[subscription.topic_id]
        del subscriptions[subscription.id]
        if not subscriptions:
            del self._by_topic[subscription.topic_id]

    def _refuse_second(self, image: ClusterImage, topic: str, name: str) -> None:
        other = self._by_name.get(name) if name in image.subscriptions else None
        if other is None:
            return
        where = f"on this topic, '{topic}'" if other.topic == topic else f"on another topic than '{topic}'"
        raise RequestError(
            ErrorKind.SUBSCRIPTION_ALREADY_EXISTS,
            f"subscription '{name}' exists already {where}: names are unique in the cluster, choose another",
        )


def _partition_count(image: ClusterImage, topic_id: UUID) -> int:
    topic = image.topic_by_id(TopicId(topic_id))
    return 0 if topic is None else len(topic.partitions)


def _put(subscription: Subscription) -> SubscriptionPut:
    return SubscriptionPut(
        name=subscription.name,
        subscription_id=subscription.id,
        topic_id=subscription.topic_id,
        document=encode_subscription(subscription),
    )
