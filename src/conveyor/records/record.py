"""Decoding and encoding the records of a batch. A plain produce or fetch does not use this module.

Each record: length, attributes, timestamp delta, offset delta, key, value, headers; all numbers are zig-zag varints.
Source: Kafka's message format, version 2.

A producer can send arbitrary bytes with a correct CRC, and a plain topic stores them. Every reader of records must
therefore handle `UnreadableBatch`: the batch cannot be decompressed, or its records contradict its header.
"""

import sys
from array import array
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from crc32c import crc32c

from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.ids import NO_PRODUCER_ID, NO_SEQUENCE
from conveyor.kernel.ports import Bytes
from conveyor.records import compression
from conveyor.records.batch import (
    COMPRESSION_MASK,
    CRC_START,
    HEADER,
    HEADER_BYTES,
    LAST_COMPRESSION,
    LENGTH_PREFIX_BYTES,
    LOG_APPEND_TIME,
    MAGIC,
    MAGIC_END,
    BatchHeader,
    read_header,
)

Header = tuple[str, bytes | None]
RawRecord = tuple[int, int, int, int, bytes | None, bytes | None, tuple[Header, ...]]
"""start and end of the record within the decompressed content, half-open; offset delta, timestamp, key, value, headers.
"""

MAX_HEADERS = 10_000
"""The most headers of one record. Decoding and showing a header costs far more than its two bytes on the wire."""

_VARINT_BITS = 35
"""A 32-bit number takes at most five bytes."""

_VARLONG_BITS = 70
"""A 64-bit number takes at most ten bytes."""

_NULL = b"\x01"
"""A field without content."""

_ONE_BYTE = tuple(bytes((number,)) for number in range(0x80))

_MAX_HEADER_BYTES = 8 << 20
"""The most bytes of a header's name, and of its value."""

_ESCAPE = "\0"
"""Begins the name of a header that is not UTF-8."""

_LAST_TIMESTAMP = (1 << 62) - 1
"""The limit keeps the difference of two timestamps within 64 bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One record and its place in the log. `value=None` is a tombstone."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] = ()


class UnreadableBatch(RequestError):  # noqa: N818 - named for what it is
    """A batch cannot be decompressed, or its records contradict its header: INVALID_RECORD."""

    def __init__(self, why: str) -> None:
        super().__init__(ErrorKind.INVALID_RECORD, why)


def decode_records(batch: Bytes) -> Iterator[Record]:
    """Yield the records of one whole batch. Raises UnreadableBatch, possibly after some of the records."""
    header, content = unpacked_records(batch)
    base_offset = header.base_offset
    for _, _, offset_delta, timestamp_ms, key, value, headers in raw_records(header, content):
        yield Record(
            offset=base_offset + offset_delta, timestamp_ms=timestamp_ms, key=key, value=value, headers=headers
        )


def raw_records(header: BatchHeader, content: compression.Unpacked, *, skims: bool = False) -> Iterator[RawRecord]:
    """Yield the decompressed records of a batch. Raises UnreadableBatch, possibly after some of the records.

    Offsets rise and stay within the batch. They have gaps where the broker has dropped records.
    skims: keys and values are empty or null, so that large ones are not copied.
    """
    position, last_delta, largest_delta = 0, -1, header.last_offset_delta
    base_timestamp = header.base_timestamp
    append_time = header.max_timestamp if header.attributes & LOG_APPEND_TIME else None
    try:
        for _ in range(header.records_count):
            start = position
            length, position = _read_varint(content, position)
            end = position + length
            timestamp_delta, offset_delta, key, value, headers, position = _read_fields(content, position, skims=skims)
            if position != end:
                raise UnreadableBatch(f"a record of {length} bytes has {position - end + length}")
            if not last_delta < offset_delta <= largest_delta:
                raise UnreadableBatch(f"a record's offset delta is {offset_delta}, after {last_delta}")
            last_delta = offset_delta
            timestamp_ms = _timestamp(base_timestamp, timestamp_delta)
            if append_time is not None:
                timestamp_ms = append_time
            yield start, end, offset_delta, timestamp_ms, key, value, headers
    except IndexError:
        raise UnreadableBatch("a record reaches beyond its batch") from None
    if position != len(content):
        raise UnreadableBatch(f"{len(content) - position} bytes follow the last record of a batch")


def encode_batch(
    records: Sequence[tuple[int, bytes | None, bytes | None, Sequence[Header]]],
    *,
    codec: int = compression.NONE,
    attributes: int = 0,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = -1,
    base_sequence: int = NO_SEQUENCE,
) -> bytes:
    """Return a batch of (timestamp_ms, key, value, headers), base offset 0, as a producer would send it."""
    base_timestamp = records[0][0]
    encoded = bytearray()
    for delta, (timestamp_ms, key, value, headers) in enumerate(records):
        body = _encode_record(delta, timestamp_ms - base_timestamp, key, value, headers)
        encoded += _varint(len(body)) + body
    newest = max([record[0] for record in records])
    header = BatchHeader(0, 0, -1, MAGIC, 0, codec | attributes, len(records) - 1, base_timestamp, newest, producer_id,
                         producer_epoch, base_sequence, len(records))  # fmt: skip
    return seal_batch(header, compression.compress(codec, bytes(encoded)))


def rebuild_batch(header: BatchHeader, records: Sequence[Record], base_timestamp: int, attributes: int) -> bytes:
    """Return a batch with a subset of its records, possibly none: same offsets, producer and compression."""
    encoded = bytearray()
    for record in records:
        delta_ms = record.timestamp_ms - base_timestamp
        body = _encode_record(record.offset - header.base_offset, delta_ms, record.key, record.value, record.headers)
        encoded += _varint(len(body)) + body
    packed = compression.compress(attributes & COMPRESSION_MASK, bytes(encoded))
    rebuilt = header._replace(
        attributes=attributes,
        base_timestamp=base_timestamp,
        max_timestamp=max((record.timestamp_ms for record in records), default=header.max_timestamp),
        records_count=len(records),
    )
    return seal_batch(rebuilt, packed)


def set_header(header: BatchHeader, content: compression.Unpacked, name: str, value: bytes) -> bytes:
    """Return the decompressed records of a batch with a header in place of all those of its name, as the last of each
    record; empty for none. Offsets, timestamps, keys, values and other headers stay.

    Raises UnreadableBatch, RequestError: MESSAGE_TOO_LARGE, INVALID_RECORD (a record cannot have one header more).
    """
    alone = b"\x02" + _field(name_bytes(name)) + _field(value)
    encoded = bytearray()
    for start, end, offset_delta, _, _, _, headers in raw_records(header, content, skims=True):
        if not headers and content[end - 2] < 0x80:  # The last byte is the count of headers: 0.
            _, position = _read_varint(content, start)
            body = content[position : end - 1] + alone if value else content[position:end]
        else:
            read = read_record(header, content, start, end)
            kept = [kept for kept in headers if kept[0] != name]
            if value:
                kept.append((name, value))
            if len(kept) > MAX_HEADERS:
                raise RequestError(ErrorKind.INVALID_RECORD, f"a record has {MAX_HEADERS} headers besides '{name}'")
            delta_ms = _timestamp_delta(content, start)
            body = _encode_record(offset_delta, delta_ms, read.key, read.value, kept)
        encoded += _varint(len(body))
        encoded += body
        if len(encoded) > compression.MAX_UNPACKED_BYTES:
            reason = f"the records take more than {compression.MAX_UNPACKED_BYTES} bytes with the header '{name}'"
            raise RequestError(ErrorKind.MESSAGE_TOO_LARGE, reason)
    return bytes(encoded)


def seal_batch(header: BatchHeader, packed: Bytes) -> bytes:
    """Return the batch of a header and its packed records, with the header's length and CRC corrected."""
    length = HEADER_BYTES - LENGTH_PREFIX_BYTES + len(packed)
    batch = bytearray(HEADER.pack(*header._replace(batch_length=length, crc=0)))
    batch += packed
    batch[MAGIC_END:CRC_START] = crc32c(memoryview(batch)[CRC_START:]).to_bytes(4, "big")
    return bytes(batch)


def unpacked_records(
    batch: Bytes, limit_bytes: int = compression.MAX_UNPACKED_BYTES
) -> tuple[BatchHeader, compression.Unpacked]:
    """Return the header and the decompressed records of one whole batch. Raises UnreadableBatch."""
    header = read_header(batch)
    return header, unpack_records(header, batch, limit_bytes)


def unpack_records(
    header: BatchHeader, batch: Bytes, limit_bytes: int = compression.MAX_UNPACKED_BYTES
) -> compression.Unpacked:
    """Return the decompressed records of one whole batch with a parsed header. Raises UnreadableBatch."""
    codec = header.attributes & COMPRESSION_MASK
    if codec > LAST_COMPRESSION:
        raise UnreadableBatch(f"compression type {codec} is unknown")
    try:
        return compression.decompress(codec, memoryview(batch)[HEADER_BYTES:], limit_bytes)
    except ValueError as error:
        raise UnreadableBatch(str(error)) from None


def record_positions(content: compression.Unpacked, count: int) -> "array[int]":
    """Return the position of each decompressed record, which begins with its length, and finally the end of the last.

    Raises UnreadableBatch if the records do not fill the content exactly.
    """
    positions = array("L")
    position = 0
    try:
        for _ in range(count):
            positions.append(position)
            length, position = _read_varint(content, position)
            if length <= 0:
                raise UnreadableBatch(f"a record's length is {length}")
            position += length
    except IndexError:
        raise UnreadableBatch("a record reaches beyond its batch") from None
    if position != len(content):
        raise UnreadableBatch(f"{count} records take {position} bytes of {len(content)}")
    positions.append(position)
    return positions


def offset_deltas(content: compression.Unpacked, positions: "array[int]") -> "array[int]":
    """Return the offset delta of each record at the `record_positions`. Raises UnreadableBatch."""
    deltas = array("q")
    try:
        for start in positions[:-1]:
            _, position = _read_varint(content, start)
            _, position = _read_varint(content, position + 1, _VARLONG_BITS)
            deltas.append(_read_varint(content, position)[0])
    except IndexError:
        raise UnreadableBatch("a record reaches beyond its batch") from None
    return deltas


def read_record(
    header: BatchHeader, content: compression.Unpacked, start: int, end: int, *, skims: bool = False
) -> Record:
    """Return the record between two of `record_positions`. skims: see `raw_records`. Raises UnreadableBatch."""
    try:
        _, position = _read_varint(content, start)
        timestamp_delta, offset_delta, key, value, headers, reached = _read_fields(content, position, skims=skims)
    except IndexError:
        raise UnreadableBatch("a record reaches beyond its batch") from None
    if reached != end:
        raise UnreadableBatch(f"a record ends at {reached}, not at {end}")
    timestamp_ms = _timestamp(header.base_timestamp, timestamp_delta)
    return Record(
        offset=header.base_offset + offset_delta,
        timestamp_ms=header.max_timestamp if header.attributes & LOG_APPEND_TIME else timestamp_ms,
        key=key,
        value=value,
        headers=headers,
    )


def _timestamp_delta(content: compression.Unpacked, start: int) -> int:
    """Return the timestamp delta of a record as it is stored."""
    _, position = _read_varint(content, start)
    return _read_varint(content, position + 1, _VARLONG_BITS)[0]


def _timestamp(base_timestamp: int, delta: int) -> int:
    """Raise UnreadableBatch if no record can have this timestamp."""
    timestamp_ms = base_timestamp + delta
    if not -_LAST_TIMESTAMP <= timestamp_ms <= _LAST_TIMESTAMP:
        raise UnreadableBatch(f"a record's timestamp is {timestamp_ms}")
    return timestamp_ms


def _read_fields(
    content: compression.Unpacked, position: int, *, skims: bool = False
) -> tuple[int, int, bytes | None, bytes | None, tuple[Header, ...], int]:
    """Read a record from the position after its length. Returns its timestamp delta, offset delta, key, value, headers
    and its end position.

    Raises IndexError if the record extends beyond the content, UnreadableBatch.
    """
    timestamp_delta, position = _read_varint(content, position + 1, _VARLONG_BITS)
    offset_delta, position = _read_varint(content, position)
    read = _skip_bytes if skims else _read_bytes
    if content[position] == _NULL[0]:
        key, position = None, position + 1
    else:
        key, position = read(content, position)
    value, position = read(content, position)
    if not content[position]:
        return timestamp_delta, offset_delta, key, value, (), position + 1
    count, position = _read_varint(content, position)
    if not 0 <= count <= MAX_HEADERS:
        raise UnreadableBatch(f"a record has {count} headers: at most {MAX_HEADERS} are read")
    headers = []
    for _ in range(count):
        name, position = _read_bytes(content, position, _MAX_HEADER_BYTES)
        if name is None:
            raise UnreadableBatch("a header has no name")
        header_value, position = _read_bytes(content, position, _MAX_HEADER_BYTES)
        headers.append((header_name(name), header_value))
    return timestamp_delta, offset_delta, key, value, tuple(headers), position


def _encode_record(
    offset_delta: int, timestamp_delta: int, key: bytes | None, value: bytes | None, headers: Sequence[Header]
) -> bytes:
    begin = b"\0%b%b" % (_varint(timestamp_delta) if timestamp_delta else b"\0", _varint(offset_delta))
    key_field = _NULL if key is None else _field(key)
    value_field = _NULL if value is None else _field(value)
    if not headers:
        return b"%b%b%b\0" % (begin, key_field, value_field)
    fields = [begin, key_field, value_field, _varint(len(headers))]
    for name, header_value in headers:
        fields.append(_field(name_bytes(name)))
        fields.append(_NULL if header_value is None else _field(header_value))
    return b"".join(fields)


def header_name(stored: bytes) -> str:
    """Return the name of a header as text that any encoder accepts, and that `name_bytes` turns back.

    A name that is not UTF-8, or begins with NUL, becomes NUL and a character for each byte.
    """
    try:
        name = stored.decode()
    except UnicodeDecodeError:
        name = _ESCAPE
    return _ESCAPE + stored.decode("latin-1") if name.startswith(_ESCAPE) else name


def name_bytes(name: str) -> bytes:
    """Return the name of a header as a record stores it; see `header_name`. Encodes any text."""
    if name.startswith(_ESCAPE):
        with suppress(UnicodeEncodeError):  # Then `header_name` has not made it.
            return name[1:].encode("latin-1")
    return name.encode("utf-8", "replace")


def shown_name(name: str) -> str:
    """Return the name of a header for people and their programs, with U+FFFD for bytes that are not UTF-8."""
    return name_bytes(name).decode("utf-8", "replace") if name.startswith(_ESCAPE) else name


def _field(content: bytes) -> bytes:
    return _varint(len(content)) + content


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


def _read_varint(content: compression.Unpacked, position: int, bits: int = _VARINT_BITS) -> tuple[int, int]:
    byte = content[position]
    if byte < 0x80:  # Most numbers of a record are small.
        return (byte >> 1) ^ -(byte & 1), position + 1
    second = content[position + 1]
    if second < 0x80:
        rest = byte & 0x7F | second << 7
        return (rest >> 1) ^ -(rest & 1), position + 2
    shift = result = 0
    while shift < bits:
        byte = content[position]
        position += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (result >> 1) ^ -(result & 1), position
        shift += 7
    raise UnreadableBatch(f"a number takes more than {bits // 7} bytes")


def _read_bytes(
    content: compression.Unpacked, position: int, limit_bytes: int = sys.maxsize
) -> tuple[bytes | None, int]:
    length, position = _read_varint(content, position)
    if length < 0:
        return None, position
    if length > limit_bytes:
        raise UnreadableBatch(f"a header has a name or a value of {length} bytes, above {limit_bytes}")
    end = position + length
    if end > len(content):
        raise IndexError(end)
    return content[position:end], end


def _skip_bytes(content: compression.Unpacked, position: int) -> tuple[bytes | None, int]:
    length, position = _read_varint(content, position)
    return (None, position) if length < 0 else (b"", position + length)
