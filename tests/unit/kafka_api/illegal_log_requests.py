"""Invalid requests about logs: Produce, Fetch, ListOffsets, Metadata and others.

Source: Kafka's KafkaApis, ReplicaManager, ProduceRequest, UnifiedLog, LogValidator and FetchSession.
"""

from typing import Any

from crc32c import crc32c
from kio.schema.errors import ErrorCode as E

from conveyor.records.batch import CRC_START, HEADER, MAGIC_END, read_header
from conveyor.records.compression import GZIP, ZSTD
from conveyor.records.record import encode_batch
from tests.unit.kafka_api.illegal_row import Given, Row, Values
from tests.unit.kafka_api.illegal_world import NOW_MS, record_batch

SOUND = record_batch()
KEYLESS = encode_batch([(NOW_MS, None, b"value", [])])
GZIPPED = encode_batch([(NOW_MS, b"key", b"value", [])], codec=GZIP)
ZSTANDARD = encode_batch([(NOW_MS, b"key", b"value", [])], codec=ZSTD)


def altered(batch: bytes = SOUND, records: bytes | None = None, **fields: int) -> bytes:
    """Return a batch with changed header fields or other records, and a recomputed checksum."""
    changed = bytearray(HEADER.pack(*read_header(batch)._replace(**fields)))
    changed += batch[HEADER.size :] if records is None else records
    changed[MAGIC_END:CRC_START] = crc32c(memoryview(changed)[CRC_START:]).to_bytes(4, "big")
    return bytes(changed)


def produce(records: bytes | None = SOUND, *, topic: str = "t", index: int = 0, acks: int = -1, **more: Any) -> Values:
    known_id = Given.TOPIC_ID if topic == "t" else Given.UNKNOWN_ID
    topic_data = {"name": topic, "topic_id": known_id, "partition_data": [{"index": index, "records": records}]}
    return {"acks": acks, "timeout": 1000, "transactional_id": None, "topic_data": [topic_data]} | more


def idempotent(**more: int) -> bytes:
    """Return a batch of producer 9, which has written sequence 0 in epoch 2."""
    producer = {"producer_id": 9, "producer_epoch": 2, "base_sequence": 1} | more
    return encode_batch([(NOW_MS, b"key", b"value", [])], **producer)


PRODUCE = [
    Row(0, (3, 13), "acks of 2", produce(acks=2), E.invalid_required_acks),
    Row(0, (13,), "acks below -1", produce(acks=-2), E.invalid_required_acks),
    Row(0, (3, 12), "an unknown topic", produce(topic="nothing"), E.unknown_topic_or_partition),
    Row(0, (13,), "an unknown topic id", produce(topic="nothing", index=7), E.unknown_topic_id),
    Row(0, (12,), "a partition beyond the last", produce(index=1), E.unknown_topic_or_partition),
    Row(0, (12,), "a negative partition", produce(index=-1), E.unknown_topic_or_partition),
    Row(0, (12,), "the broker's own topic", produce(topic="__consumer_offsets"), E.invalid_topic_exception),
    Row(0, (3, 12), "a transactional id, and a plain batch", produce(transactional_id="x"), E.invalid_record),
    Row(0, (3, 12), "a transaction with acks=1", produce(transactional_id="x", acks=1), E.invalid_required_acks),
    Row(0, (12,), "empty records", produce(b""), E.invalid_record),
    Row(0, (12,), "bytes too few for a batch", produce(b"short"), E.invalid_record),
    Row(0, (12,), "a batch that is cut off", produce(SOUND[:-1]), E.invalid_record),
    Row(0, (12,), "two batches", produce(SOUND + SOUND), E.invalid_record),
    Row(0, (3, 12), "a wrong checksum", produce(SOUND[:-1] + b"!"), E.corrupt_message),
    Row(0, (3, 12), "magic 1", produce(altered(magic=1)), E.invalid_record),
    Row(0, (12,), "magic 3", produce(altered(magic=3)), E.corrupt_message),
    Row(0, (12,), "a batch length below its header's", produce(altered(batch_length=20)), E.corrupt_message),
    Row(0, (12,), "a negative batch length", produce(altered(batch_length=-1)), E.corrupt_message),
    Row(0, (12,), "a base offset", produce(altered(base_offset=5)), E.invalid_record),
    Row(0, (12,), "a count of no records", produce(altered(records_count=0)), E.invalid_record),
    Row(0, (12,), "a negative count", produce(altered(records_count=-1)), E.invalid_record),
    Row(0, (12,), "a last offset delta that is no count", produce(altered(last_offset_delta=3)), E.invalid_record),
    Row(0, (12,), "a control batch", produce(altered(attributes=0x20)), E.invalid_record),
    Row(0, (12,), "an unknown compression", produce(altered(attributes=5)), E.unsupported_compression_type),
    Row(0, (3, 6), "zstd in an old version", produce(ZSTANDARD), E.unsupported_compression_type),
    Row(0, (12,), "a producer id without a sequence", produce(altered(producer_id=3)), E.invalid_record),
    Row(0, (12,), "an old producer epoch", produce(idempotent(producer_epoch=1)), E.invalid_producer_epoch),
    Row(0, (12,), "a past sequence", produce(idempotent(base_sequence=(1 << 31) - 1)), E.out_of_order_sequence_number),
    Row(
        0,
        (12,),
        "a gap in the sequence",
        produce(idempotent(base_sequence=5), topic="trimmed"),
        E.out_of_order_sequence_number,
    ),
    Row(
        0,
        (12,),
        "a new epoch in mid-sequence",
        produce(idempotent(producer_epoch=3), topic="trimmed"),
        E.out_of_order_sequence_number,
    ),
    Row(0, (3, 12), "a batch too large", produce(record_batch(bytes(200)), topic="small"), E.message_too_large),
    Row(0, (12,), "too few replicas for acks=all", produce(topic="replicated"), E.not_enough_replicas),
    Row(0, (12,), "a time too far ahead", produce(record_batch(ms=NOW_MS + 5000), topic="timed"), E.invalid_timestamp),
    Row(0, (12,), "a time too long ago", produce(record_batch(ms=NOW_MS - 5000), topic="timed"), E.invalid_timestamp),
    Row(0, (12,), "no key on a compacted topic", produce(KEYLESS, topic="compacted"), E.invalid_record),
    Row(
        0,
        (12,),
        "junk for compressed records, where they are looked at",
        produce(altered(GZIPPED, records=bytes(len(GZIPPED) - HEADER.size)), topic="compacted"),
        E.invalid_record,
    ),
    Row(
        0,
        (12,),
        "records that reach beyond their batch, where they are looked at",
        produce(altered(records=b"\xfe" * (len(SOUND) - HEADER.size)), topic="compacted"),
        E.invalid_record,
    ),
]


def fetch(topic: str = "t", partition: int = 0, offset: int = 0, leader_epoch: int = -1, **more: Any) -> Values:
    position = {"partition": partition, "fetch_offset": offset, "current_leader_epoch": leader_epoch}
    known_id = Given.TOPIC_ID if topic == "t" else Given.UNKNOWN_ID
    topic_fields = {"topic": topic, "topic_id": known_id, "partitions": [position | {"partition_max_bytes": 1 << 20}]}
    limits = {"max_wait": 0, "min_bytes": 0, "max_bytes": 1 << 20}
    return limits | {"topics": [topic_fields], "forgotten_topics_data": []} | more


GONE_ON: Values = {"topics": [], "session_id": Given.SESSION}

FETCH = [
    Row(1, (4, 12), "an unknown topic", fetch("nothing"), E.unknown_topic_or_partition),
    Row(1, (13, 18), "an unknown topic id", fetch("nothing"), E.unknown_topic_id),
    Row(1, (4, 12), "a partition beyond the last", fetch(partition=1), E.unknown_topic_or_partition),
    Row(1, (12,), "a negative partition", fetch(partition=-1), E.unknown_topic_or_partition),
    Row(1, (4, 18), "an offset beyond the end", fetch(offset=99), E.offset_out_of_range),
    Row(1, (4, 18), "a negative offset", fetch(offset=-1), E.offset_out_of_range),
    Row(1, (12,), "an offset below the log's start", fetch("trimmed"), E.offset_out_of_range),
    Row(1, (9, 18), "a leader epoch yet to come", fetch(leader_epoch=7), E.unknown_leader_epoch),
    Row(1, (4, 7, 12, 14), "a replica's fetch", fetch(replica_id=2), E.invalid_request),
    Row(1, (15, 18), "a replica's fetch", fetch(replica_state={"replica_id": 2}), E.invalid_request),
    Row(1, (4, 14), "a debugging consumer", fetch(replica_id=-2), E.none),
    Row(1, (7, 18), "an unknown session", fetch(session_id=5, session_epoch=1), E.fetch_session_id_not_found),
    Row(1, (7, 18), "no session to go on with", fetch(session_epoch=1), E.fetch_session_id_not_found),
    Row(1, (7, 12), "a session's wrong epoch", fetch(**GONE_ON, session_epoch=9), E.invalid_fetch_session_epoch),
    Row(1, (7, 12), "a session's negative epoch", fetch(**GONE_ON, session_epoch=-2), E.invalid_fetch_session_epoch),
    Row(1, (13,), "ids in a session of names", fetch(**GONE_ON, session_epoch=1), E.fetch_session_topic_id_error),
]


def list_offsets(topic: str = "t", partition: int = 0, timestamp: int = -1, leader_epoch: int = -1) -> Values:
    asked = {"partition_index": partition, "timestamp": timestamp, "current_leader_epoch": leader_epoch}
    return {"replica_id": -1, "isolation_level": 0, "timeout": 1000, "topics": [{"name": topic, "partitions": [asked]}]}


TWICE: Values = {"name": "t", "partitions": [{"partition_index": 0, "timestamp": -1}] * 2}

LIST_OFFSETS = [
    Row(2, (1, 11), "an unknown topic", list_offsets("nothing"), E.unknown_topic_or_partition),
    Row(2, (1, 11), "a partition beyond the last", list_offsets(partition=1), E.unknown_topic_or_partition),
    Row(2, (11,), "a negative partition", list_offsets(partition=-1), E.unknown_topic_or_partition),
    Row(2, (4, 11), "a leader epoch yet to come", list_offsets(leader_epoch=7), E.unknown_leader_epoch),
    Row(2, (1, 11), "a time without meaning", list_offsets(timestamp=-7), E.unsupported_version),
    Row(2, (1, 6), "the newest time, in an old version", list_offsets(timestamp=-3), E.unsupported_version),
    Row(2, (7,), "the earliest local, in an old version", list_offsets(timestamp=-4), E.unsupported_version),
    Row(2, (8,), "the latest tiered, in an old version", list_offsets(timestamp=-5), E.unsupported_version),
    Row(2, (10,), "the earliest pending, in an old version", list_offsets(timestamp=-6), E.unsupported_version),
    Row(2, (9, 11), "the latest tiered, where nothing is", list_offsets(timestamp=-5), E.none),
    Row(2, (11,), "the earliest pending, where nothing is tiered", list_offsets(timestamp=-6), E.none),
    Row(2, (1, 11), "a partition named twice", list_offsets() | {"topics": [TWICE]}, E.invalid_request),
]


def metadata(name: str | None = None, topic_id: Any = None) -> Values:
    flags = ("include_cluster_authorized_operations", "include_topic_authorized_operations")
    asked = {"topics": [{"name": name, "topic_id": topic_id}], "allow_auto_topic_creation": True}
    return asked | dict.fromkeys(flags, False)


METADATA = [
    Row(3, (0, 13), "an unknown topic", metadata("nothing"), E.unknown_topic_or_partition),
    Row(3, (0, 13), "a name with spaces", metadata("no spaces"), E.invalid_topic_exception),
    Row(3, (0, 13), "an empty name", metadata(""), E.invalid_topic_exception),
    Row(3, (13,), "a name that is a directory", metadata(".."), E.invalid_topic_exception),
    Row(3, (13,), "a name too long", metadata("n" * 250), E.invalid_topic_exception),
    Row(3, (12, 13), "an unknown id", metadata(topic_id=Given.UNKNOWN_ID), E.unknown_topic_id),
    Row(3, (10, 11), "an id, in an old version", metadata(topic_id=Given.TOPIC_ID), E.invalid_request),
    Row(3, (10, 11), "a null name, in an old version", metadata(), E.invalid_request),
    Row(3, (12, 13), "name and id", metadata("t", Given.TOPIC_ID), E.invalid_request),
    Row(3, (10, 11), "name and id, in an old version", metadata("t", Given.TOPIC_ID), E.invalid_request),
]


def epoch_end(topic: str = "t", partition: int = 0, current: int = -1) -> Values:
    asked = {"partition": partition, "leader_epoch": 0, "current_leader_epoch": current}
    return {"replica_id": -1, "topics": [{"topic": topic, "partitions": [asked]}]}


OFFSET_FOR_LEADER_EPOCH = [
    Row(23, (2, 4), "an unknown topic", epoch_end("nothing"), E.unknown_topic_or_partition),
    Row(23, (4,), "a negative partition", epoch_end(partition=-1), E.unknown_topic_or_partition),
    Row(23, (2, 4), "a leader epoch yet to come", epoch_end(current=7), E.unknown_leader_epoch),
]


def init_producer_id(transactional_id: str | None = None, producer_id: int = -1, producer_epoch: int = -1) -> Values:
    producer = {"producer_id": producer_id, "producer_epoch": producer_epoch}
    return producer | {"transactional_id": transactional_id, "transaction_timeout": 1000}


INIT_PRODUCER_ID = [
    Row(22, (0, 6), "a transactional id, at a broker that is no coordinator", init_producer_id("x"), E.not_coordinator),
    Row(22, (0, 6), "an empty transactional id", init_producer_id(""), E.invalid_request),
    Row(22, (3, 6), "a producer id without its epoch", init_producer_id(producer_id=5), E.invalid_request),
    Row(22, (3, 6), "an epoch without its producer id", init_producer_id(producer_epoch=5), E.invalid_request),
]


def delete_records(topic: str = "t", partition: int = 0, offset: int = 0) -> Values:
    asked = {"partition_index": partition, "offset": offset}
    return {"topics": [{"name": topic, "partitions": [asked]}], "timeout": 1000}


DELETE_RECORDS = [
    Row(21, (0, 2), "an unknown topic", delete_records("nothing"), E.unknown_topic_or_partition),
    Row(21, (2,), "a negative partition", delete_records(partition=-1), E.unknown_topic_or_partition),
    Row(21, (0, 2), "an offset beyond the high watermark", delete_records(offset=99), E.offset_out_of_range),
    Row(21, (2,), "an offset below -1", delete_records(offset=-2), E.offset_out_of_range),
    Row(21, (2,), "an offset below the log's start: it is gone already", delete_records("trimmed"), E.none),
    Row(21, (2,), "a compacted topic", delete_records("compacted"), E.policy_violation),
    Row(21, (2,), "the broker's own topic", delete_records("__consumer_offsets"), E.invalid_topic_exception),
]


def describe_producers(topic: str = "t", partition: int = 0) -> Values:
    return {"topics": [{"name": topic, "partition_indexes": (partition,)}]}


DESCRIBE_PRODUCERS = [
    Row(61, (0,), "an unknown topic", describe_producers("nothing"), E.unknown_topic_or_partition),
    Row(61, (0,), "a negative partition", describe_producers(partition=-1), E.unknown_topic_or_partition),
    Row(61, (0,), "a name with spaces", describe_producers("no spaces"), E.invalid_topic_exception),
]

ROWS = [
    *PRODUCE,
    *FETCH,
    *LIST_OFFSETS,
    *METADATA,
    *OFFSET_FOR_LEADER_EPOCH,
    *INIT_PRODUCER_ID,
    *DELETE_RECORDS,
    *DESCRIBE_PRODUCERS,
]
