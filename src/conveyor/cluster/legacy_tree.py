"""Reads the metadata of versions before the metadata log, which stored one node per object. Nothing here writes.

    /cluster/id                        text
    /topics/<name>                     {"id": "<uuid>", "config": {...}, "partitions": [{"leader": 1, ...}, ...]}
    /subscriptions/<name>              the subscription's document
    /schedules/<name>                  the schedule's document
    /quotas/<entity>                   {"producer_byte_rate": 1000.0}
    /config/{brokers,groups}/<name>    {"log.retention.ms": "60000"}
    /producer_ids/next                 text: the first unused producer id

Those versions deleted a topic in several steps. This module skips the nodes that an unfinished deletion has left.

An earlier version that found none of these nodes would start as an empty broker and set every directory aside. Nodes
that stop it therefore stay in their place: see `REFUSAL`.
"""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import TypeVar
from urllib.parse import unquote
from uuid import UUID

import msgspec

from conveyor.cluster.changes import (
    Change,
    ClusterNamed,
    ConfigPut,
    PartitionState,
    ProducerIdsTaken,
    QuotasPut,
    SchedulePut,
    SubscriptionPut,
    TopicPut,
)
from conveyor.cluster.image import COMPANIONS, ConfigScope, QuotaOwner, companion_of
from conveyor.kernel.errors import StorageFailure

Document = TypeVar("Document")

ROOTS = ("/cluster", "/topics", "/subscriptions", "/schedules", "/quotas", "/config", "/producer_ids")

_LATER_VERSION = (
    "a later version of Conveyor has written this metadata: start that version,"
    " or restore the copy of the data directory that was made before it"
)

REFUSAL: Mapping[str, bytes] = MappingProxyType(
    {
        "/config/brokers/default": msgspec.json.encode({_LATER_VERSION: ""}),
        "/topics/written by a later version": _LATER_VERSION.encode(),
    }
)
"""Nodes that take the place of the old tree. An earlier version logs the name of the setting, which it does not know,
and then ends: the topic is not JSON."""

_NEXT_PRODUCER_ID = "/producer_ids/next"

Nodes = Mapping[str, bytes]
"""Node contents by path."""


class _Partition(msgspec.Struct):
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]


class _Topic(msgspec.Struct):
    id: UUID
    config: dict[str, str]
    partitions: tuple[_Partition, ...]


class _Subscription(msgspec.Struct):
    id: UUID
    topic: str
    topic_id: UUID


class _Schedule(msgspec.Struct):
    topic: str
    topic_id: UUID | None = None


def changes_of(nodes: Nodes) -> list[Change]:
    """Return the changes that create the image which these nodes describe.

    Raises StorageFailure, naming a damaged node.
    """
    topics = {topic.name: topic for topic in _topics(nodes)}
    changes: list[Change] = []
    if "/cluster/id" in nodes:
        changes.append(ClusterNamed(cluster_id=_text("/cluster/id", nodes["/cluster/id"])))
    changes += topics.values()
    changes += _subscriptions(nodes, topics)
    changes += _schedules(nodes, topics)
    changes += [
        QuotasPut(entity=_entity(path), values=_decoded(path, content, dict[str, float]))
        for path, content in _below(nodes, "/quotas")
    ]
    changes += [
        ConfigPut(scope=scope, name=unquote(_name(path)), texts=_decoded(path, content, dict[str, str]))
        for scope in ConfigScope
        for path, content in _below(nodes, f"/config/{scope}")
    ]
    if _NEXT_PRODUCER_ID in nodes:
        next_producer_id = _decoded(_NEXT_PRODUCER_ID, nodes[_NEXT_PRODUCER_ID], int)
        changes.append(ProducerIdsTaken(next_producer_id=next_producer_id))
    return changes


def _topics(nodes: Nodes) -> list[TopicPut]:
    found = {_name(path): _decoded(path, content, _Topic) for path, content in _below(nodes, "/topics")}
    return [
        TopicPut(
            name=name,
            topic_id=topic.id,
            config=topic.config,
            partitions=tuple(
                PartitionState(partition.leader, partition.leader_epoch, partition.replicas, partition.isr)
                for partition in topic.partitions
            ),
        )
        for name, topic in found.items()
        if _owner(name) in found
    ]


def _owner(name: str) -> str:
    """Return the topic that a companion belongs to; for any other topic, its own name."""
    return next((owner for kind in COMPANIONS if (owner := companion_of(kind, name))), name)


def _subscriptions(nodes: Nodes, topics: Mapping[str, TopicPut]) -> Iterator[SubscriptionPut]:
    for path, content in _below(nodes, "/subscriptions"):
        stored, document = _decoded(path, content, _Subscription), _text(path, content)
        topic = topics.get(stored.topic)
        if topic is not None and topic.topic_id == stored.topic_id:
            yield SubscriptionPut(
                name=_name(path), subscription_id=stored.id, topic_id=topic.topic_id, document=document
            )


def _schedules(nodes: Nodes, topics: Mapping[str, TopicPut]) -> Iterator[SchedulePut]:
    for path, content in _below(nodes, "/schedules"):
        stored, document = _decoded(path, content, _Schedule), _text(path, content)
        topic = topics.get(stored.topic)
        if topic is not None and stored.topic_id in (None, topic.topic_id):
            yield SchedulePut(name=_name(path), topic_id=topic.topic_id, document=document)


def _entity(path: str) -> QuotaOwner:
    parts = (part.partition("=") for part in _name(path).split(","))
    return tuple((kind, unquote(name) if equals else None) for kind, equals, name in parts)


def _decoded(path: str, content: bytes, kind: type[Document]) -> Document:
    try:
        return msgspec.json.decode(content, type=kind)
    except msgspec.MsgspecError as error:
        raise StorageFailure(f"metadata store: node {path} is damaged: {error}") from error


def _text(path: str, content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise StorageFailure(f"metadata store: node {path} is damaged: {error}") from error


def _below(nodes: Nodes, parent: str) -> list[tuple[str, bytes]]:
    return [(path, content) for path, content in nodes.items() if path.startswith(parent + "/")]


def _name(path: str) -> str:
    return path.rpartition("/")[2]
