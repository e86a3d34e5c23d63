"""A record batch that may be appended: its bytes and its parsed header, checked once, when it is created.

All code below the produce door accepts only a `CheckedBatch`. These functions are the only ones that create one:

    check_batch      a producer's bytes: checks length, magic, CRC-32C, fields
    check_transactional_batch  the same for a batch of a transaction
    check_broker_batch  the same for a batch that another broker has encoded
    check_stored     a batch as a leader has stored it, with its offset and epoch: checks length, magic, CRC-32C, fields
    rebuild_checked  a checked batch after a stage dropped or repacked records: no second CRC check
    own_batch        a batch that the broker has encoded: state machines' records, control batches, REST messages

The topic's demands on records are not checked here: see `record_checks`.
"""

import msgspec
from crc32c import crc32c

from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.ids import NO_SEQUENCE
from conveyor.kernel.ports import Bytes
from conveyor.records.batch import (
    COMPRESSION_MASK,
    CONTROL,
    CRC_START,
    DELETE_HORIZON,
    HEADER,
    HEADER_BYTES,
    LAST_COMPRESSION,
    LENGTH_PREFIX_BYTES,
    LOG_APPEND_TIME,
    MAGIC,
    MAGIC_END,
    MIN_BATCH_LENGTH,
    NAMES_PUBLISHER,
    TRANSACTIONAL,
    UNUSED_ATTRIBUTES,
    BatchHeader,
    is_transactional,
    read_header,
)
from conveyor.records.record import seal_batch

_MIN_RECORD_BYTES = 7
"""One byte each: length, attributes, timestamp delta, offset delta, length of key, length of value, count of headers.
"""

MAX_RECORDS = 1 << 20
"""The most records in one batch: above the 1,000,000 that librdkafka can be configured to send. Java's producer splits
larger batches.
"""


_END_OF_OFFSETS = (1 << 63) - 1


class CheckedBatch(msgspec.Struct, frozen=True):
    """The wire bytes of one valid batch, and its parsed header."""

    content: Bytes
    header: BatchHeader


def check_batch(content: Bytes, max_bytes: int) -> CheckedBatch:
    """Check the bytes that a producer sent for one partition: exactly one valid batch of magic 2.

    Raises RequestError: CORRUPT_BATCH, INVALID_RECORD, INVALID_TIMESTAMP, MESSAGE_TOO_LARGE, UNSUPPORTED_COMPRESSION,
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED (a transactional batch).
    """
    header = _intact_header(content, max_bytes)
    _check_fields(header, False)
    _check_producer(header)
    return CheckedBatch(content, header)


def check_transactional_batch(content: Bytes, max_bytes: int) -> CheckedBatch:
    """Check the bytes that a transactional producer sent for one partition: exactly one batch of its transaction.

    Raises RequestError: as `check_batch`, except that a transactional batch is required.
    """
    header = _intact_header(content, max_bytes)
    if not header.attributes & TRANSACTIONAL or header.producer_id < 0:
        raise RequestError(ErrorKind.INVALID_RECORD, "the batch of a transactional producer is not transactional")
    _check_fields(header, False, may_be_transactional=True)
    _check_producer(header)
    return CheckedBatch(content, header)


def check_broker_batch(content: Bytes, *, is_transactional: bool) -> CheckedBatch:
    """Check the bytes that another broker sent for one partition: exactly one batch, without sequence if it is one of a
    transaction. Its size is not limited here.

    Raises RequestError: as `check_batch` or `check_transactional_batch`.
    """
    header = _intact_header(content, len(content))
    if is_transactional and not is_from_broker(header):
        raise RequestError(ErrorKind.INVALID_RECORD, "the batch of another broker is not one of a transaction")
    _check_fields(header, False, may_be_transactional=is_transactional, is_own=True)
    if not is_transactional:
        _check_producer(header)
    return CheckedBatch(content, header)


def check_stored(content: Bytes) -> CheckedBatch:
    """Check the bytes of one batch as a leader has stored it. Its header contains the offset and the leader epoch.

    Only the header and the CRC are checked, because a leader of a plain topic does not read the records either. A
    compacted batch may have fewer records than offsets, or none. Control and transactional batches pass.
    Raises RequestError: CORRUPT_BATCH, INVALID_RECORD, MESSAGE_TOO_LARGE, UNSUPPORTED_COMPRESSION.
    """
    header = _intact_header(content, len(content))
    if header.base_offset < 0 or header.leader_epoch < 0 or header.next_offset > _END_OF_OFFSETS:
        raise RequestError(
            ErrorKind.INVALID_RECORD, f"batch has base offset {header.base_offset} and epoch {header.leader_epoch}"
        )
    last_delta, count = header.last_offset_delta, header.records_count
    if not 0 <= last_delta < MAX_RECORDS or not 0 <= count <= last_delta + 1:
        raise RequestError(ErrorKind.INVALID_RECORD, f"batch of {count} records ends at offset delta {last_delta}")
    _check_room(header)
    _check_codec(header.attributes)
    if not header.attributes & CONTROL and not is_from_broker(header):
        _check_producer(header)
    return CheckedBatch(content, header)


def rebuild_checked(header: BatchHeader, packed: Bytes, max_bytes: int) -> CheckedBatch:
    """Build a batch from the packed records of a checked batch.

    header: the checked batch's header with a stage's changes. The stage may have dropped some or all records; their
    offsets are used up nevertheless.
    Raises RequestError: INVALID_RECORD if the bytes are too few for the record count in the header, MESSAGE_TOO_LARGE.
    """
    rebuilt = own_batch(seal_batch(header, packed))
    check_size(rebuilt, max_bytes)
    _check_fields(rebuilt.header, True, may_be_transactional=True, is_own=True)
    return rebuilt


def is_from_broker(header: BatchHeader) -> bool:
    """Return whether a broker has made a batch for a transaction: such a batch has no sequence."""
    return is_transactional(header) and header.base_sequence == NO_SEQUENCE and header.producer_epoch >= 0


def own_batch(content: Bytes) -> CheckedBatch:
    """Wrap a batch that the broker has encoded itself, or has stored and now forwards."""
    return CheckedBatch(content, read_header(content))


def check_size(batch: CheckedBatch, max_bytes: int) -> CheckedBatch:
    """Return the batch. Raises RequestError (MESSAGE_TOO_LARGE)."""
    if len(batch.content) > max_bytes:
        raise _too_large(len(batch.content), max_bytes)
    return batch


def _intact_header(content: Bytes, max_bytes: int) -> BatchHeader:
    """Return the header of exactly one batch with the right CRC."""
    size = len(content)
    if size < HEADER_BYTES:
        raise _short(content)
    header = BatchHeader._make(HEADER.unpack_from(content))
    if header.magic != MAGIC:
        raise _wrong_magic(header.magic)
    if header.batch_length + LENGTH_PREFIX_BYTES != size:
        raise _wrong_length(header, size)
    if size > max_bytes:
        raise _too_large(size, max_bytes)
    if crc32c(memoryview(content)[CRC_START:]) != header.crc:
        raise RequestError(ErrorKind.CORRUPT_BATCH, "CRC-32C of the batch does not match")
    return header


def _check_fields(
    header: BatchHeader, has_gaps: bool, may_be_transactional: bool = False, is_own: bool = False
) -> None:
    """has_gaps: a stage may have dropped some of the records. is_own: a broker has made the batch."""
    attributes = header.attributes
    if header.base_offset != 0:
        raise RequestError(ErrorKind.INVALID_RECORD, f"batch has base offset {header.base_offset}: producers send 0")
    count = header.records_count
    if not has_gaps and (count <= 0 or header.last_offset_delta != count - 1):
        raise RequestError(
            ErrorKind.INVALID_RECORD, f"batch of {count} records ends at offset delta {header.last_offset_delta}"
        )
    _check_room(header)
    if count > MAX_RECORDS:
        raise RequestError(ErrorKind.MESSAGE_TOO_LARGE, f"batch of {count} records is above {MAX_RECORDS}")
    if attributes:
        _check_attributes(attributes, may_be_transactional, is_own)


def _check_room(header: BatchHeader) -> None:
    count = header.records_count
    if MIN_BATCH_LENGTH + count * _MIN_RECORD_BYTES > header.batch_length and not header.attributes & COMPRESSION_MASK:
        raise RequestError(ErrorKind.INVALID_RECORD, f"batch of {header.size} bytes cannot hold {count} records")


def _check_producer(header: BatchHeader) -> None:
    if header.producer_id >= 0 and (header.producer_epoch < 0 or header.base_sequence < 0):
        raise RequestError(ErrorKind.INVALID_RECORD, "a producer id without an epoch or a sequence")


def _check_codec(attributes: int) -> None:
    if attributes & COMPRESSION_MASK > LAST_COMPRESSION:
        raise RequestError(
            ErrorKind.UNSUPPORTED_COMPRESSION, f"compression type {attributes & COMPRESSION_MASK} is unknown"
        )


def _check_attributes(attributes: int, may_be_transactional: bool, is_own: bool) -> None:
    _check_codec(attributes)
    if attributes & CONTROL:
        raise RequestError(ErrorKind.INVALID_RECORD, "only the broker writes control batches")
    if attributes & TRANSACTIONAL and not may_be_transactional:
        raise RequestError(
            ErrorKind.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "a transactional batch in a request without an id"
        )
    if attributes & LOG_APPEND_TIME:
        raise RequestError(ErrorKind.INVALID_TIMESTAMP, "producers do not set the timestamp type to LogAppendTime")
    if attributes & DELETE_HORIZON:
        raise RequestError(ErrorKind.INVALID_RECORD, "only the broker sets the delete horizon")
    if attributes & NAMES_PUBLISHER and not is_own:
        raise RequestError(ErrorKind.INVALID_RECORD, "only the broker names the publishers of records")
    if attributes & UNUSED_ATTRIBUTES:  # A later version would believe that a broker has set them.
        raise RequestError(ErrorKind.INVALID_RECORD, f"unknown attributes: {attributes & UNUSED_ATTRIBUTES:#x}")


def _short(batch: Bytes) -> RequestError:
    if len(batch) >= MAGIC_END and batch[16] != MAGIC:
        return _wrong_magic(batch[16])
    return RequestError(ErrorKind.INVALID_RECORD, f"{len(batch)} bytes are not a record batch")


def _wrong_magic(magic: int) -> RequestError:
    """Kafka used formats 0 and 1. Any other number means a damaged batch."""
    kind = ErrorKind.INVALID_RECORD if magic in (0, 1) else ErrorKind.CORRUPT_BATCH
    return RequestError(kind, f"message format {magic} is not supported: send format 2")


def _wrong_length(header: BatchHeader, size: int) -> RequestError:
    announced = header.batch_length + LENGTH_PREFIX_BYTES
    if HEADER_BYTES <= announced < size:
        return RequestError(ErrorKind.INVALID_RECORD, "more than one record batch for a partition in one request")
    kind = ErrorKind.INVALID_RECORD if announced > size else ErrorKind.CORRUPT_BATCH
    return RequestError(kind, f"batch announces {announced} bytes, but has {size}")


def _too_large(size: int, max_bytes: int) -> RequestError:
    return RequestError(ErrorKind.MESSAGE_TOO_LARGE, f"batch of {size} bytes is above max.message.bytes ({max_bytes})")
