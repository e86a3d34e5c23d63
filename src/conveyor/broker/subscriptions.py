"""The subscriptions of this broker: nodes of the metadata tree, `/subscriptions/<name>`, kept in memory as well."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from uuid import UUID

from conveyor.broker.topics import Topics
from conveyor.cluster.image import SUBSCRIPTIONS_PATH
from conveyor.kernel.errors import ErrorKind, RequestError, StorageFailure
from conveyor.kernel.ports import ABSENT, MetadataStore
from conveyor.queues.policy import (
    Policy,
    Start,
    Subscription,
    check_name,
    decode_subscription,
    encode_subscription,
    policy_from_document,
)


class Subscriptions:
    """See the module's docstring."""

    def __init__(self, store: MetadataStore, topics: Topics, new_id: Callable[[], UUID]) -> None:
        self._store = store
        self._topics = topics
        self._new_id = new_id
        self._by_name: dict[str, Subscription] = {}
        self._one_change = asyncio.Lock()

    async def load(self) -> None:
        """Read all; those of topics that are gone are removed. Raises StorageFailure."""
        for path, node in (await self._store.tree(SUBSCRIPTIONS_PATH)).items():
            subscription = decode_subscription(node.value)
            topic = self._topics.image.topics.get(subscription.topic)
            if topic is None or topic.topic_id != subscription.topic_id:
                await self._store.delete(path)
            else:
                self._by_name[subscription.name] = subscription

    def existing(self, name: str) -> Subscription:
        """Raises RequestError (UNKNOWN_SUBSCRIPTION)."""
        found = self._by_name.get(name)
        if found is None:
            raise RequestError(ErrorKind.UNKNOWN_SUBSCRIPTION, f"subscription '{name}' is not there")
        return found

    def all(self, topic: str | None = None) -> list[Subscription]:
        """Those of a topic, or all, by name."""
        found = [each for each in self._by_name.values() if topic is None or each.topic == topic]
        return sorted(found, key=lambda each: each.name)

    def by_id(self, topic: str) -> dict[UUID, Subscription]:
        return {each.id: each for each in self._by_name.values() if each.topic == topic}

    def topics(self) -> set[str]:
        """The topics that have subscriptions."""
        return {each.topic for each in self._by_name.values()}

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
            self._by_name[name] = subscription
            return subscription

    async def change(self, name: str, document: Mapping[str, object]) -> Subscription:
        """Store another policy: the document's fields, and the others as they are. Raises RequestError."""
        async with self._one_change:
            before = self.existing(name)
            policy = policy_from_document(before.topic, document, before.policy)
            changed = replace(before, policy=policy)
            await self._put(changed)
            self._by_name[name] = changed
            return changed

    async def delete(self, name: str) -> Subscription:
        """Remove it. Raises RequestError."""
        async with self._one_change:
            gone = self.existing(name)
            try:
                await self._store.delete(f"{SUBSCRIPTIONS_PATH}/{name}")
            except StorageFailure as failure:
                raise RequestError(ErrorKind.METADATA_UNAVAILABLE, str(failure)) from failure
            del self._by_name[name]
            return gone

    async def _put(self, subscription: Subscription, version: int | None = None) -> None:
        path, content = f"{SUBSCRIPTIONS_PATH}/{subscription.name}", encode_subscription(subscription)
        try:
            written = await (
                self._store.put(path, content) if version is None else self._store.put(path, content, version)
            )
        except StorageFailure as failure:
            raise RequestError(ErrorKind.METADATA_UNAVAILABLE, str(failure)) from failure
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
