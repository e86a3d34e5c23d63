"""The subscriptions of this broker: nodes of the metadata tree, `/subscriptions/<name>`, kept in memory as well.

A subscription belongs to a topic by the topic's id: another topic that takes the name of a deleted one has none of its
subscriptions. It is known by its own id, for the same reason: `current` refuses a subscription whose name another has.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from uuid import UUID

from conveyor.broker.topics.topics import Topics
from conveyor.cluster.image import SUBSCRIPTIONS_PATH, TopicImage
from conveyor.kernel.errors import DiskFull, ErrorKind, RequestError, StorageFailure, metadata_failure
from conveyor.kernel.ports import ABSENT, MetadataStore
from conveyor.queues.subscription.policy import (
    Policy,
    Start,
    Subscription,
    check_name,
    decode_subscription,
    encode_subscription,
    policy_from_document,
)

log = logging.getLogger(__name__)


class Subscriptions:
    """See the module's docstring."""

    def __init__(self, store: MetadataStore, topics: Topics, new_id: Callable[[], UUID]) -> None:
        self._store = store
        self._topics = topics
        self._new_id = new_id
        self._by_name: dict[str, Subscription] = {}
        self._by_topic: dict[UUID, dict[UUID, Subscription]] = {}
        self._one_change = asyncio.Lock()

    async def load(self) -> None:
        """Read all; those of topics that are gone are removed. Raises StorageFailure."""
        for path, node in (await self._store.tree(SUBSCRIPTIONS_PATH)).items():
            subscription = decode_subscription(node.value)
            topic = self._topics.image.topics.get(subscription.topic)
            if topic is None or topic.topic_id != subscription.topic_id:
                await self._forget(path)
            else:
                self._add(subscription)

    async def _forget(self, path: str) -> None:
        """Without room for that, the next start does it. Raises StorageFailure."""
        try:
            await self._store.delete(path)
        except DiskFull as failure:
            log.warning("subscription of a topic that is gone stays stored path=%s reason=%s", path, failure)

    def existing(self, name: str) -> Subscription:
        """Raises RequestError (UNKNOWN_SUBSCRIPTION)."""
        found = self._by_name.get(name)
        if found is None:
            raise RequestError(ErrorKind.UNKNOWN_SUBSCRIPTION, f"subscription '{name}' is not there")
        return found

    def current(self, subscription: Subscription) -> Subscription:
        """A subscription with its present policy. Raises RequestError (UNKNOWN_SUBSCRIPTION) once it is deleted."""
        if not self.exists(subscription):
            raise RequestError(ErrorKind.UNKNOWN_SUBSCRIPTION, f"subscription '{subscription.name}' was deleted")
        return self._by_name[subscription.name]

    def exists(self, subscription: Subscription) -> bool:
        """Whether it was not deleted."""
        found = self._by_name.get(subscription.name)
        return found is not None and found.id == subscription.id

    def all(self, topic: str | None = None) -> list[Subscription]:
        """Those of a topic, or all, by name."""
        if topic is None:
            return [self._by_name[name] for name in sorted(self._by_name)]
        image = self._topics.image.topics.get(topic)
        found = () if image is None else self._by_topic.get(image.topic_id, {}).values()
        return sorted(found, key=lambda subscription: subscription.name)

    def by_id(self, topic_id: UUID) -> dict[UUID, Subscription]:
        """The subscriptions of a topic."""
        return dict(self._by_topic.get(topic_id, {}))

    def has_any(self, topic_id: UUID) -> bool:
        """Whether a topic has subscriptions."""
        return topic_id in self._by_topic

    def topics(self) -> set[str]:
        """The topics that have subscriptions."""
        return {next(iter(subscriptions.values())).topic for subscriptions in self._by_topic.values()}

    async def create(
        self, topic: str, name: str, start: Start, document: Mapping[str, object], default: Policy
    ) -> Subscription:
        """Store a new subscription; `default` is its policy where the document says nothing. Raises RequestError."""
        check_name(name)
        async with self._one_change:
            self._refuse_second(topic, name)
            image = self._topics.existing(topic)
            if image.is_internal:
                raise RequestError(ErrorKind.INVALID_TOPIC, f"topic '{topic}' is the broker's own")
            subscription = Subscription(
                id=self._new_id(),
                name=name,
                topic=topic,
                topic_id=image.topic_id,
                start=start,
                partition_count=len(image.partitions),
                policy=policy_from_document(topic, document, default),
            )
            await self._put(subscription, ABSENT)
            self._add(subscription)
            return subscription

    async def change(self, name: str, document: Mapping[str, object]) -> Subscription:
        """Store another policy: the document's fields, and the others as they are. Raises RequestError."""
        async with self._one_change:
            before = self.existing(name)
            policy = policy_from_document(before.topic, document, before.policy)
            changed = replace(before, policy=policy)
            await self._put(changed)
            self._add(changed)
            return changed

    async def delete(self, subscription: Subscription) -> None:
        """Remove a subscription, unless it was removed already. Raises RequestError."""
        async with self._one_change:
            if not self.exists(subscription):
                return
            try:
                await self._store.delete(_path(subscription.name))
            except StorageFailure as failure:
                raise metadata_failure(failure) from failure
            self._remove(subscription)

    async def topic_deleted(self, topic: TopicImage) -> list[Subscription]:
        """Remove the subscriptions of a topic that was deleted, and return them.

        A node that the store does not delete now is removed by the next start, which finds no topic of its topic id.
        """
        async with self._one_change:
            gone = list(self.by_id(topic.topic_id).values())
            for subscription in gone:
                self._remove(subscription)
            for subscription in gone:
                try:
                    await self._store.delete(_path(subscription.name))
                except StorageFailure as failure:
                    log.warning("subscription stays in the metadata name=%s: %s", subscription.name, failure)
            return gone

    def _add(self, subscription: Subscription) -> None:
        self._by_name[subscription.name] = subscription
        self._by_topic.setdefault(subscription.topic_id, {})[subscription.id] = subscription

    def _remove(self, subscription: Subscription) -> None:
        del self._by_name[subscription.name]
        subscriptions = self._by_topic[subscription.topic_id]
        del subscriptions[subscription.id]
        if not subscriptions:
            del self._by_topic[subscription.topic_id]

    async def _put(self, subscription: Subscription, version: int | None = None) -> None:
        path, content = _path(subscription.name), encode_subscription(subscription)
        try:
            written = await (
                self._store.put(path, content) if version is None else self._store.put(path, content, version)
            )
        except StorageFailure as failure:
            raise metadata_failure(failure) from failure
        if written is None:
            raise RequestError(
                ErrorKind.SUBSCRIPTION_ALREADY_EXISTS, f"subscription '{subscription.name}' exists already"
            )

    def _refuse_second(self, topic: str, name: str) -> None:
        other = self._by_name.get(name)
        if other is None:
            return
        where = f"on this topic, '{topic}'" if other.topic == topic else f"on topic '{other.topic}', not on '{topic}'"
        raise RequestError(
            ErrorKind.SUBSCRIPTION_ALREADY_EXISTS,
            f"subscription '{name}' exists already {where}: names are unique in the broker, choose another",
        )


def _path(name: str) -> str:
    return f"{SUBSCRIPTIONS_PATH}/{name}"
