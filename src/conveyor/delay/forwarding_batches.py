"""Builds the batches that execute an intent: the records as the topic stores them.

A batch that is forwarded whole keeps its producer's bytes, except for the producer id: the inbox has already checked
the sequences, and the forwarder is the topic's only producer. Records forwarded singly are packed together. They keep
key, value, headers and timestamp. The topic's `compression.type` applies; without one they are not compressed.

A topic that stamps records gives them the time of forwarding. `conveyor-delay-ms` would count from that time, so it is
replaced by `conveyor-deliver-at-ms` with the original due time.
"""

from collections.abc import Iterator

from conveyor.delay.forwarding_records import Intent, Range
from conveyor.kernel.errors import StorageFailure
from conveyor.log.record_source import MessageSource, StillPacked
from conveyor.records import compression
from conveyor.records.batch import COMPRESSION_MASK, BatchHeader, without_producer
from conveyor.records.message import Message
from conveyor.records.message_attributes import DELAY_MS, DELIVER_AT_MS, read_attributes
from conveyor.records.record import Header, encode_batch
from conveyor.records.repack import AS_PRODUCED, CODECS
from conveyor.records.timestamps import stamps_records
from conveyor.settings.tree import TopicSettings

MAX_DELAYED_BYTES = 8 << 20
"""The most decompressed bytes of a compressed batch with delayed messages, because it is unpacked on the event loop."""

_BATCH_BYTES = 128 << 10
_HEADER_BYTES = 61
_RECORD_BYTES = 40

PackedRecord = tuple[int, bytes | None, bytes | None, tuple[Header, ...]]


def batches_of(intent: Intent, inbox: MessageSource, limit_offset: int, topic: TopicSettings) -> Iterator[bytes]:
    """Yield the batches in the intent's order.

    limit_offset: the inbox's last stable offset. Raises StorageFailure, also for lost records.
    """
    codec = compression.NONE if topic.compression_type == AS_PRODUCED else CODECS[topic.compression_type]
    room = min(_BATCH_BYTES, topic.max_message_bytes - _HEADER_BYTES)
    loose: list[PackedRecord] = []
    size = 0
    for run in intent.ranges:
        whole = _whole_batch(run, inbox, limit_offset, topic)
        for record in _records(run, inbox, topic) if whole is None else ():
            record_bytes = _size(record)
            if loose and size + record_bytes > room:
                yield encode_batch(loose, codec=codec)
                loose, size = [], 0
            loose.append(record)
            size += record_bytes
        if whole is not None:
            if loose:
                yield encode_batch(loose, codec=codec)
                loose, size = [], 0
            yield without_producer(whole)
    if loose:
        yield encode_batch(loose, codec=codec)


def _whole_batch(run: Range, inbox: MessageSource, limit_offset: int, topic: TopicSettings) -> bytes | None:
    """Return the bytes of the batch that a run covers, if the batch is forwarded unchanged."""
    start, end = run
    for header, _, batch in inbox.batches(start, limit_offset, 1):
        if header.base_offset == start and header.next_offset == end and header.records_count == end - start:
            return None if _is_better_packed(header, inbox, topic) else batch
    return None


def _is_better_packed(header: BatchHeader, inbox: MessageSource, topic: TopicSettings) -> bool:
    """Small batches are costly for readers, so they are repacked; a record compressed on its own is not.

    A batch that cannot be read, or not quickly, is forwarded unchanged.
    """
    if header.records_count > 1 or (header.attributes & COMPRESSION_MASK and not stamps_records(topic)):
        return False
    try:
        return inbox.get(header.base_offset, MAX_DELAYED_BYTES) is not None
    except StillPacked:
        return False


def _records(run: Range, inbox: MessageSource, topic: TopicSettings) -> Iterator[PackedRecord]:
    for offset in range(*run):
        message = inbox.get(offset, compression.MAX_UNPACKED_BYTES)
        if message is None:
            raise StorageFailure(f"the inbox has lost the record at offset {offset}, or cannot read it any more")
        headers = message.headers
        if stamps_records(topic):
            headers = _with_time_due(message)
        yield message.timestamp_ms, message.key, message.value, headers


def _with_time_due(message: Message) -> tuple[Header, ...]:
    if all(name != DELAY_MS for name, _ in message.headers):
        return message.headers
    due_ms = read_attributes(message.headers, message.timestamp_ms).due_ms
    kept = tuple(header for header in message.headers if header[0] not in (DELAY_MS, DELIVER_AT_MS))
    return (*kept, (DELIVER_AT_MS, b"%d" % due_ms)) if due_ms else kept


def _size(record: PackedRecord) -> int:
    _, key, value, headers = record
    headers_bytes = sum(2 * len(name) + len(content or b"") + _RECORD_BYTES for name, content in headers)
    return len(key or b"") + len(value or b"") + headers_bytes + _RECORD_BYTES
