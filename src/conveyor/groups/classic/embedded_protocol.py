"""What consumers of the classic protocol tell each other through the broker: subscriptions and assignments.

    subscription   version, topics, user data; from version 1 owned partitions; 2 generation; 3 rack
    assignment     version, topics and partitions, user data

Source: ConsumerProtocolSubscription.json and ConsumerProtocolAssignment.json of Kafka.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import groupby
from typing import TypeVar

from conveyor.groups.records.record_fields import FieldReader, FieldWriter
from conveyor.kernel.errors import StorageFailure

PROTOCOL_TYPE = "consumer"

_OWNED, _GENERATION, _RACK = 1, 2, 3
_NULL = -1

Decoded = TypeVar("Decoded")
Places = tuple[tuple[str, int], ...]
"""Partitions, by the names of their topics."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassicSubscription:
    """What a member wants to read, and what it reads now."""

    version: int
    topics: tuple[str, ...]
    owned: Places = ()
    rack_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassicAssignment:
    """What a member is to read. `user_data`: what only the group's own assignor understands."""

    partitions: Places = ()
    user_data: bytes = b""


def decode_subscription(content: bytes) -> ClassicSubscription | None:
    """None if that is not a subscription."""
    return _decoded(_subscription, content)


def decode_assignment(content: bytes) -> ClassicAssignment | None:
    """None if that is not an assignment; no bytes are none at all."""
    return _decoded(_assignment, content) if content else ClassicAssignment()


def encode_assignment(version: int, partitions: Iterable[tuple[str, int]]) -> bytes:
    """An assignment without user data."""
    by_topic = [(topic, list(some)) for topic, some in groupby(sorted(partitions), key=lambda each: each[0])]
    out = FieldWriter().int16(version).int32(len(by_topic))
    for topic, some in by_topic:
        out.string(topic).int32(len(some))
        for _, number in some:
            out.int32(number)
    return out.int32(_NULL).done()


def _decoded(decode: Callable[[FieldReader], Decoded], content: bytes) -> Decoded | None:
    try:
        return decode(FieldReader(content))
    except (StorageFailure, UnicodeDecodeError):
        return None


def _subscription(fields: FieldReader) -> ClassicSubscription:
    version, topics = fields.int16(), fields.texts()
    fields.sized_or_none()
    owned = _places(fields) if version >= _OWNED else ()
    if version >= _GENERATION:
        fields.int32()
    rack_id = fields.string() if version >= _RACK else None
    return ClassicSubscription(version=min(max(version, 0), _RACK), topics=topics, owned=owned, rack_id=rack_id)


def _assignment(fields: FieldReader) -> ClassicAssignment:
    fields.int16()
    return ClassicAssignment(partitions=_places(fields), user_data=fields.sized_or_none() or b"")


def _places(fields: FieldReader) -> Places:
    places: list[tuple[str, int]] = []
    for _ in range(fields.array_length()):
        topic = fields.text()
        places += ((topic, number) for number in fields.int32s())
    return tuple(places)
