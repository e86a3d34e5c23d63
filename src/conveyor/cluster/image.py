"""What a broker knows of the cluster: immutable; a change makes a new image.

In the metadata tree a topic is one node, `/topics/<name>`, with this JSON:

    {"id": "<uuid>", "config": {"segment.bytes": "1048576"},
     "partitions": [{"leader": 1, "leader_epoch": 0, "replicas": [1], "isr": [1]}, ...]}
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any
from uuid import UUID

from conveyor.kernel.ids import LeaderEpoch, NodeId, TopicId

TOPICS_PATH = "/topics"
SUBSCRIPTIONS_PATH = "/subscriptions"
SCHEDULES_PATH = "/schedules"
OFFSETS_TOPIC = "__consumer_offsets"
QUEUE_STATE = "__queue_state"
INBOX = "__inbox"
COMPANIONS = (QUEUE_STATE, INBOX)
"""Topics that go with another: `__queue_state.orders` has the partitions of `orders`, each with the same leader."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerImage:
    """One broker, and where Kafka clients reach it."""

    node_id: NodeId
    host: str
    port: int
    rack: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionImage:
    """Who leads a partition, and who holds it."""

    leader: NodeId
    leader_epoch: LeaderEpoch
    replicas: tuple[NodeId, ...]
    isr: tuple[NodeId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicImage:
    """One topic. `config` holds what was set for it, by Kafka's names."""

    name: str
    topic_id: TopicId
    partitions: tuple[PartitionImage, ...]
    config: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_internal(self) -> bool:
        return is_internal(self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterImage:
    """The whole cluster as it was at one moment."""

    cluster_id: str
    controller_id: NodeId
    brokers: Mapping[NodeId, BrokerImage] = field(default_factory=lambda: MappingProxyType({}))
    topics: Mapping[str, TopicImage] = field(default_factory=lambda: MappingProxyType({}))
    names_by_id: Mapping[TopicId, str] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def partition_count(self) -> int:
        return sum(len(topic.partitions) for topic in self.topics.values())

    def with_broker(self, broker: BrokerImage) -> "ClusterImage":
        return replace(self, brokers=MappingProxyType({**self.brokers, broker.node_id: broker}))

    def with_topics(self, *added: TopicImage) -> "ClusterImage":
        """This image with topics added or replaced."""
        topics = {**self.topics, **{topic.name: topic for topic in added}}
        return self._with(topics)

    def without_topic(self, name: str) -> "ClusterImage":
        return self._with({key: topic for key, topic in self.topics.items() if key != name})

    def _with(self, topics: dict[str, TopicImage]) -> "ClusterImage":
        names = {topic.topic_id: topic.name for topic in topics.values()}
        return replace(self, topics=MappingProxyType(topics), names_by_id=MappingProxyType(names))


def is_internal(name: str) -> bool:
    """Whether a topic of that name is the broker's own."""
    return name == OFFSETS_TOPIC or is_companion(name)


def is_companion(name: str) -> bool:
    """Whether a topic of that name goes with another."""
    return name.partition(".")[0] in COMPANIONS


def companion(kind: str, topic: str) -> str:
    """The name of a topic's companion."""
    return f"{kind}.{topic}"


def companion_of(kind: str, name: str) -> str | None:
    """The topic that a companion of this kind goes with; None if the name is no such companion's."""
    topic = name.removeprefix(f"{kind}.")
    return None if topic == name else topic


def topic_path(name: str) -> str:
    """Where a topic lies in the metadata tree."""
    return f"{TOPICS_PATH}/{name}"


def encode_topic(topic: TopicImage) -> bytes:
    """The node's content."""
    partitions = [
        {"leader": each.leader, "leader_epoch": each.leader_epoch, "replicas": each.replicas, "isr": each.isr}
        for each in topic.partitions
    ]
    document = {"id": str(topic.topic_id), "config": dict(topic.config), "partitions": partitions}
    return json.dumps(document).encode()


def decode_topic(name: str, content: bytes) -> TopicImage:
    """The topic in a node."""
    document = json.loads(content)
    return TopicImage(
        name=name,
        topic_id=TopicId(UUID(document["id"])),
        config=MappingProxyType(dict(document["config"])),
        partitions=tuple(_decode_partition(each) for each in document["partitions"]),
    )


def _decode_partition(document: dict[str, Any]) -> PartitionImage:
    return PartitionImage(
        leader=NodeId(document["leader"]),
        leader_epoch=LeaderEpoch(document["leader_epoch"]),
        replicas=tuple(NodeId(each) for each in document["replicas"]),
        isr=tuple(NodeId(each) for each in document["isr"]),
    )
