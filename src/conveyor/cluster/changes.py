"""The typed changes of the cluster, and the function that applies them to an image.

Each change is one item of an entry in the metadata log (see `metadata_log`), in the order of the decision. Applying a
change never fails and checks nothing: the decision has checked it against the image before.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, TypeVar
from uuid import UUID

import msgspec

from conveyor.cluster.image import (
    BrokerEndpoint,
    BrokerImage,
    ClusterImage,
    ConfigOwner,
    ConfigScope,
    PartitionImage,
    QuotaOwner,
    ScheduleImage,
    SubscriptionImage,
    TopicImage,
)
from conveyor.kernel.access.acl import Acl
from conveyor.kernel.access.scram import ScramCredential, ScramMechanism
from conveyor.kernel.ids import TopicId

Key = TypeVar("Key")
Value = TypeVar("Value")
Copied = TypeVar("Copied")


class _Change(msgspec.Struct, frozen=True, kw_only=True, tag_field="change"):
    """One change. The tag stores its class."""


class ClusterNamed(_Change, frozen=True, kw_only=True, tag="cluster"):
    """The cluster has received its permanent id."""

    cluster_id: str


class BrokerRegistered(_Change, frozen=True, kw_only=True, tag="broker"):
    """A broker registers, is fenced or begins to stop. Created by `broker_registered`."""

    node_id: int
    host: str
    port: int
    rack: str | None = None
    incarnation: str = ""
    broker_epoch: int = 0
    boot_id: str = ""
    data_id: str = ""
    is_fenced: bool = False
    is_stopping: bool = False
    peer_host: str = ""
    peer_port: int = 0
    http_url: str = ""
    listeners: dict[str, BrokerEndpoint] = {}


class BrokerRemoved(_Change, frozen=True, kw_only=True, tag="broker_removed"):
    """A broker is no longer part of the cluster."""

    node_id: int


class TopicPut(_Change, frozen=True, kw_only=True, tag="topic"):
    """A topic is created, or its settings or partition count change. Created by `topic_put`."""

    name: str
    topic_id: UUID
    config: dict[str, str]
    partitions: tuple[PartitionImage, ...]


class TopicRemoved(_Change, frozen=True, kw_only=True, tag="topic_removed"):
    """A topic is deleted."""

    name: str


class PartitionChanged(_Change, frozen=True, kw_only=True, tag="partition"):
    """The state of one partition changes. Created by `partition_changed`."""

    topic: str
    partition: int
    state: PartitionImage


class SubscriptionPut(_Change, frozen=True, kw_only=True, tag="subscription"):
    """A subscription is created, or its policy changes."""

    name: str
    subscription_id: UUID
    topic_id: UUID
    document: str


class SubscriptionRemoved(_Change, frozen=True, kw_only=True, tag="subscription_removed"):
    """A subscription is deleted."""

    name: str


class SchedulePut(_Change, frozen=True, kw_only=True, tag="schedule"):
    """A schedule is created, changed, or has fired."""

    name: str
    topic_id: UUID
    document: str


class ScheduleRemoved(_Change, frozen=True, kw_only=True, tag="schedule_removed"):
    """A schedule is deleted."""

    name: str


class QuotasPut(_Change, frozen=True, kw_only=True, tag="quotas"):
    """The new quotas of an entity, by key. An empty mapping removes the entity."""

    entity: QuotaOwner
    values: dict[str, float]


class ConfigPut(_Change, frozen=True, kw_only=True, tag="config"):
    """The complete settings that were changed at run time for all brokers, a broker or a group."""

    scope: ConfigScope
    name: str
    texts: dict[str, str]


class ScramPut(_Change, frozen=True, kw_only=True, tag="scram"):
    """The new credential of a user for one mechanism; None removes it."""

    user: str
    mechanism: ScramMechanism
    credential: ScramCredential | None


class AclAdded(_Change, frozen=True, kw_only=True, tag="acl"):
    """An ACL counts from now on."""

    acl: Acl


class AclRemoved(_Change, frozen=True, kw_only=True, tag="acl_removed"):
    """An ACL counts no longer."""

    acl: Acl


class ProducerIdsTaken(_Change, frozen=True, kw_only=True, tag="producer_ids"):
    """A broker has reserved the producer ids below `next_producer_id`."""

    next_producer_id: int


Change = (
    ClusterNamed
    | BrokerRegistered
    | BrokerRemoved
    | TopicPut
    | TopicRemoved
    | PartitionChanged
    | SubscriptionPut
    | SubscriptionRemoved
    | SchedulePut
    | ScheduleRemoved
    | QuotasPut
    | ConfigPut
    | ScramPut
    | AclAdded
    | AclRemoved
    | ProducerIdsTaken
)


def broker_registered(broker: BrokerImage) -> BrokerRegistered:
    """Return the change that sets a broker to this image of it."""
    return msgspec.structs.replace(_copy(broker, BrokerRegistered), listeners=dict(broker.listeners))


def topic_put(topic: TopicImage) -> TopicPut:
    """Return the change that sets a topic to this image of it."""
    return TopicPut(
        name=topic.name,
        topic_id=topic.topic_id,
        config=dict(topic.config),
        partitions=topic.partitions,
    )


def partition_changed(topic: str, number: int, partition: PartitionImage) -> PartitionChanged:
    """Return the change that sets a partition to this image of it."""
    return PartitionChanged(topic=topic, partition=number, state=partition)


def whole_image(image: ClusterImage) -> list[Change]:
    """Return the changes that build an image from an empty one."""
    changes: list[Change] = [ClusterNamed(cluster_id=image.cluster_id)] if image.cluster_id else []
    changes += map(broker_registered, image.brokers.values())
    changes += map(topic_put, image.topics.values())
    changes += [_copy(subscription, SubscriptionPut) for subscription in image.subscriptions.values()]
    changes += [_copy(schedule, SchedulePut) for schedule in image.schedules.values()]
    changes += [QuotasPut(entity=entity, values=dict(values)) for entity, values in image.quotas.items()]
    changes += [ConfigPut(scope=scope, name=name, texts=dict(texts)) for (scope, name), texts in image.configs.items()]
    changes += [
        ScramPut(user=user, mechanism=mechanism, credential=credential)
        for (user, mechanism), credential in image.scram.items()
    ]
    changes += [AclAdded(acl=acl) for acl in image.acls]
    if image.next_producer_id:
        changes.append(ProducerIdsTaken(next_producer_id=image.next_producer_id))
    return changes


def _copy(source: object, kind: type[Copied]) -> Copied:
    """Return an object of a class whose fields have the same names in the source."""
    return kind(**{name: getattr(source, name) for name in kind.__annotations__})


def fold(image: ClusterImage, changes: Iterable[Change], seq: int) -> ClusterImage:
    """Return the image after the changes of the entry `seq`."""
    return ImageFold(image).image_after(changes, seq)


class ImageFold:
    """Changes an image step by step. Each part is copied at its first change, however many steps there are.

    An image that `image_after` returned is valid until the next call, which changes it.
    """

    def __init__(self, image: ClusterImage) -> None:
        self._image = image
        self._parts: dict[str, Any] = {}
        self._partitions: dict[str, list[PartitionImage]] = {}
        """The partitions of topics with changed partitions: one entry may change all partitions of a large topic."""
        self._stale: set[str] = set()
        """Topics that do not have their changed partitions yet."""
        self._topics_differ = False
        """True if topics were put or removed. The names and the count stay while only partitions change."""

    def image_after(self, changes: Iterable[Change], seq: int) -> ClusterImage:
        """Return the image after these further changes, as that of the entry `seq`."""
        for change in changes:
            _CARRY_OUT[type(change)](self, change)
        return self._image_now(seq)

    def put(self, part: str, key: Key, value: Value) -> None:
        self._of(part)[key] = value

    def remove(self, part: str, key: object) -> None:
        self._of(part).pop(key, None)

    def set(self, part: str, value: object) -> None:
        self._parts[part] = value

    def put_topic(self, name: str, topic: TopicImage) -> None:
        self._forget_partitions(name)
        self._topics_differ = True
        self.put("topics", name, topic)

    def remove_topic(self, name: str) -> None:
        self._forget_partitions(name)
        self._topics_differ = True
        self.remove("topics", name)

    def put_partition(self, name: str, number: int, partition: PartitionImage) -> None:
        """Replace a partition, if it exists."""
        topic = self._parts.get("topics", self._image.topics).get(name)
        if topic is not None and 0 <= number < len(topic.partitions):
            if name not in self._partitions:
                self._partitions[name] = list(topic.partitions)
            self._partitions[name][number] = partition
            self._stale.add(name)

    def _image_now(self, seq: int) -> ClusterImage:
        for name in self._stale:
            topics = self._of("topics")
            topics[name] = replace(topics[name], partitions=tuple(self._partitions[name]))
        self._stale.clear()
        if self._topics_differ:
            topics = self._of("topics")
            self._parts["names_by_id"] = {topic.topic_id: topic.name for topic in topics.values()}
            self._parts["partition_count"] = sum(len(topic.partitions) for topic in topics.values())
            self._parts["delayed_topics"] = _delayed_topics(topics.values())
            self._topics_differ = False
        parts: dict[str, Any] = {
            name: MappingProxyType(part) if isinstance(part, dict) else part for name, part in self._parts.items()
        }
        return replace(self._image, seq=seq, **parts)

    def _forget_partitions(self, name: str) -> None:
        self._partitions.pop(name, None)
        self._stale.discard(name)

    def _of(self, part: str) -> dict[Any, Any]:
        if part not in self._parts:
            self._parts[part] = dict(getattr(self._image, part))
        present: dict[Any, Any] = self._parts[part]
        return present


def _delayed_topics(topics: Iterable[TopicImage]) -> dict[str, tuple[str, ...]]:
    """Return the names of the delayed topics of each target."""
    delayed: dict[str, tuple[str, ...]] = {}
    for topic in topics:
        if topic.delay_target is not None:
            delayed[topic.delay_target] = (*delayed.get(topic.delay_target, ()), topic.name)
    return delayed


def _put_topic(draft: ImageFold, change: TopicPut) -> None:
    topic = TopicImage(
        name=change.name,
        topic_id=TopicId(change.topic_id),
        config=MappingProxyType(change.config),
        partitions=change.partitions,
    )
    draft.put_topic(change.name, topic)


def _put_or_remove(draft: ImageFold, part: str, key: QuotaOwner | ConfigOwner, values: Mapping[str, Any]) -> None:
    if values:
        draft.put(part, key, MappingProxyType(dict(values)))
    else:
        draft.remove(part, key)


def _put_scram(draft: ImageFold, change: ScramPut) -> None:
    key = change.user, change.mechanism
    if change.credential is None:
        draft.remove("scram", key)
    else:
        draft.put("scram", key, change.credential)


_CARRY_OUT: Mapping[type, Any] = MappingProxyType(
    {
        ClusterNamed: lambda draft, change: draft.set("cluster_id", change.cluster_id),
        BrokerRegistered: lambda draft, change: draft.put("brokers", change.node_id, _copy(change, BrokerImage)),
        BrokerRemoved: lambda draft, change: draft.remove("brokers", change.node_id),
        TopicPut: _put_topic,
        TopicRemoved: lambda draft, change: draft.remove_topic(change.name),
        PartitionChanged: lambda draft, change: draft.put_partition(change.topic, change.partition, change.state),
        SubscriptionPut: lambda draft, change: draft.put(
            "subscriptions", change.name, _copy(change, SubscriptionImage)
        ),
        SubscriptionRemoved: lambda draft, change: draft.remove("subscriptions", change.name),
        SchedulePut: lambda draft, change: draft.put("schedules", change.name, _copy(change, ScheduleImage)),
        ScheduleRemoved: lambda draft, change: draft.remove("schedules", change.name),
        QuotasPut: lambda draft, change: _put_or_remove(draft, "quotas", change.entity, change.values),
        ConfigPut: lambda draft, change: _put_or_remove(draft, "configs", (change.scope, change.name), change.texts),
        ScramPut: _put_scram,
        AclAdded: lambda draft, change: draft.put("acls", change.acl, None),
        AclRemoved: lambda draft, change: draft.remove("acls", change.acl),
        ProducerIdsTaken: lambda draft, change: draft.set("next_producer_id", change.next_producer_id),
    }
)
