"""Types for numbers that must not be confused with each other."""

from collections.abc import Callable
from typing import NamedTuple, NewType
from uuid import UUID

Offset = NewType("Offset", int)
"""Position of a record in a partition. Ranges are half-open."""

LeaderEpoch = NewType("LeaderEpoch", int)
"""Increases by one with each new leader of a partition."""

FIRST_LEADER_EPOCH = LeaderEpoch(0)

ProducerId = NewType("ProducerId", int)
ProducerEpoch = NewType("ProducerEpoch", int)
NodeId = NewType("NodeId", int)
TopicId = NewType("TopicId", UUID)

NewId = Callable[[], UUID]
"""Returns a random id that cannot be guessed."""

NO_PRODUCER_ID = ProducerId(-1)
NO_SEQUENCE = -1
FIRST_GATEWAY_ID = 1 << 20
"""From here on, node ids are those of gateways: brokers that hold no partitions, and are in no image."""
_NODE_IDS = 1 << 31
NO_TIMESTAMP = -1


def key_of_id(topic_id: UUID | None) -> bytes | None:
    """Return what stands for a topic id that a client has chosen as the key of a set or a mapping: Python's hashes of
    UUIDs have no salt, so thousands of ids can have the same one.
    """
    return None if topic_id is None else topic_id.bytes


def random_secret(new_id: NewId) -> bytes:
    """Return a secret of 32 bytes: a random UUID has 122 random bits."""
    return new_id().bytes + new_id().bytes


def gateway_id(random_id: UUID) -> NodeId:
    """Return the id of a new gateway. The ids of two gateways are equal with a probability of 1 in 2,146,435,072."""
    return NodeId(FIRST_GATEWAY_ID + random_id.int % (_NODE_IDS - FIRST_GATEWAY_ID))


def is_gateway(node_id: int) -> bool:
    return node_id >= FIRST_GATEWAY_ID


class ProducerIdentity(NamedTuple):
    producer_id: ProducerId
    producer_epoch: ProducerEpoch


class TopicPartition(NamedTuple):
    """One partition of one topic. `str` returns the name of its directory."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"
