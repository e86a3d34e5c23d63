"""Types for numbers that must not be confused with each other."""

from typing import NamedTuple, NewType
from uuid import UUID

Offset = NewType("Offset", int)
"""Position of a record in a partition. Ranges are half-open."""

LeaderEpoch = NewType("LeaderEpoch", int)
"""Increases by one with each new leader of a partition."""

ProducerId = NewType("ProducerId", int)
ProducerEpoch = NewType("ProducerEpoch", int)
NodeId = NewType("NodeId", int)
TopicId = NewType("TopicId", UUID)

NO_PRODUCER_ID = ProducerId(-1)
NO_SEQUENCE = -1
NO_TIMESTAMP = -1


class TopicPartition(NamedTuple):
    """One partition of one topic. `str` returns the name of its directory."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"
