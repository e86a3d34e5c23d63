"""Record formats of `__consumer_offsets`, compatible with Kafka's tools.

    key 0, 1   group, topic, partition   -> value 0 to 4: offset, leader epoch (3+), metadata, timestamps
    key 2      group                     -> value 0 to 4: protocol, generation, leader, members
    key 3 ...  groups of the consumer protocol: see `consumer_records`
    key 17238  group                     -> value 0, Conveyor's own: silent members and their silence; see `silences`

A null value deletes the entry. All value versions can be read; version 3 is written. An offset of a topic with a known
id is written in version 4, which carries the id as a tagged field, as in Kafka 4.1. Kafka's coordinator and tools skip
unknown keys.
"""

from collections.abc import Mapping
from uuid import UUID

import msgspec

from conveyor.groups.records.consumer_records import ConsumerKey, decode_consumer_key
from conveyor.kernel.errors import StorageFailure
from conveyor.kernel.state_machine import LogRecord
from conveyor.records.record_fields import FieldReader, FieldWriter

_OFFSET_KEYS = (0, 1)
_OFFSET_KEY = 1
_GROUP_KEY = 2
_SILENCE_KEY = 0x4356
_SILENCE_VERSION = 0
_VERSION = 3
_FLEXIBLE = 4
_NEWEST = 4
_TOPIC_ID_TAG = 0
_ID_BYTES = 16


class OffsetKey(msgspec.Struct, frozen=True, kw_only=True):
    """One partition as read by one group."""

    group_id: str
    topic: str
    partition: int


class OffsetValue(msgspec.Struct, frozen=True, kw_only=True):
    """A committed offset. topic_id: None if the topic did not exist at the commit."""

    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp_ms: int
    topic_id: UUID | None = None


class GroupKey(msgspec.Struct, frozen=True, kw_only=True):
    group_id: str


class SilenceKey(msgspec.Struct, frozen=True, kw_only=True):
    """The silence notes of one group."""

    group_id: str


class MemberValue(msgspec.Struct, frozen=True, kw_only=True):
    """The persistent state of a member. `subscription` is the one for the chosen protocol."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


class GroupValue(msgspec.Struct, frozen=True, kw_only=True):
    """The persistent state of a group. `state_timestamp_ms`: when it entered its current state."""

    protocol_type: str
    generation_id: int
    protocol_name: str | None
    leader: str | None
    state_timestamp_ms: int
    members: tuple[MemberValue, ...]


def offset_record(key: OffsetKey, value: OffsetValue | None) -> LogRecord:
    encoded_key = FieldWriter().int16(_OFFSET_KEY).string(key.group_id).string(key.topic).int32(key.partition).done()
    if value is None:
        return LogRecord(encoded_key, None)
    topic_id = value.topic_id
    out = FieldWriter(flexible=topic_id is not None).int16(_VERSION if topic_id is None else _FLEXIBLE)
    out.int64(value.offset).int32(value.leader_epoch).string(value.metadata).int64(value.commit_timestamp_ms)
    if topic_id is not None:
        out.tags({_TOPIC_ID_TAG: topic_id.bytes})
    return LogRecord(encoded_key, out.done())


def group_record(key: GroupKey, value: GroupValue | None) -> LogRecord:
    encoded_key = FieldWriter().int16(_GROUP_KEY).string(key.group_id).done()
    if value is None:
        return LogRecord(encoded_key, None)
    out = FieldWriter().int16(_VERSION).string(value.protocol_type).int32(value.generation_id)
    out.string(value.protocol_name).string(value.leader).int64(value.state_timestamp_ms).int32(len(value.members))
    for member in value.members:
        out.string(member.member_id).string(member.group_instance_id).string(member.client_id)
        out.string(member.client_host).int32(member.rebalance_timeout_ms).int32(member.session_timeout_ms)
        out.sized(member.subscription).sized(member.assignment)
    return LogRecord(encoded_key, out.done())


def silence_record(group_id: str, silences_ms: Mapping[str, int]) -> LogRecord:
    """Return the record of a group's silence notes, or its tombstone if there are none."""
    encoded_key = FieldWriter().int16(_SILENCE_KEY).string(group_id).done()
    if not silences_ms:
        return LogRecord(encoded_key, None)
    out = FieldWriter().int16(_SILENCE_VERSION).int32(len(silences_ms))
    for member_id, silence_ms in silences_ms.items():
        out.string(member_id).int64(silence_ms)
    return LogRecord(encoded_key, out.done())


def decode_key(content: bytes) -> OffsetKey | GroupKey | SilenceKey | ConsumerKey | None:
    """Decode a key. Returns None for a kind that a newer version may have written. Raises StorageFailure."""
    fields = FieldReader(content)
    version = fields.int16()
    if version in _OFFSET_KEYS:
        return OffsetKey(group_id=fields.text(), topic=fields.text(), partition=fields.int32())
    if version == _GROUP_KEY:
        return GroupKey(group_id=fields.text())
    if version == _SILENCE_KEY:
        return SilenceKey(group_id=fields.text())
    return decode_consumer_key(version, fields)


def decode_offset(content: bytes) -> OffsetValue:
    """Decode the value of an offset key. Raises StorageFailure."""
    fields, version = _start(content)
    offset = fields.int64()
    leader_epoch = fields.int32() if version >= 3 else -1
    metadata, commit_timestamp_ms = fields.text(), fields.int64()
    raw_id = fields.tags().get(_TOPIC_ID_TAG, b"") if version >= _FLEXIBLE else b""
    return OffsetValue(
        offset=offset,
        leader_epoch=leader_epoch,
        metadata=metadata,
        commit_timestamp_ms=commit_timestamp_ms,
        topic_id=UUID(bytes=raw_id) if len(raw_id) == _ID_BYTES and any(raw_id) else None,
    )


def decode_group(content: bytes) -> GroupValue:
    """Decode the value of a group key. Raises StorageFailure."""
    fields, version = _start(content)
    protocol_type, generation_id = fields.text(), fields.int32()
    protocol_name, leader = fields.string(), fields.string()
    state_timestamp_ms = fields.int64() if version >= 2 else -1
    members = tuple(_decode_member(fields, version) for _ in range(fields.array_length()))
    return GroupValue(
        protocol_type=protocol_type,
        generation_id=generation_id,
        protocol_name=protocol_name,
        leader=leader,
        state_timestamp_ms=state_timestamp_ms,
        members=members,
    )


def decode_silences(content: bytes) -> dict[str, int]:
    """Return each member's silence in ms, by member id. Raises StorageFailure."""
    fields = FieldReader(content)
    version = fields.int16()
    if version != _SILENCE_VERSION:
        raise StorageFailure(f"a record of silent members has version {version}: start a newer broker")
    return {fields.text(): fields.int64() for _ in range(fields.array_length())}


def _decode_member(fields: FieldReader, version: int) -> MemberValue:
    member_id = fields.text()
    instance_id = fields.string() if version >= 3 else None
    client_id, client_host = fields.text(), fields.text()
    rebalance_timeout_ms = fields.int32() if version >= 1 else -1
    session_timeout_ms = fields.int32()
    subscription, assignment = fields.sized(), fields.sized()
    fields.skip_tags()
    return MemberValue(
        member_id=member_id,
        group_instance_id=instance_id,
        client_id=client_id,
        client_host=client_host,
        rebalance_timeout_ms=session_timeout_ms if rebalance_timeout_ms < 0 else rebalance_timeout_ms,
        session_timeout_ms=session_timeout_ms,
        subscription=subscription,
        assignment=assignment,
    )


def _start(content: bytes) -> tuple[FieldReader, int]:
    fields = FieldReader(content)
    version = fields.int16()
    if not 0 <= version <= _NEWEST:
        raise StorageFailure(f"a record of __consumer_offsets has version {version}: start a newer broker")
    fields.flexible = version >= _FLEXIBLE
    return fields, version
