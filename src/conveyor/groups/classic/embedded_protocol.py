"""The consumer embedded protocol: subscriptions and assignments that classic consumers exchange through the broker.

    subscription   version, topics, user data; from version 1 owned partitions; 2 generation; 3 rack
    assignment     version, topics and partitions, user data

Source: ConsumerProtocolSubscription.json and ConsumerProtocolAssignment.json of Kafka.
"""

from collections.abc import Callable, Iterable
from itertools import groupby
from typing import TypeVar

import msgspec

from conveyor.kernel.errors import StorageFailure
from conveyor.records.record_fields import FieldReader, FieldWriter

PROTOCOL_TYPE = "consumer"

_OWNED, _GENERATION, _RACK = 1, 2, 3
_NULL = -1
_MAX_ITEMS = 100_000
"""Topics or partitions of one member. Content of the permitted size could have two million, which take seconds."""

Decoded = TypeVar("Decoded")
Places = tuple[tuple[str, int], ...]
"""Partitions as (topic name, partition number)."""


class ClassicSubscription(msgspec.Struct, frozen=True, kw_only=True):
    """The topics that a member subscribes to, and the partitions that it owns now."""

    version: int
    topics: tuple[str, ...]
    owned: Places = ()
    rack_id: str | None = None


class ClassicAssignment(msgspec.Struct, frozen=True, kw_only=True):
    """The partitions assigned to a member. `user_data`: opaque data of the group's assignor."""

    partitions: Places = ()
    user_data: bytes = b""


def decode_subscription(content: bytes) -> ClassicSubscription | None:
    """Decode a subscription. Returns None if the content is not one."""
    return _decoded(_subscription, content)


def decode_assignment(content: bytes) -> ClassicAssignment | None:
    """Decode an assignment. Empty content is an empty assignment. Returns None if the content is not an assignment."""
    return _decoded(_assignment, content) if content else ClassicAssignment()


def encode_assignment(version: int, partitions: Iterable[tuple[str, int]]) -> bytes:
    """Encode an assignment without user data."""
    by_topic = [
        (topic, list(places)) for topic, places in groupby(sorted(partitions), key=lambda partition: partition[0])
    ]
    out = FieldWriter().int16(version).int32(len(by_topic))
    for topic, places in by_topic:
        out.string(topic).int32(len(places))
        for _, number in places:
            out.int32(number)
    return out.int32(_NULL).done()


def _decoded(decode: Callable[[FieldReader], Decoded], content: bytes) -> Decoded | None:
    try:
        return decode(FieldReader(content))
    except (StorageFailure, UnicodeDecodeError):
        return None


def _subscription(fields: FieldReader) -> ClassicSubscription:
    version, topics = fields.int16(), tuple(fields.text() for _ in range(_length(fields)))
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
    for _ in range(_length(fields)):
        topic = fields.text()
        places += [(topic, fields.int32()) for _ in range(_length(fields, len(places)))]
    return tuple(places)


def _length(fields: FieldReader, before: int = 0) -> int:
    """Read the length of an array. before: the items that the content has before it. Raises StorageFailure."""
    length = fields.array_length()
    if before + length > _MAX_ITEMS:
        raise StorageFailure(f"{before + length} topics or partitions are too many to decode")
    return length
