"""Batches as columns: the same records as one by one, and what lies is refused."""

from random import Random
from typing import Any, cast

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conveyor.records.batch import MAGIC, iterate_batches, read_header
from conveyor.records.record import (
    MAX_HEADERS,
    Record,
    UnreadableBatch,
    decode_records,
    encode_batch,
    header_name,
    shown_name,
)
from pyspark_conveyor.pipeline_errors import PipelineError
from pyspark_conveyor.source.record_columns import CorruptRecordsError, checked_batch, decode
from pyspark_conveyor.source.rows import arrow_schema, to_batches
from tests.lying_batches import LIES, any_batch, bomb, many_records, raw_record, sealed

pytestmark = pytest.mark.slow

SCHEMA = arrow_schema()
EVERYTHING = (0, 1 << 62)

field = st.none() | st.binary(max_size=200)
headers = st.lists(st.tuples(st.binary(max_size=5).map(header_name), field), max_size=4)
records = st.lists(st.tuples(st.integers(0, 2_000_000_000_000), field, field, headers), min_size=1, max_size=20)


def rows(data: bytes, bounds: tuple[int, int] = EVERYTHING) -> list[dict[str, object]]:
    """What the source makes of a record set of partition 3 of topic t."""
    view = memoryview(data)
    batches = [checked_batch(view, position, header) for position, header in iterate_batches(view)]
    found: list[dict[str, object]] = []
    for columns in decode(batches, with_headers=True):
        for table in to_batches(columns, "t", 3, bounds, SCHEMA):
            table.validate(full=True)
            found += table.to_pylist()
    return found


def wanted(record: Record) -> tuple[object, ...]:
    names = [shown_name(name) for name, _ in record.headers]
    pairs = [{"key": name, "value": value} for name, (_, value) in zip(names, record.headers, strict=True)]
    return record.offset, record.key, record.value, pairs or None


def found(row: dict[str, object]) -> tuple[object, ...]:
    return row["offset"], row["key"], row["value"], row["headers"]


def placed(batch: bytes, base_offset: int) -> bytes:
    return base_offset.to_bytes(8, "big") + batch[8:]


@given(st.lists(st.tuples(records, st.integers(0, 4)), min_size=1, max_size=4))
def test_columns_hold_what_the_records_hold(batches: list[tuple[list[Any], int]]) -> None:
    data, expected, offset = b"", [], 0
    for sent, codec in batches:
        batch = placed(encode_batch(sent, codec=codec), offset)
        expected += list(decode_records(batch))
        data += batch
        offset += len(sent) + 2
    assert [found(row) for row in rows(data)] == [wanted(record) for record in expected]
    times = [row["timestamp"].timestamp() * 1000 for row in rows(data)]  # type: ignore[attr-defined]
    assert times == pytest.approx([record.timestamp_ms for record in expected], abs=0.5)


ODD_TIMES = {"a time beyond 64 bits": "9999-12-31", "a time before all": "0001-01-01"}


@pytest.mark.parametrize("name", [name for name in LIES if name not in ODD_TIMES])
def test_a_batch_that_lies_is_refused(name: str) -> None:
    with pytest.raises(CorruptRecordsError):
        rows(LIES[name])


def test_a_record_has_so_many_headers_and_no_more() -> None:
    batch = sealed(raw_record(headers=[(b"", None)] * MAX_HEADERS), 1)
    assert found(rows(batch)[0]) == wanted(next(iter(decode_records(batch))))
    with pytest.raises(CorruptRecordsError):
        rows(sealed(raw_record(headers=[(b"", None)] * (MAX_HEADERS + 1)), 1))


@pytest.mark.parametrize("name", ODD_TIMES)
def test_a_time_that_no_calendar_has_becomes_the_nearest_one(name: str) -> None:
    assert str(rows(LIES[name])[0]["timestamp"]).startswith(ODD_TIMES[name])


def test_whatever_the_bytes_are_they_are_read_as_elsewhere_or_refused() -> None:
    random = Random(5)
    for _ in range(3_000):
        maker, batch = any_batch(random)
        header = read_header(batch)
        if header.magic != MAGIC or header.size != len(batch) or not 0 <= header.base_offset < 1 << 62:
            continue  # No broker stores such a batch.
        try:
            expected = [wanted(record) for record in decode_records(batch)]
        except (UnreadableBatch, ValueError) as error:
            if "timestamp" in str(error):
                continue  # An odd time is no reason to refuse the records.
            expected = []
        try:
            read = [found(row) for row in rows(batch)]
        except PipelineError:
            read = []
        assert read == expected, (maker, batch)


@pytest.mark.parametrize("codec", range(1, 5))
def test_a_batch_that_unpacks_to_too_much_is_refused(codec: int) -> None:
    with pytest.raises(CorruptRecordsError):
        rows(bomb(codec, 200 << 20))


def test_only_the_range_is_read() -> None:
    data = placed(many_records(10, 0), 0) + placed(many_records(10, 2), 10)
    assert [row["offset"] for row in rows(data, (7, 13))] == list(range(7, 13))
    assert rows(data, (20, 30)) == []


def test_a_wrong_checksum_is_refused() -> None:
    batch = bytearray(many_records(3, 0))
    batch[-1] ^= 1
    with pytest.raises(CorruptRecordsError, match="the batch at offset 0 has a wrong checksum"):
        rows(bytes(batch))


def test_names_that_are_no_text_get_replacement_characters() -> None:
    batch = encode_batch([(0, None, b"v", [(header_name(b"\xff\xfe"), b"x")])])
    assert rows(batch)[0]["headers"] == [{"key": "��", "value": b"x"}]


def test_a_map_has_the_last_header_of_each_name() -> None:
    headers: list[list[tuple[str, bytes | None]]] = [[("a", b"1"), ("b", None), ("a", b"2")], [], [("a", b"3")]]
    batch = encode_batch([(0, None, b"v", each) for each in headers])
    view = memoryview(batch)
    schema = arrow_schema(headers_as_map=True)
    columns = next(decode([checked_batch(view, *place) for place in iterate_batches(view)], with_headers=True))
    table = next(iter(to_batches(columns, "t", 0, EVERYTHING, schema)))
    assert [dict(row) if row else None for row in table.column("headers").to_pylist()] == [
        {"a": b"2", "b": None},
        None,
        {"a": b"3"},
    ]
    assert isinstance(table, pa.RecordBatch)


@given(st.lists(st.tuples(st.sampled_from([0, 5, 60, 61, 300]), st.integers(1, 150)), min_size=1, max_size=4))
def test_runs_of_records_of_the_same_size_are_found_as_they_are(runs: list[tuple[int, int]]) -> None:
    sizes = [size for size, count in runs for _ in range(count)]
    batch = encode_batch([(number, b"k", bytes(size), ()) for number, size in enumerate(sizes)])
    assert [(row["offset"], len(cast("bytes", row["value"]))) for row in rows(batch)] == list(enumerate(sizes))


def test_runs_of_large_records_are_found() -> None:
    batch = encode_batch([(0, b"k", bytes(20_000), ()) for _ in range(100)])
    assert [len(cast("bytes", row["value"])) for row in rows(batch)] == [20_000] * 100
