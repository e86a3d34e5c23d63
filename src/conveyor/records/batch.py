"""Record batches as they lie on the wire and on the disk: the 61-byte header, and what is checked before an append.

    0  base offset            int64     23 last offset delta   int32     43 producer id      int64
    8  batch length           int32     27 base timestamp      int64     51 producer epoch   int16
    12 partition leader epoch int32     35 max timestamp       int64     53 base sequence    int32
    16 magic (2)              int8                                       57 records count    int32
    17 CRC-32C of 21..end     uint32                                     61 records
    21 attributes             int16

The batch length counts what follows it, from byte 12 on. The CRC leaves out the base offset and the leader epoch,
so that a broker can set both in a producer's own bytes. Source: Kafka's message format, version 2 (KIP-98).
"""

from collections.abc import Iterator
from struct import Struct
from typing import NamedTuple

from crc32c import crc32c

from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.ids import NO_PRODUCER_ID, NO_SEQUENCE
from conveyor.kernel.ports import Bytes

HEADER = Struct(">qiibIhiqqqhii")
HEADER_BYTES = HEADER.size
LENGTH_PREFIX_BYTES = 12
MAGIC_END = 17
CRC_START = 21
MAGIC = 2

_MIN_BATCH_LENGTH = HEADER_BYTES - LENGTH_PREFIX_BYTES
_MIN_RECORD_BYTES = 7
"""A byte each: length, attributes, timestamp delta, offset delta, length of key, length of value, count of headers."""

MAX_RECORDS = 1 << 20
"""In one batch: above the 1,000,000 that librdkafka can be told to send. Java's producer divides what is too large."""

_PLACED = Struct(">qiib")
_STAMP = Struct(">hiqq")
_PRODUCER = Struct(">qhi")
_PRODUCER_START = 43

COMPRESSION_MASK = 0x07
LAST_COMPRESSION = 4
LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20
DELETE_HORIZON = 0x40
"""The base timestamp says until when the batch's tombstones stay. Source: KIP-534."""


class BatchHeader(NamedTuple):
    """The header's fields, in their order on the wire."""

    base_offset: int
    batch_length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    records_count: int

    @property
    def size(self) -> int:
        """Bytes of the whole batch."""
        return self.batch_length + LENGTH_PREFIX_BYTES

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1


def read_header(buffer: Bytes, position: int = 0) -> BatchHeader:
    """Unpack the header at a position; the caller has made sure that 61 bytes are there."""
    return BatchHeader._make(HEADER.unpack_from(buffer, position))


def check_batch(batch: Bytes, max_bytes: int, *, may_have_gaps: bool = False) -> BatchHeader:
    """Check what a producer sent for one partition: exactly one sound batch of magic 2.

    may_have_gaps: the broker has left out some of its records, or all of them.

    Raises RequestError: CORRUPT_BATCH, INVALID_RECORD, INVALID_TIMESTAMP, MESSAGE_TOO_LARGE, UNSUPPORTED_COMPRESSION,
    TRANSACTIONS_UNSUPPORTED.
    """
    size = len(batch)
    if size < HEADER_BYTES:
        raise _short(batch)
    header = BatchHeader._make(HEADER.unpack_from(batch))
    if header.magic != MAGIC:
        raise _wrong_magic(header.magic)
    if header.batch_length + LENGTH_PREFIX_BYTES != size:
        raise _wrong_length(header, size)
    if size > max_bytes:
        raise RequestError(
            ErrorKind.MESSAGE_TOO_LARGE, f"batch of {size} bytes is above max.message.bytes ({max_bytes})"
        )
    if crc32c(memoryview(batch)[CRC_START:]) != header.crc:
        raise RequestError(ErrorKind.CORRUPT_BATCH, "CRC-32C of the batch does not match")
    _check_fields(header, may_have_gaps)
    return header


def _check_fields(header: BatchHeader, may_have_gaps: bool) -> None:
    attributes = header.attributes
    if header.base_offset != 0:
        raise RequestError(ErrorKind.INVALID_RECORD, f"batch has base offset {header.base_offset}: producers send 0")
    count = header.records_count
    if not may_have_gaps and (count <= 0 or header.last_offset_delta != count - 1):
        raise RequestError(
            ErrorKind.INVALID_RECORD, f"batch of {count} records ends at offset delta {header.last_offset_delta}"
        )
    if _MIN_BATCH_LENGTH + count * _MIN_RECORD_BYTES > header.batch_length and not attributes & COMPRESSION_MASK:
        raise RequestError(ErrorKind.INVALID_RECORD, f"batch of {header.size} bytes cannot hold {count} records")
    if count > MAX_RECORDS:
        raise RequestError(ErrorKind.MESSAGE_TOO_LARGE, f"batch of {count} records is above {MAX_RECORDS}")
    if attributes:
        _check_attributes(attributes)
    if header.producer_id >= 0 and (header.producer_epoch < 0 or header.base_sequence < 0):
        raise RequestError(ErrorKind.INVALID_RECORD, "a producer id without an epoch or a sequence")


def _check_attributes(attributes: int) -> None:
    if attributes & COMPRESSION_MASK > LAST_COMPRESSION:
        raise RequestError(
            ErrorKind.UNSUPPORTED_COMPRESSION, f"compression type {attributes & COMPRESSION_MASK} is not known"
        )
    if attributes & CONTROL:
        raise RequestError(ErrorKind.INVALID_RECORD, "control batches are the broker's to write")
    if attributes & TRANSACTIONAL:
        raise RequestError(ErrorKind.TRANSACTIONS_UNSUPPORTED, "transactions are not offered by this broker")
    if attributes & LOG_APPEND_TIME:
        raise RequestError(ErrorKind.INVALID_TIMESTAMP, "producers do not set the timestamp type to LogAppendTime")
    if attributes & DELETE_HORIZON:
        raise RequestError(ErrorKind.INVALID_RECORD, "the delete horizon is the broker's to set")


def _short(batch: Bytes) -> RequestError:
    if len(batch) >= MAGIC_END and batch[16] != MAGIC:
        return _wrong_magic(batch[16])
    return RequestError(ErrorKind.INVALID_RECORD, f"{len(batch)} bytes are no record batch")


def _wrong_magic(magic: int) -> RequestError:
    """Formats 0 and 1 were Kafka's; any other is damage."""
    kind = ErrorKind.INVALID_RECORD if magic in (0, 1) else ErrorKind.CORRUPT_BATCH
    return RequestError(kind, f"message format {magic} is not taken: send format 2")


def _wrong_length(header: BatchHeader, size: int) -> RequestError:
    announced = header.batch_length + LENGTH_PREFIX_BYTES
    if HEADER_BYTES <= announced < size:
        return RequestError(ErrorKind.INVALID_RECORD, "more than one record batch for a partition in one request")
    kind = ErrorKind.INVALID_RECORD if announced > size else ErrorKind.CORRUPT_BATCH
    return RequestError(kind, f"batch announces {announced} bytes, and has {size}")


def placed_prefix(base_offset: int, header: BatchHeader, leader_epoch: int) -> bytes:
    """The batch's first 17 bytes with its offset and leader epoch set; the rest stays the producer's own."""
    return _PLACED.pack(base_offset, header.batch_length, leader_epoch, header.magic)


def with_append_time(batch: Bytes, now_ms: int) -> bytes:
    """A copy of the batch stamped by the broker (LogAppendTime): attribute bit, maximum timestamp, and a new CRC."""
    stamped = bytearray(batch)
    attributes, last_delta, base_timestamp, _ = _STAMP.unpack_from(stamped, CRC_START)
    _STAMP.pack_into(stamped, CRC_START, attributes | LOG_APPEND_TIME, last_delta, base_timestamp, now_ms)
    checksum = crc32c(memoryview(stamped)[CRC_START:])
    stamped[MAGIC_END:CRC_START] = checksum.to_bytes(4, "big")
    return bytes(stamped)


def without_producer(batch: Bytes) -> bytes:
    """A copy of the batch that no idempotent producer has sent, with a new CRC."""
    nobodys = bytearray(batch)
    _PRODUCER.pack_into(nobodys, _PRODUCER_START, NO_PRODUCER_ID, -1, NO_SEQUENCE)
    checksum = crc32c(memoryview(nobodys)[CRC_START:])
    nobodys[MAGIC_END:CRC_START] = checksum.to_bytes(4, "big")
    return bytes(nobodys)


def batch_is_intact(batch: Bytes) -> bool:
    """Whether whole bytes read back from a disk are the batch that was written."""
    header = read_header(batch)
    return (
        header.magic == MAGIC
        and header.size == len(batch)
        and header.last_offset_delta >= 0
        and crc32c(memoryview(batch)[CRC_START:]) == header.crc
    )


def iterate_batches(buffer: Bytes) -> Iterator[tuple[int, BatchHeader]]:
    """Positions and headers of the whole batches in a buffer; a cut one at the end is left out."""
    position = 0
    while position + HEADER_BYTES <= len(buffer):
        header = read_header(buffer, position)
        if header.batch_length < _MIN_BATCH_LENGTH or position + header.size > len(buffer):
            return
        yield position, header
        position += header.size
