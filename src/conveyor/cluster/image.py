"""The immutable image of the cluster that a broker has. A change creates a new image; see `changes`."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import compress
from operator import is_not
from types import MappingProxyType
from typing import Any, TypeVar
from uuid import UUID

import msgspec

from conveyor.kernel.access.acl import Acl
from conveyor.kernel.access.scram import ScramCredential, ScramMechanism
from conveyor.kernel.ids import LeaderEpoch, NodeId, TopicId

OFFSETS_TOPIC = "__consumer_offsets"
TRANSACTIONS_TOPIC = "__transaction_state"
AUDIT_TOPIC = "__audit"
QUEUE_STATE = "__queue_state"
DELAY_STATE = "__delay_state"
COMPANIONS = (QUEUE_STATE, DELAY_STATE)
"""Topics that accompany another topic: `__queue_state.orders` has the partitions of `orders`, with the same leaders."""

DELAY_TARGET = "delay.target"
"""The setting of a delayed topic that names the topic to which its records are forwarded. A delayed topic accompanies
its target, and `__delay_state.<delayed topic>` accompanies both.
"""

NO_LEADER = NodeId(-1)
NO_EPOCH = LeaderEpoch(-1)


def _nothing() -> Mapping[Any, Any]:
    return _NOTHING


class BrokerEndpoint(msgspec.Struct, frozen=True, array_like=True):
    """The address at which clients reach a listener of a broker."""

    host: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerImage:
    """One broker, its addresses, and its last registration.

    host, port: of its first listener for Kafka clients. listeners: all of these by name; empty for a broker of an older
    build, which had one. peer_host, peer_port: for other brokers; port 0 if it has no such listener. http_url:
    of its HTTP door, without a slash at the end; empty if unknown.
    incarnation, broker_epoch: of its last registration; each start has a new incarnation and a higher epoch (KIP-380).
    boot_id: the boot of its machine. data_id: its data directory. is_fenced: the registration has ended. is_stopping:
    the broker has asked for a controlled shutdown. A broker leads and joins an ISR only if it is neither.
    """

    node_id: NodeId
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
    listeners: Mapping[str, BrokerEndpoint] = field(default_factory=_nothing)

    def endpoint(self, listener: str) -> BrokerEndpoint | None:
        """Return where clients of the listener of this name reach the broker; None if it has no such listener."""
        return self.listeners.get(listener) if self.listeners else BrokerEndpoint(self.host, self.port)


class PartitionImage(msgspec.Struct, frozen=True, array_like=True):
    """The leader and the replicas of a partition. `conveyor.cluster.controller` describes how they change.

    The metadata log stores its fields as an array: new ones come last and have defaults.

    leader: NO_LEADER if no replica may lead. partition_epoch: rises with each change of the partition. elr: replicas
    outside the ISR that have every committed record (KIP-966). last_known_leader: of a partition without a leader.
    origin, target: the replicas before and after the reassignment in progress, both empty without one; meanwhile
    `replicas` has the target, then the rest of the origin.
    unclean_epoch: the leader epoch that began with the last unclean election, NO_EPOCH if there was none. A replica
    whose last records are of an earlier epoch may cut off committed records (KIP-704).
    """

    leader: NodeId
    leader_epoch: LeaderEpoch
    replicas: tuple[NodeId, ...]
    isr: tuple[NodeId, ...]
    partition_epoch: int = 0
    elr: tuple[NodeId, ...] = ()
    last_known_leader: NodeId = NO_LEADER
    origin: tuple[NodeId, ...] = ()
    target: tuple[NodeId, ...] = ()
    unclean_epoch: LeaderEpoch = NO_EPOCH

    @property
    def adding(self) -> tuple[NodeId, ...]:
        """The replicas that the reassignment in progress adds (KIP-455)."""
        return tuple(node for node in self.target if node not in self.origin)

    @property
    def removing(self) -> tuple[NodeId, ...]:
        """The replicas that the reassignment in progress removes (KIP-455)."""
        return tuple(node for node in self.origin if node not in self.target)

    @property
    def replication_factor(self) -> int:
        """The number of replicas; during a reassignment the lower of both, so that a growing one stops no writes."""
        return min(len(self.origin), len(self.target)) if self.origin else len(self.replicas)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicImage:
    """One topic. `config` holds the settings that were set for it, by Kafka's names."""

    name: str
    topic_id: TopicId
    partitions: tuple[PartitionImage, ...]
    config: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_internal(self) -> bool:
        return is_internal(self.name)

    @property
    def delay_target(self) -> str | None:
        """The topic to which the records of a delayed topic are forwarded; None for any other topic."""
        return self.config.get(DELAY_TARGET) or None

    @property
    def partition_count(self) -> int:
        return len(self.partitions)

    @property
    def replication_factor(self) -> int:
        """The replication factor of the first partition; partitions that are added get the same."""
        return self.partitions[0].replication_factor


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionImage:
    """One subscription of a topic. document: JSON; see `conveyor.queues.subscription.policy`."""

    name: str
    subscription_id: UUID
    topic_id: TopicId
    document: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleImage:
    """One schedule that publishes to a topic. document: JSON; see `conveyor.schedules`."""

    name: str
    topic_id: TopicId
    document: str


class ConfigScope(StrEnum):
    """The kinds of owners of settings that change at run time."""

    BROKERS = "brokers"
    GROUPS = "groups"


ConfigOwner = tuple[ConfigScope, str]
QuotaOwner = tuple[tuple[str, str | None], ...]
"""The (type, name) pairs of a quota's entity; see `quotas`."""

Texts = Mapping[str, str]
Key = TypeVar("Key")
_NOTHING: Mapping[Any, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterImage:
    """The whole cluster after one entry of the metadata log.

    seq: that entry's number; equal numbers mean equal images. names_by_id, partition_count: of all topics.
    delayed_topics: the names of the delayed topics of each target. configs: settings changed at run time, as text by
    the names that clients see. quotas: values by key, for each entity. scram: the credentials of users. acls: in the
    order in which they were added.
    next_producer_id: the first id that no broker has reserved.
    """

    cluster_id: str = ""
    seq: int = 0
    brokers: Mapping[NodeId, BrokerImage] = field(default_factory=_nothing)
    topics: Mapping[str, TopicImage] = field(default_factory=_nothing)
    names_by_id: Mapping[TopicId, str] = field(default_factory=_nothing)
    partition_count: int = 0
    delayed_topics: Mapping[str, tuple[str, ...]] = field(default_factory=_nothing)
    subscriptions: Mapping[str, SubscriptionImage] = field(default_factory=_nothing)
    schedules: Mapping[str, ScheduleImage] = field(default_factory=_nothing)
    quotas: Mapping[QuotaOwner, Mapping[str, float]] = field(default_factory=_nothing)
    configs: Mapping[ConfigOwner, Texts] = field(default_factory=_nothing)
    scram: Mapping[tuple[str, ScramMechanism], ScramCredential] = field(default_factory=_nothing)
    acls: Mapping[Acl, None] = field(default_factory=_nothing)
    next_producer_id: int = 0

    def topic_by_id(self, topic_id: TopicId) -> TopicImage | None:
        """Return the topic with this id; None if it was deleted."""
        return self.topics.get(self.names_by_id.get(topic_id, ""))

    def partition(self, topic: str, number: int) -> PartitionImage | None:
        """Return a partition; None if there is none of this topic and number, which may be negative."""
        found = self.topics.get(topic)
        return found.partitions[number] if found is not None and 0 <= number < len(found.partitions) else None

    def bundle_owner(self, name: str) -> str:
        """Return the topic whose leaders and replicas a topic has: the topic itself, unless it accompanies another."""
        name = owner_of(name)
        topic = self.topics.get(name)
        return name if topic is None else topic.delay_target or name

    def companions(self, name: str) -> Iterator[TopicImage]:
        """Yield the topics that accompany a topic: its delayed topics, and the broker's own topics for all of them."""
        delayed = self.delayed_topics.get(name, ())
        names = (*delayed, *(companion(kind, owner) for owner in (name, *delayed) for kind in COMPANIONS))
        return (self.topics[accompanying] for accompanying in names if accompanying in self.topics)

    @property
    def controller_id(self) -> NodeId:
        """The broker to which clients send changes. Every broker accepts them; this is the lowest id of a live one."""
        return min((broker.node_id for broker in self.live_brokers), default=NodeId(-1))

    @property
    def live_brokers(self) -> list[BrokerImage]:
        return [broker for broker in self.brokers.values() if not broker.is_fenced]


def changed_keys(old: Mapping[Key, object], new: Mapping[Key, object]) -> list[Key]:
    """Return the keys of one part of an image that were added, replaced or removed. Compares identity only."""
    replaced = compress(new, map(is_not, new.values(), map(old.get, new)))
    return [*replaced, *(old.keys() - new.keys())]


def is_internal(name: str) -> bool:
    """Return whether this is the name of one of the broker's own topics."""
    return name in (OFFSETS_TOPIC, TRANSACTIONS_TOPIC, AUDIT_TOPIC) or is_companion(name)


def is_companion(name: str) -> bool:
    """Return whether this is the name of a companion of another topic."""
    return name.partition(".")[0] in COMPANIONS


def companion(kind: str, topic: str) -> str:
    """Return the name of a topic's companion."""
    return f"{kind}.{topic}"


def owner_of(name: str) -> str:
    """Return the topic that one of the broker's companions belongs to; for any other topic, its own name."""
    return next((owner for kind in COMPANIONS if (owner := companion_of(kind, name))), name)


def companion_of(kind: str, name: str) -> str | None:
    """Return the topic of a companion of this kind; None if the name is not such a companion's."""
    topic = name.removeprefix(f"{kind}.")
    return None if topic == name else topic
