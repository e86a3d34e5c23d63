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
_VERSION_BYTES = 2
MAX_ITEMS = 20_000
"""The most topics and partitions of one member that are decoded. Content of the permitted size could have two million,
which take seconds.
"""
MAX_GROUP_ITEMS = 40_000
"""The most topics and partitions of all members of a group that are decoded for one request, in 1 us each; the
conversion of a group takes 2 us.
"""

Decoded = TypeVar("Decoded")
Places = tuple[tuple[str, int], ...]
"""Partitions as (topic name, partition number)."""


class ClassicSubscription(msgspec.Struct, frozen=True, kw_only=True):
    """The topics that a member subscribes to, and the partitions that it owns now. items: see `MAX_ITEMS`."""

    version: int
    items: int
    topics: tuple[str, ...]
    owned: Places = ()
    rack_id: str | None = None


class ClassicAssignment(msgspec.Struct, frozen=True, kw_only=True):
    """The partitions assigned to a member. `user_data`: opaque data of the group's assignor. items: see `MAX_ITEMS`."""

    items: int = 0
    partitions: Places = ()
    user_data: bytes = b""


def decode_subscription(content: bytes) -> ClassicSubscription | None:
    """Decode a subscription. Returns None if the content is not one."""
    return _decoded(_subscription, FieldReader(content))


def decode_topics(contents: Iterable[bytes]) -> set[str] | None:
    """Return the topics of the subscriptions of a group's members. The topics of a member are not decoded if the member
    before it has the same, as in most groups.

    Returns None if one of the contents is not a subscription, or if there are more than `MAX_GROUP_ITEMS`.
    """
    topics: set[str] = set()
    encoded, items = b"", 0
    for content in contents:
        if encoded and content.startswith(encoded, _VERSION_BYTES):
            continue
        fields = FieldReader(content)
        names = _decoded(_topics, fields)
        items += len(names or ())
        if names is None or items > MAX_GROUP_ITEMS:
            return None
        topics.update(names)
        encoded = content[_VERSION_BYTES : fields.position]
    return topics


def decode_assignment(content: bytes) -> ClassicAssignment | None:
    """Decode an assignment. Empty content is an empty assignment. Returns None if the content is not an assignment."""
    return _decoded(_assignment, FieldReader(content)) if content else ClassicAssignment()


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


def _decoded(decode: Callable[[FieldReader], Decoded], fields: FieldReader) -> Decoded | None:
    try:
        return decode(fields)
    except (StorageFailure, UnicodeDecodeError):
        return None


def _topics(fields: FieldReader) -> tuple[str, ...]:
    fields.int16()
    return tuple(fields.text() for _ in range(_length(fields, 0)))


def _subscription(fields: FieldReader) -> ClassicSubscription:
    version = fields.int16()
    topics = tuple(fields.text() for _ in range(_length(fields, 0)))
    fields.sized_or_none()
    owned, items = _places(fields, len(topics)) if version >= _OWNED else ((), len(topics))
    if version >= _GENERATION:
        fields.int32()
    return ClassicSubscription(
        version=min(max(version, 0), _RACK),
        items=items,
        topics=topics,
        owned=owned,
        rack_id=fields.string() if version >= _RACK else None,
    )


def _assignment(fields: FieldReader) -> ClassicAssignment:
    fields.int16()
    partitions, items = _places(fields, 0)
    return ClassicAssignment(items=items, partitions=partitions, user_data=fields.sized_or_none() or b"")


def _places(fields: FieldReader, items: int) -> tuple[Places, int]:
    """Read partitions by topic. items: what the content has before them. Returns also what it has with them."""
    places: list[tuple[str, int]] = []
    count = _length(fields, items)
    items += count
    for _ in range(count):
        topic, partitions = fields.text(), _length(fields, items)
        items += partitions
        places += [(topic, fields.int32()) for _ in range(partitions)]
    return tuple(places), items


def _length(fields: FieldReader, items: int) -> int:
    """Read the length of an array. items: what the content has before it. Raises StorageFailure."""
    length = max(fields.array_length(), 0)
    if items + length > MAX_ITEMS:
        raise StorageFailure(f"{items + length} topics and partitions are too many to decode")
    return length
