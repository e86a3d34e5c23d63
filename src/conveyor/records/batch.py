"""Record batches in their wire and disk format: the 61-byte header, and the fields that the broker sets in it.

    0  base offset            int64     23 last offset delta   int32     43 producer id      int64
    8  batch length           int32     27 base timestamp      int64     51 producer epoch   int16
    12 partition leader epoch int32     35 max timestamp       int64     53 base sequence    int32
    16 magic (2)              int8                                       57 records count    int32
    17 CRC-32C of 21..end     uint32                                     61 records
    21 attributes             int16

The batch length counts the bytes after it, from byte 12 on. The CRC excludes the base offset and the leader epoch,
so that a broker can set both in a producer's own bytes. Source: Kafka's message format, version 2 (KIP-98).
"""

from collections.abc import Iterable, Iterator
from struct import Struct
from typing import NamedTuple

from crc32c import crc32c

from conveyor.kernel.ports import Bytes

HEADER = Struct(">qiibIhiqqqhii")
HEADER_BYTES = HEADER.size
LENGTH_PREFIX_BYTES = 12
MAGIC_END = 17
CRC_START = 21
MAGIC = 2

MIN_BATCH_LENGTH = HEADER_BYTES - LENGTH_PREFIX_BYTES

_PLACED = Struct(">qiib")
_STAMP = Struct(">hiqq")
_PRODUCER = Struct(">qhi")
_PRODUCER_START = 43
_ATTRIBUTES_END = 23

MAX_BATCH_BYTES = (1 << 31) - 1
"""The largest `max.message.bytes` of a topic: Kafka's sizes are int32."""

COMPRESSION_MASK = 0x07
LAST_COMPRESSION = 4
LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20
DELETE_HORIZON = 0x40
"""The base timestamp is the time until which the batch's tombstones are kept. Source: KIP-534."""
NAMES_PUBLISHER = 0x4000
"""A broker has set the `conveyor-publisher` headers of the records. Kafka does not use the bit, and clients ignore it.
"""
UNUSED_ATTRIBUTES = ~(COMPRESSION_MASK | LOG_APPEND_TIME | TRANSACTIONAL | CONTROL | DELETE_HORIZON | NAMES_PUBLISHER)


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
        """The length of the whole batch in bytes."""
        return self.batch_length + LENGTH_PREFIX_BYTES

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1


def read_header(buffer: Bytes, position: int = 0) -> BatchHeader:
    """Unpack the header at a position. The caller ensures that 61 bytes are available there."""
    return BatchHeader._make(HEADER.unpack_from(buffer, position))


def is_transactional(header: BatchHeader) -> bool:
    """Return whether a batch has records of a transaction. The markers that end transactions have none."""
    return header.attributes & (TRANSACTIONAL | CONTROL) == TRANSACTIONAL


def placed_prefix(base_offset: int, header: BatchHeader, leader_epoch: int) -> bytes:
    """Return the batch's first 17 bytes with its offset and leader epoch set. The remaining bytes are unchanged."""
    return _PLACED.pack(base_offset, header.batch_length, leader_epoch, header.magic)


def with_append_time(batch: Bytes, now_ms: int) -> bytearray:
    """Return a copy of the batch stamped by the broker (LogAppendTime): attribute bit, maximum timestamp, new CRC."""
    stamped = bytearray(batch)
    attributes, last_delta, base_timestamp, _ = _STAMP.unpack_from(stamped, CRC_START)
    _STAMP.pack_into(stamped, CRC_START, attributes | LOG_APPEND_TIME, last_delta, base_timestamp, now_ms)
    checksum = crc32c(memoryview(stamped)[CRC_START:])
    stamped[MAGIC_END:CRC_START] = checksum.to_bytes(4, "big")
    return stamped


def with_producer(batch: Bytes, producer_id: int, producer_epoch: int, base_sequence: int) -> bytes:
    """Return a copy of the batch as another producer sends it, outside of a transaction, with a new CRC."""
    copy = bytearray(batch)
    copy[_ATTRIBUTES_END - 1] &= ~TRANSACTIONAL & 0xFF
    _PRODUCER.pack_into(copy, _PRODUCER_START, producer_id, producer_epoch, base_sequence)
    checksum = crc32c(memoryview(copy)[CRC_START:])
    copy[MAGIC_END:CRC_START] = checksum.to_bytes(4, "big")
    return bytes(copy)


def batch_is_intact(batch: Bytes, rest: Iterable[Bytes] = ()) -> bool:
    """Return whether bytes read back from a disk are exactly the batch that was written.

    rest: the bytes after `batch`, in pieces, if `batch` is only the beginning, with at least the header.
    """
    header = read_header(batch)
    if header.magic != MAGIC or header.last_offset_delta < 0:
        return False
    size, checksum = len(batch), crc32c(memoryview(batch)[CRC_START:])
    for piece in rest:
        size += len(piece)
        checksum = crc32c(piece, checksum)
    return size == header.size and checksum == header.crc


def iterate_batches(buffer: Bytes) -> Iterator[tuple[int, BatchHeader]]:
    """Yield the positions and headers of the whole batches in a buffer. An incomplete last batch is omitted."""
    position = 0
    while position + HEADER_BYTES <= len(buffer):
        header = read_header(buffer, position)
        if header.batch_length < MIN_BATCH_LENGTH or position + header.size > len(buffer):
            return
        yield position, header
        position += header.size
