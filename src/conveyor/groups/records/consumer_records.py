"""Record formats of consumer protocol groups in `__consumer_offsets`, compatible with Kafka's.

    key  3  group           -> group epoch
    key  4  group           -> subscribed topics: id, name, number of partitions
    key  5  group, member   -> subscription
    key  6  group           -> epoch of the target assignment
    key  7  group, member   -> target assignment
    key  8  group, member   -> member epoch, state, assigned and pending partitions

A null value deletes the entry. Values have version 0, which is flexible. Kafka also stores the topics that a pattern
matches (key 16). This broker neither writes nor reads them: see `conveyor.groups.consumer.pattern_matches`.
"""

from collections.abc import Callable, Iterable, Mapping
from enum import IntEnum
from uuid import UUID

import msgspec

from conveyor.groups.known_topics import Assigned, TopicIdPartition, sorted_ids
from conveyor.groups.records.consumer_member import ClassicMember, Current, MemberState, MemberSubscription
from conveyor.kernel.errors import StorageFailure
from conveyor.kernel.state_machine import LogRecord
from conveyor.records.record_fields import FieldReader, FieldWriter

SubscribedTopics = Mapping[str, tuple[UUID, int]]
"""By topic name: the topic's id and partition count."""

_VERSION = 0
_CLASSIC_TAG = 0
_PRESENT = 1


class ConsumerKeyKind(IntEnum):
    """The first two bytes of a key."""

    GROUP = 3
    TOPICS = 4
    SUBSCRIPTION = 5
    TARGET_EPOCH = 6
    TARGET = 7
    CURRENT = 8


_KINDS = {kind.value: kind for kind in ConsumerKeyKind}
_MEMBER_KINDS = (ConsumerKeyKind.CURRENT, ConsumerKeyKind.TARGET, ConsumerKeyKind.SUBSCRIPTION)


class ConsumerKey(msgspec.Struct, frozen=True, kw_only=True):
    """A decoded key. `name` is a member id, for the kinds that have one."""

    kind: ConsumerKeyKind
    group_id: str
    name: str = ""


def decode_consumer_key(version: int, fields: FieldReader) -> ConsumerKey | None:
    """Decode the rest of a key. Returns None for an unknown kind. Raises StorageFailure."""
    kind = _KINDS.get(version)
    if kind is None:
        return None
    return ConsumerKey(kind=kind, group_id=fields.text(), name=fields.text() if kind in _MEMBER_KINDS else "")


def member_key_bytes(group_id: str, member_id: str) -> int:
    """Return the size of the keys of a member's three records, and so of the tombstones that delete them."""
    return len(_MEMBER_KINDS) * len(_key(ConsumerKeyKind.SUBSCRIPTION, group_id, member_id))


def member_tombstones(group_id: str, member_id: str) -> list[LogRecord]:
    return [tombstone(kind, group_id, member_id) for kind in _MEMBER_KINDS]


def tombstone(kind: ConsumerKeyKind, group_id: str, name: str = "") -> LogRecord:
    return LogRecord(_key(kind, group_id, name), None)


def epoch_record(group_id: str, epoch: int) -> LogRecord:
    return LogRecord(_key(ConsumerKeyKind.GROUP, group_id), _value().int32(epoch).tags().done())


def target_epoch_record(group_id: str, epoch: int) -> LogRecord:
    return LogRecord(_key(ConsumerKeyKind.TARGET_EPOCH, group_id), _value().int32(epoch).tags().done())


def topics_record(group_id: str, topics: SubscribedTopics) -> LogRecord:
    out = _value().array_length(len(topics))
    for name, (topic_id, partition_count) in sorted(topics.items()):
        out.uuid(topic_id).string(name).int32(partition_count).array_length(0).tags()
    return LogRecord(_key(ConsumerKeyKind.TOPICS, group_id), out.tags().done())


def subscription_record(group_id: str, member_id: str, value: MemberSubscription) -> LogRecord:
    out = _value().string(value.instance_id).string(value.rack_id).string(value.client_id).string(value.client_host)
    _write_all(out, sorted(value.topics), out.string)
    out.string(value.pattern).int32(value.rebalance_timeout_ms).string(value.assignor)
    out.tags({} if value.classic is None else {_CLASSIC_TAG: _classic(value.classic)})
    return LogRecord(_key(ConsumerKeyKind.SUBSCRIPTION, group_id, member_id), out.done())


def target_record(group_id: str, member_id: str, target: Assigned) -> LogRecord:
    out = _value()
    _write_partitions(out, target)
    return LogRecord(_key(ConsumerKeyKind.TARGET, group_id, member_id), out.tags().done())


def current_record(group_id: str, member_id: str, current: Current) -> LogRecord:
    out = _value().int32(current.epoch).int32(current.previous_epoch).int8(current.state.value)
    _write_partitions(out, current.assigned)
    _write_partitions(out, current.revoking)
    return LogRecord(_key(ConsumerKeyKind.CURRENT, group_id, member_id), out.tags().done())


def decode_epoch(content: bytes) -> int:
    """Return the epoch in a record of a group or of its target assignment. This and all decoders below raise
    StorageFailure.
    """
    return _start(content).int32()


def decode_topics(content: bytes) -> SubscribedTopics:
    fields = _start(content)
    topics = {}
    for _ in range(fields.array_length()):
        topic_id, name, partition_count = fields.uuid(), fields.text(), fields.int32()
        for _ in range(fields.array_length()):
            fields.int32()
            fields.texts()
            fields.tags()
        fields.tags()
        topics[name] = (topic_id, partition_count)
    return topics


def decode_subscription(content: bytes) -> MemberSubscription:
    fields = _start(content)
    instance_id, rack_id, client_id, client_host = fields.string(), fields.string(), fields.text(), fields.text()
    topics, pattern = frozenset(fields.texts()), fields.string()
    rebalance_timeout_ms, assignor = fields.int32(), fields.string()
    classic = fields.tags().get(_CLASSIC_TAG)
    return MemberSubscription(
        instance_id=instance_id,
        rack_id=rack_id,
        client_id=client_id,
        client_host=client_host,
        topics=topics,
        pattern=pattern,
        rebalance_timeout_ms=rebalance_timeout_ms,
        assignor=assignor,
        classic=None if classic is None else _decode_classic(classic),
    )


def decode_target(content: bytes) -> Assigned:
    return _read_partitions(_start(content))


def decode_current(content: bytes) -> Current:
    fields = _start(content)
    epoch, previous_epoch, state = fields.int32(), fields.int32(), fields.int8()
    if state not in {known_state.value for known_state in MemberState}:
        raise StorageFailure(f"a record of __consumer_offsets has the member state {state}: start a newer broker")
    return Current(
        epoch=epoch,
        previous_epoch=previous_epoch,
        state=MemberState(state),
        assigned=_read_partitions(fields),
        revoking=_read_partitions(fields),
    )


def _key(kind: ConsumerKeyKind, group_id: str, name: str = "") -> bytes:
    out = FieldWriter().int16(kind).string(group_id)
    return (out.string(name) if kind in _MEMBER_KINDS else out).done()


def _value() -> FieldWriter:
    return FieldWriter(flexible=True).int16(_VERSION)


def _write_all(out: FieldWriter, texts: Iterable[str], write: Callable[[str], object]) -> None:
    items = tuple(texts)
    out.array_length(len(items))
    for text in items:
        write(text)


def _write_partitions(out: FieldWriter, partitions: Assigned) -> None:
    by_topic: dict[UUID, list[int]] = {}
    for topic_id, number in partitions:
        by_topic.setdefault(topic_id, []).append(number)
    out.array_length(len(by_topic))
    for topic_id in sorted_ids(by_topic):
        out.uuid(topic_id).array_length(len(by_topic[topic_id]))
        for number in sorted(by_topic[topic_id]):
            out.int32(number)
        out.tags()


def _read_partitions(fields: FieldReader) -> Assigned:
    partitions: set[TopicIdPartition] = set()
    for _ in range(fields.array_length()):
        topic_id = fields.uuid()
        partitions.update((topic_id, number) for number in fields.int32s())
        fields.tags()
    return frozenset(partitions)


def _classic(value: ClassicMember) -> bytes:
    out = FieldWriter(flexible=True).int8(_PRESENT).int32(value.session_timeout_ms).array_length(len(value.protocols))
    for name, metadata in value.protocols:
        out.string(name).sized(metadata).tags()
    return out.tags().done()


def _decode_classic(content: bytes) -> ClassicMember | None:
    fields = FieldReader(content, flexible=True)
    if fields.int8() != _PRESENT:
        return None
    session_timeout_ms, protocols = fields.int32(), []
    for _ in range(fields.array_length()):
        name, metadata = fields.text(), fields.sized()
        fields.tags()
        protocols.append((name, metadata))
    return ClassicMember(session_timeout_ms=session_timeout_ms, protocols=tuple(protocols))


def _start(content: bytes) -> FieldReader:
    fields = FieldReader(content, flexible=True)
    version = fields.int16()
    if version != _VERSION:
        raise StorageFailure(f"a record of __consumer_offsets has version {version}: start a newer broker")
    return fields
