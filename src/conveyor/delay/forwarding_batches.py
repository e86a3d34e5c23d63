"""Builds the batches that execute an intent: the records as the target stores them.

A batch that is forwarded whole keeps its bytes, except for the producer and the transaction. Records forwarded singly
are packed together. They keep key, value, headers and timestamp. The target's `compression.type` applies to them;
without one they are not compressed.

A target that stamps records gives them the time of forwarding. `conveyor-delay-ms` would count from that time, so it is
replaced by `conveyor-deliver-at-ms` with the original due time.
"""

from collections.abc import Generator, Iterator
from typing import NamedTuple

from conveyor.delay.forwarding_records import PRODUCER_EPOCH, SEQUENCES, Intent, Range
from conveyor.kernel.errors import StorageFailure
from conveyor.log.record_source import MessageSource, StillPacked
from conveyor.records import compression
from conveyor.records.batch import COMPRESSION_MASK, NAMES_PUBLISHER, BatchHeader, with_producer
from conveyor.records.message import Message
from conveyor.records.message_attributes import DELAY_MS, DELIVER_AT_MS, read_attributes
from conveyor.records.publishers import has_publisher
from conveyor.records.record import Header, encode_batch
from conveyor.records.repack import AS_PRODUCED, CODECS
from conveyor.records.timestamps import stamps_records
from conveyor.settings.tree import TopicSettings

PackedRecord = tuple[int, bytes | None, bytes | None, tuple[Header, ...]]
"""Timestamp, key, value, headers."""

_BATCH_BYTES = 128 << 10
_HEADER_BYTES = 61
_RECORD_BYTES = 40
RECORDS_OF_A_BATCH = 500
"""The most records that are packed at once, on the event loop."""


class ForwardedBatch(NamedTuple):
    """A batch of an intent. offsets_count: the number of offsets of the intent that it carries out."""

    content: bytes
    offsets_count: int


class ForwardingBatches:
    """The batches of one intent, in order.

    delayed: the delayed topic. limit_offset: its last stable offset. target: the settings of the target.
    """

    def __init__(self, intent: Intent, delayed: MessageSource, limit_offset: int, target: TopicSettings) -> None:
        self._intent = intent
        self._delayed = delayed
        self._limit_offset = limit_offset
        self._target = target
        self._codec = compression.NONE if target.compression_type == AS_PRODUCED else CODECS[target.compression_type]
        self._room = min(_BATCH_BYTES, target.max_message_bytes - _HEADER_BYTES)
        self._sequence = intent.sequence
        self._loose: list[PackedRecord] = []
        self._loose_bytes = 0
        self.deleted_below = 0
        """The end of the rest of a batch whose records cannot be read and of which some were deleted."""
        self._divided: Range = (0, 0)
        """The batch of the delayed topic whose records are forwarded singly at the moment."""

    def __iter__(self) -> Iterator[ForwardedBatch | StillPacked]:
        """Yield the batches. A StillPacked asks the caller to unpack a batch of the delayed topic, then to continue.

        Ends early at a record that was deleted since; so is what is left of a batch that cannot be read. Raises
        StorageFailure, also for lost records.
        """
        for run in self._intent.ranges:
            whole = yield from self._whole_batch(run)
            if whole is not None:
                yield from self._packed()
                yield self._of_producer(whole, run[1] - run[0])
                continue
            for offset in range(*run):
                message = yield from self._message(offset)
                if message is None and self._was_deleted(offset):
                    yield from self._packed()
                    return
                if message is None:
                    raise StorageFailure(f"the record at offset {offset} is lost, or cannot be read any more")
                yield from self._add(self._as_stored(message))
        yield from self._packed()

    def _was_deleted(self, offset: int) -> bool:
        """Return whether a record that is not there was deleted."""
        log_start_offset = self._delayed.log_start_offset
        if offset < log_start_offset:
            return True
        header, _, _ = next(self._delayed.batches(offset, self._limit_offset, 1), (None, 0, b""))
        if header is None or header.base_offset >= log_start_offset:
            return False
        self.deleted_below = header.next_offset
        return True

    def _whole_batch(self, run: Range) -> Generator[StillPacked, None, bytes | None]:
        """Return the bytes of the batch that a run covers, if the batch is forwarded unchanged."""
        if self._divided[0] <= run[0] and run[1] <= self._divided[1]:
            return None
        for header, _, batch in self._delayed.batches(run[0], self._limit_offset, 1):
            if (header.base_offset, header.next_offset) == run:
                is_repacked = yield from self._is_repacked(header)
                return None if is_repacked else batch
            self._divided = header.base_offset, header.next_offset
        return None

    def _is_repacked(self, header: BatchHeader) -> Generator[StillPacked, None, bool]:
        """Small batches are costly for readers, so they are repacked; a record compressed on its own is not.

        A batch that cannot be read is forwarded unchanged.
        """
        if header.records_count > 1:
            return False
        is_costly = header.attributes & COMPRESSION_MASK or header.size > _BATCH_BYTES
        if is_costly and not stamps_records(self._target):
            return False
        message = yield from self._message(header.base_offset)
        return message is not None

    def _message(self, offset: int) -> Generator[StillPacked, None, Message | None]:
        while True:
            try:
                return self._delayed.get(offset)
            except StillPacked as packed:
                still_packed = packed
            yield still_packed

    def _as_stored(self, message: Message) -> PackedRecord:
        headers = _with_time_due(message) if stamps_records(self._target) else message.headers
        return message.timestamp_ms, message.key, message.value, headers

    def _add(self, record: PackedRecord) -> Iterator[ForwardedBatch]:
        size = _size(record)
        if self._loose_bytes + size > self._room or len(self._loose) == RECORDS_OF_A_BATCH:
            yield from self._packed()
        self._loose.append(record)
        self._loose_bytes += size

    def _packed(self) -> Iterator[ForwardedBatch]:
        loose, self._loose, self._loose_bytes = self._loose, [], 0
        if loose:
            attributes = NAMES_PUBLISHER if any(has_publisher(headers) for _, _, _, headers in loose) else 0
            yield self._of_producer(encode_batch(loose, codec=self._codec, attributes=attributes), len(loose))

    def _of_producer(self, batch: bytes, count: int) -> ForwardedBatch:
        sequence, self._sequence = self._sequence, (self._sequence + count) % SEQUENCES
        return ForwardedBatch(with_producer(batch, self._intent.producer_id, PRODUCER_EPOCH, sequence), count)


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
