"""The record format of `__transaction_state`, compatible with Kafka's tools.

    key 0    transactional id (string)
    value 0  producer id int64, producer epoch int16, timeout ms int32, state int8, partitions by topic, last update ms
             int64, start ms int64
    value 1  the same with compact lengths, and tagged fields: 0 previous producer id int64, 1 next producer id int64,
             2 transaction version of the client int16, 3 next producer epoch int16, 17238 last producer epoch int16

A null value deletes the id. Both versions can be read; version 1 is written, with all its tagged fields, because a
coordinator that takes over needs them all (KAFKA-20310, KAFKA-20357). Tag 17238 is Conveyor's own: Kafka has no field
for the last epoch, and its tools skip unknown tags. Keys of other versions are skipped. Source: Kafka's
TransactionLogKey.json and TransactionLogValue.json; KIP-915, KIP-939 (tag 3).
"""

from collections.abc import Set as AbstractSet
from itertools import groupby

from conveyor.kernel.errors import StorageFailure
from conveyor.kernel.ids import NO_PRODUCER_ID, ProducerEpoch, ProducerId, TopicPartition
from conveyor.kernel.state_machine import LogRecord
from conveyor.records.record_fields import FieldReader, FieldWriter
from conveyor.transactions.transaction_value import NO_PRODUCER_EPOCH, TransactionState, TransactionValue

_KEY_VERSION = 0
_VERSION = 1
_PREVIOUS_ID, _NEXT_ID, _CLIENT_VERSION, _NEXT_EPOCH, _LAST_EPOCH = 0, 1, 2, 3, 0x4356


def transaction_record(transactional_id: str, value: TransactionValue | None) -> LogRecord:
    """Return the record of a transactional id's new state, or its tombstone."""
    key = FieldWriter().int16(_KEY_VERSION).string(transactional_id).done()
    return LogRecord(key, None if value is None else _encode(value))


def decode_transactional_id(key: bytes) -> str | None:
    """Return the transactional id of a key, or None if the key is of an unknown version. Raises StorageFailure."""
    reader = FieldReader(key)
    return reader.text() if reader.int16() == _KEY_VERSION else None


def decode_transaction(value: bytes) -> TransactionValue:
    """Decode the value of a record. Raises StorageFailure."""
    version = FieldReader(value).int16()
    if version not in (0, _VERSION):
        raise StorageFailure(f"a record of __transaction_state has the unknown version {version}")
    reader = FieldReader(value, flexible=version == _VERSION)
    reader.int16()
    producer_id, producer_epoch = ProducerId(reader.int64()), ProducerEpoch(reader.int16())
    timeout_ms, state, partitions = reader.int32(), _decode_state(reader.int8()), _decode_partitions(reader)
    last_update_ms, start_ms = reader.int64(), reader.int64()
    tags = reader.tags() if reader.flexible else {}
    next_producer_id = _producer_id(tags, _NEXT_ID)
    next_epoch = (
        NO_PRODUCER_EPOCH if next_producer_id == NO_PRODUCER_ID else 0
    )  # Before KIP-939, Kafka writes no epoch.
    return TransactionValue(
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        timeout_ms=timeout_ms,
        state=state,
        partitions=partitions,
        last_update_ms=last_update_ms,
        start_ms=start_ms,
        previous_producer_id=_producer_id(tags, _PREVIOUS_ID),
        next_producer_id=next_producer_id,
        transaction_version=_int16(tags, _CLIENT_VERSION, 0),
        next_producer_epoch=ProducerEpoch(_int16(tags, _NEXT_EPOCH, next_epoch)),
        last_producer_epoch=ProducerEpoch(_int16(tags, _LAST_EPOCH, NO_PRODUCER_EPOCH)),
    )


def _encode(value: TransactionValue) -> bytes:
    out = FieldWriter(flexible=True).int16(_VERSION).int64(value.producer_id).int16(value.producer_epoch)
    out.int32(value.timeout_ms).int8(value.state)
    _encode_partitions(out, value.partitions)
    out.int64(value.last_update_ms).int64(value.start_ms)
    tags = {
        _PREVIOUS_ID: FieldWriter().int64(value.previous_producer_id).done(),
        _NEXT_ID: FieldWriter().int64(value.next_producer_id).done(),
        _CLIENT_VERSION: FieldWriter().int16(value.transaction_version).done(),
        _NEXT_EPOCH: FieldWriter().int16(value.next_producer_epoch).done(),
        _LAST_EPOCH: FieldWriter().int16(value.last_producer_epoch).done(),
    }
    return out.tags(tags).done()


def _encode_partitions(out: FieldWriter, partitions: AbstractSet[TopicPartition]) -> None:
    by_topic = [(topic, list(group)) for topic, group in groupby(sorted(partitions), key=lambda place: place.topic)]
    out.array_length(len(by_topic))
    for topic, places in by_topic:
        out.string(topic).array_length(len(places))
        for place in places:
            out.int32(place.partition)
        out.tags()


def _decode_partitions(reader: FieldReader) -> AbstractSet[TopicPartition]:
    found = set()
    for _ in range(reader.array_length()):
        topic = reader.text()
        found |= {TopicPartition(topic, partition) for partition in reader.int32s()}
        reader.skip_tags()
    return frozenset(found)


def _decode_state(number: int) -> TransactionState:
    try:
        return TransactionState(number)
    except ValueError as cause:
        raise StorageFailure(f"a record of __transaction_state has the unknown state {number}") from cause


def _producer_id(tags: dict[int, bytes], tag: int) -> ProducerId:
    return ProducerId(FieldReader(tags[tag]).int64()) if tag in tags else NO_PRODUCER_ID


def _int16(tags: dict[int, bytes], tag: int, default: int) -> int:
    return FieldReader(tags[tag]).int16() if tag in tags else default
