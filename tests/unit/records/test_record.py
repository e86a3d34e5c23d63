"""The records of a batch: round trips, and hostile bytes that soon end in UnreadableBatch."""

import contextlib
from collections import deque

import msgspec
import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.records import compression
from conveyor.records.batch import CRC_START, HEADER, HEADER_BYTES, MAGIC_END, read_header
from conveyor.records.checked_batch import check_batch
from conveyor.records.record import (
    Header,
    Record,
    UnreadableBatch,
    decode_records,
    encode_batch,
    header_name,
    name_bytes,
    raw_records,
    read_record,
    record_positions,
    shown_name,
    unpacked_records,
)
from tests.lying_batches import LIES

OPTIONAL_BYTES = st.none() | st.binary(max_size=300)
HEADERS = st.lists(st.tuples(st.binary(max_size=5).map(header_name), OPTIONAL_BYTES), max_size=3)
RECORDS = st.lists(
    st.tuples(st.integers(0, 2**45), OPTIONAL_BYTES, OPTIONAL_BYTES, HEADERS.map(tuple)), min_size=1, max_size=20
)
ONE_RECORD = encode_batch([(0, None, b"value", ())])[HEADER_BYTES:]


def batch_of(content: bytes, records_count: int) -> bytes:
    """Return a batch of arbitrary content with a correct checksum."""
    length = HEADER_BYTES - 12 + len(content)
    header = HEADER.pack(0, length, -1, 2, 0, 0, records_count - 1, 0, 0, -1, -1, -1, records_count)
    made = bytearray(header + content)
    made[MAGIC_END:CRC_START] = crc32c(memoryview(made)[CRC_START:]).to_bytes(4, "big")
    return bytes(made)


@pytest.mark.parametrize("codec", range(5), ids=compression.NAMES)
@given(records=RECORDS)
@settings(max_examples=25, deadline=None)
def test_records_round_trip(
    codec: int, records: list[tuple[int, bytes | None, bytes | None, tuple[Header, ...]]]
) -> None:
    encoded = encode_batch(records, codec=codec)
    assert check_batch(encoded, 1 << 20).header.max_timestamp == max(record[0] for record in records)
    assert list(decode_records(encoded)) == [
        Record(offset=number, timestamp_ms=at_ms, key=key, value=value, headers=headers)
        for number, (at_ms, key, value, headers) in enumerate(records)
    ]


def test_records_take_their_offsets_from_the_batch() -> None:
    encoded = encode_batch([(0, None, b"a", ()), (0, None, b"b", ())])
    placed = (500).to_bytes(8, "big") + encoded[8:]
    assert [record.offset for record in decode_records(placed)] == [500, 501]


def test_encode_batch_carries_the_producer() -> None:
    header = read_header(encode_batch([(0, None, None, ())], producer_id=9, producer_epoch=2, base_sequence=77))
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (9, 2, 77)


def test_header_names_that_are_no_text_survive() -> None:
    for stored in (b"\xff\xfe", b"n\xe4me", b"\0", b"\0\0name", b"\0n\xc3\xa4me", "n\u00e4me".encode(), b""):
        (record,) = decode_records(encode_batch([(0, None, None, [(header_name(stored), b"x")])]))
        assert record.headers == ((header_name(stored), b"x"),)
        assert name_bytes(record.headers[0][0]) == stored
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(record.headers[0][0])) == record.headers[0][0]
        assert shown_name(record.headers[0][0]) == stored.decode(errors="replace")


@given(st.binary(max_size=20))
def test_header_names_keep_their_bytes(stored: bytes) -> None:
    assert name_bytes(header_name(stored)) == stored
    assert shown_name(header_name(stored)) == stored.decode(errors="replace")


@given(st.text(st.characters(), max_size=20))
def test_any_header_name_can_be_stored(name: str) -> None:
    assert isinstance(name_bytes(name), bytes)


@pytest.mark.parametrize(
    ("content", "records_count"),
    [
        pytest.param(ONE_RECORD, 2, id="fewer records than announced"),
        pytest.param(ONE_RECORD[:-1], 1, id="a cut record"),
        pytest.param(b"", 1, id="nothing"),
        pytest.param(b"\x01" + ONE_RECORD[1:], 2**31 - 1, id="a record of length -1, forever the same"),
        pytest.param(b"\x05" + ONE_RECORD[1:], 2**31 - 1, id="a record of length -3, from the end"),
        pytest.param(b"\x7e" + ONE_RECORD[1:], 1, id="a record longer than its batch"),
        pytest.param(b"\x00" + ONE_RECORD[1:], 1, id="a record of no length"),
        pytest.param(b"\xff" * 300_000, 1, id="a number without an end"),
        pytest.param(b"\xff" * 9 + b"\x7f", 1, id="a number beyond 64 bits"),
    ],
)
def test_decode_records_refuses(content: bytes, records_count: int) -> None:
    with pytest.raises(RequestError) as refused:
        list(decode_records(batch_of(content, records_count)))
    assert refused.value.kind is ErrorKind.INVALID_RECORD


@pytest.mark.parametrize(
    ("records", "fields"),
    [
        ([(0, None, None, ()), (5, None, None, ())], {"base_timestamp": 2**63 - 1}),
        ([(0, None, None, ())], {"base_timestamp": -(2**63)}),
        ([(0, None, None, ()), (2**63 - 1, None, None, ())], {}),
        ([(0, None, None, ()), (0, None, None, ())], {"last_offset_delta": 0}),
    ],
    ids=["time beyond 64 bits", "time before all", "times too far apart", "offset beyond the batch"],
)
def test_decode_records_refuses_numbers_that_cannot_be(
    records: list[tuple[int, None, None, tuple[Header, ...]]], fields: dict[str, int]
) -> None:
    encoded = encode_batch(records)
    with pytest.raises(RequestError) as refused:
        list(decode_records(HEADER.pack(*read_header(encoded)._replace(**fields)) + encoded[HEADER_BYTES:]))
    assert refused.value.kind is ErrorKind.INVALID_RECORD


@given(content=st.binary(max_size=200), records_count=st.integers(1, 2**31 - 1))
@settings(max_examples=100, deadline=None)
def test_decode_records_survives_anything(content: bytes, records_count: int) -> None:
    with contextlib.suppress(RequestError):
        assert len(list(decode_records(batch_of(content, records_count)))) == records_count


@pytest.mark.parametrize("skims", [False, True], ids=["read", "skimmed"])
@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_batch_that_lies_is_unreadable(lie: bytes, skims: bool) -> None:
    with pytest.raises(UnreadableBatch):
        deque(raw_records(*unpacked_records(lie), skims=skims), maxlen=0)


@given(records=RECORDS)
@settings(max_examples=25, deadline=None)
def test_one_record_is_read_as_all_are(
    records: list[tuple[int, bytes | None, bytes | None, tuple[Header, ...]]],
) -> None:
    encoded = encode_batch(records, codec=compression.LZ4)
    header, content = unpacked_records(encoded)
    positions = record_positions(content, header.records_count)
    found = [read_record(header, content, *positions[index : index + 2]) for index in range(header.records_count)]
    assert found == list(decode_records(encoded))


@pytest.mark.parametrize("codec", range(5), ids=compression.NAMES)
def test_records_of_a_large_batch_are_read(codec: int) -> None:
    values = [bytes([number]) * (1 << 20) for number in range(3)]
    records = decode_records(encode_batch([(0, b"k", value, [("n", value[:9])]) for value in values], codec=codec))
    assert [(record.key, record.value, record.headers) for record in records] == [
        (b"k", value, (("n", value[:9]),)) for value in values
    ]


def test_header_that_is_too_large_is_unreadable() -> None:
    batch = encode_batch([(0, None, None, [("name", bytes(9 << 20))])], codec=compression.ZSTD)
    with pytest.raises(UnreadableBatch, match="header"):
        list(decode_records(batch))
