"""The records inside a batch, decoded and encoded. Only what must look inside uses it: never a plain produce or fetch.

Each record: length, attributes, timestamp delta, offset delta, key, value, headers; all numbers are zig-zag varints.
Source: Kafka's message format, version 2.
"""

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from crc32c import crc32c

from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.ids import NO_PRODUCER_ID, NO_SEQUENCE
from conveyor.kernel.ports import Bytes
from conveyor.log import compression
from conveyor.log.batch import (
    COMPRESSION_MASK,
    CRC_START,
    HEADER,
    HEADER_BYTES,
    LENGTH_PREFIX_BYTES,
    LOG_APPEND_TIME,
    MAGIC,
    MAGIC_END,
    BatchHeader,
    read_header,
)

Header = tuple[str, bytes | None]

_VARINT_BITS = 70
"""A number of 64 bits takes ten bytes at most."""

_ONE_BYTE = tuple(bytes((number,)) for number in range(0x80))

_LAST_TIMESTAMP = (1 << 62) - 1
"""So that the difference of two timestamps still is a number of 64 bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One record, with its place in the log. `value=None` is a tombstone."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] = ()


def decode_records(batch: Bytes) -> Iterator[Record]:
    """Every record of one whole batch. Raises RequestError (CORRUPT_BATCH)."""
    header = read_header(batch)
    codec = header.attributes & COMPRESSION_MASK
    content = compression.decompress(codec, memoryview(batch)[HEADER_BYTES:])
    position = 0
    try:
        for _ in range(header.records_count):
            length, position = _read_varint(content, position)
            end = position + length
            if not position < end <= len(content):
                raise IndexError(end)
            yield _decode_record(content[position:end], header)
            position = end
    except IndexError as error:
        raise RequestError(ErrorKind.CORRUPT_BATCH, "a record reaches beyond its batch") from error


def check_keys(batch: Bytes) -> None:
    """Every record of a compacted topic has a key. Raises RequestError (INVALID_RECORD)."""
    if any(record.key is None for record in decode_records(batch)):
        raise RequestError(ErrorKind.INVALID_RECORD, "a record without a key cannot be compacted: give it one")


def encode_batch(
    records: Sequence[tuple[int, bytes | None, bytes | None, Sequence[Header]]],
    *,
    codec: int = compression.NONE,
    attributes: int = 0,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = -1,
    base_sequence: int = NO_SEQUENCE,
) -> bytes:
    """A batch of (timestamp_ms, key, value, headers), base offset 0, as a producer would send it."""
    base_timestamp = records[0][0]
    encoded = bytearray()
    for delta, (timestamp_ms, key, value, headers) in enumerate(records):
        body = _encode_record(delta, timestamp_ms - base_timestamp, key, value, headers)
        encoded += _varint(len(body)) + body
    packed = compression.compress(codec, bytes(encoded))
    newest = max(record[0] for record in records)
    last_delta = len(records) - 1
    length = HEADER_BYTES - LENGTH_PREFIX_BYTES + len(packed)
    batch = bytearray(
        HEADER.pack(0, length, -1, MAGIC, 0, codec | attributes, last_delta, base_timestamp, newest, producer_id,
                    producer_epoch, base_sequence, len(records))
    )  # fmt: skip
    batch += packed
    batch[MAGIC_END:CRC_START] = crc32c(memoryview(batch)[CRC_START:]).to_bytes(4, "big")
    return bytes(batch)


def rebuild_batch(header: BatchHeader, records: Sequence[Record], base_timestamp: int, attributes: int) -> bytes:
    """A batch with some of its records: the same offsets, producer and compression. It may have none left."""
    encoded = bytearray()
    for each in records:
        delta_ms = each.timestamp_ms - base_timestamp
        body = _encode_record(each.offset - header.base_offset, delta_ms, each.key, each.value, each.headers)
        encoded += _varint(len(body)) + body
    packed = compression.compress(attributes & COMPRESSION_MASK, bytes(encoded))
    rebuilt = header._replace(
        batch_length=HEADER_BYTES - LENGTH_PREFIX_BYTES + len(packed),
        attributes=attributes,
        base_timestamp=base_timestamp,
        max_timestamp=max((each.timestamp_ms for each in records), default=header.max_timestamp),
        records_count=len(records),
        crc=0,
    )
    batch = bytearray(HEADER.pack(*rebuilt))
    batch += packed
    batch[MAGIC_END:CRC_START] = crc32c(memoryview(batch)[CRC_START:]).to_bytes(4, "big")
    return bytes(batch)


def unpacked_records(batch: Bytes) -> tuple[BatchHeader, bytes]:
    """The header of one whole batch, and its records, unpacked. Raises RequestError (CORRUPT_BATCH)."""
    header = read_header(batch)
    codec = header.attributes & COMPRESSION_MASK
    return header, compression.decompress(codec, memoryview(batch)[HEADER_BYTES:])


def record_positions(content: bytes, count: int) -> "array[int]":
    """Where each of the unpacked records begins, behind its length; and at last where the one after them would.

    Raises IndexError if they reach beyond the content.
    """
    positions = array("L")
    position = 0
    for _ in range(count):
        length, position = _read_varint(content, position)
        positions.append(position)
        if length <= 0:
            raise IndexError(length)
        position += length
    if position > len(content):
        raise IndexError(position)
    positions.append(position)
    return positions


def read_fields(content: bytes, position: int) -> tuple[int, int, bytes | None, bytes | None, tuple[Header, ...]]:
    """One record's timestamp delta, offset delta, key, value and headers, from the place behind its length."""
    timestamp_delta, position = _read_varint(content, position + 1)
    offset_delta, position = _read_varint(content, position)
    key, position = _read_bytes(content, position)
    value, position = _read_bytes(content, position)
    count, position = _read_varint(content, position)
    if not count:
        return timestamp_delta, offset_delta, key, value, ()
    headers = []
    for _ in range(count):
        name, position = _read_bytes(content, position)
        header_value, position = _read_bytes(content, position)
        headers.append(((name or b"").decode("utf-8", "surrogateescape"), header_value))
    return timestamp_delta, offset_delta, key, value, tuple(headers)


def _decode_record(content: bytes, header: BatchHeader) -> Record:
    timestamp_delta, offset_delta, key, value, headers = read_fields(content, 0)
    timestamp = header.base_timestamp + timestamp_delta
    if not 0 <= offset_delta <= header.last_offset_delta or max(abs(timestamp), abs(timestamp_delta)) > _LAST_TIMESTAMP:
        raise IndexError(offset_delta)
    return Record(
        offset=header.base_offset + offset_delta,
        timestamp_ms=header.max_timestamp if header.attributes & LOG_APPEND_TIME else timestamp,
        key=key,
        value=value,
        headers=headers,
    )


def _encode_record(
    offset_delta: int, timestamp_delta: int, key: bytes | None, value: bytes | None, headers: Sequence[Header]
) -> bytes:
    body = b"".join((
        b"\0", _varint(timestamp_delta), _varint(offset_delta), _field(key), _field(value), _varint(len(headers))
    ))  # fmt: skip
    if not headers:
        return body
    fields = (
        field for name, value in headers for field in (_field(name.encode("utf-8", "surrogateescape")), _field(value))
    )
    return body + b"".join(fields)


def _field(content: bytes | None) -> bytes:
    return b"\x01" if content is None else _varint(len(content)) + content


def _varint(number: int) -> bytes:
    rest = (number << 1) ^ (number >> 63)
    if rest < 0x80:
        return _ONE_BYTE[rest]
    if rest < 0x4000:
        return bytes((rest & 0x7F | 0x80, rest >> 7))
    out = bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def _read_varint(content: bytes, position: int) -> tuple[int, int]:
    byte = content[position]
    if byte < 0x80:  # Most numbers of a record are small.
        return (byte >> 1) ^ -(byte & 1), position + 1
    second = content[position + 1]
    if second < 0x80:
        rest = byte & 0x7F | second << 7
        return (rest >> 1) ^ -(rest & 1), position + 2
    shift = result = 0
    while shift < _VARINT_BITS:
        byte = content[position]
        position += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (result >> 1) ^ -(result & 1), position
        shift += 7
    raise IndexError(position)


def _read_bytes(content: bytes, position: int) -> tuple[bytes | None, int]:
    length, position = _read_varint(content, position)
    if length < 0:
        return None, position
    end = position + length
    if end > len(content):
        raise IndexError(end)
    return content[position:end], end
