"""Which batches a reader of committed transactions sees."""

import pytest

from conveyor.records.batch import CONTROL, TRANSACTIONAL, BatchHeader, iterate_batches, read_header
from conveyor.records.record import encode_batch
from conveyor.records.transaction_marker import TransactionMarker, encode_marker
from pyspark_conveyor.pipeline_errors import PipelineError
from pyspark_conveyor.source.committed_batches import CommittedBatches, wanted_batches
from pyspark_conveyor.source.record_columns import CorruptRecordsError
from pyspark_conveyor.source.record_fetch import FetchPlace, check_order
from tests.lying_batches import raw_record, sealed


def placed(batch: bytes, offset: int) -> bytes:
    return offset.to_bytes(8, "big") + batch[8:]


def data(offset: int, producer_id: int = -1) -> bytes:
    attributes = TRANSACTIONAL if producer_id >= 0 else 0
    return placed(encode_batch([(0, None, b"v", ())], attributes=attributes, producer_id=producer_id), offset)


def marker(offset: int, producer_id: int, *, commits: bool) -> bytes:
    end = TransactionMarker(producer_id=producer_id, producer_epoch=0, coordinator_epoch=0, commits=commits)
    return placed(encode_marker(end, 0), offset)


def seen(batches: list[bytes], aborted: list[tuple[int, int]]) -> list[int]:
    committed = CommittedBatches(aborted)
    return [read_header(batch).base_offset for batch in batches if committed.has(read_header(batch), batch)]


def test_aborted_batches_and_markers_are_passed_over() -> None:
    batches = [data(0), data(1, 7), data(2, 8), marker(3, 7, commits=False), marker(4, 8, commits=True), data(5, 7)]
    assert seen(batches, [(7, 1)]) == [0, 2, 5]


def test_a_producers_next_transaction_is_seen_after_an_abort() -> None:
    batches = [data(10, 7), marker(11, 7, commits=False), data(12, 7), marker(13, 7, commits=True)]
    assert seen(batches, [(7, 10)]) == [12]


def test_a_transaction_that_was_aborted_twice_is_passed_over_twice() -> None:
    batches = [data(0, 7), marker(1, 7, commits=False), data(2, 7), marker(3, 7, commits=False), data(4)]
    assert seen(batches, [(7, 2), (7, 0)]) == [4]


def test_reading_may_begin_within_an_aborted_transaction() -> None:
    assert seen([data(5, 7), data(6), marker(7, 7, commits=False)], [(7, 2)]) == [6]


def wanted(content: bytes, start: int = 0, end: int = 100, aborted: tuple[tuple[int, int], ...] = ()) -> list[int]:
    view = memoryview(content)
    found = wanted_batches(view, iterate_batches(view), CommittedBatches(aborted), start, end)
    return [batch.header.base_offset for batch in found]


def test_batches_outside_the_range_are_not_wanted() -> None:
    emptied = sealed(b"", 0, fields={"base_offset": 4, "last_offset_delta": 0})
    content = b"".join([*(data(offset) for offset in range(4)), emptied, data(5), data(6)])
    assert wanted(content, 2, 6) == [2, 3, 5]


@pytest.mark.parametrize("attributes", [CONTROL, TRANSACTIONAL])
def test_a_damaged_header_does_not_let_a_batch_be_passed_over(attributes: int) -> None:
    damaged = bytearray(data(0, 7) if attributes == CONTROL else data(0))
    damaged[22] ^= attributes
    damaged[43:51] = (7).to_bytes(8, "big")
    with pytest.raises(CorruptRecordsError, match="offset 0 has a wrong checksum"):
        wanted(bytes(damaged) + data(1), aborted=((7, 0),))


@pytest.mark.parametrize("count", [0, -1])
def test_records_that_are_not_counted_are_refused(count: int) -> None:
    lying = sealed(raw_record(), 1, fields={"records_count": count})
    with pytest.raises(CorruptRecordsError, match=f"counts {count} records"):
        wanted(lying)


def headers(*offsets: tuple[int, int]) -> list[BatchHeader]:
    """Headers of batches with offsets [first, end)."""
    fields = [{"base_offset": first, "last_offset_delta": end - first - 1} for first, end in offsets]
    return [read_header(sealed(raw_record(), 1, fields=each)) for each in fields]


def test_offsets_rise_to_the_high_watermark() -> None:
    check_order(FetchPlace("t", 0, 12, 90), headers((10, 20), (20, 21), (50, 90)), 90)


@pytest.mark.parametrize(
    "offsets",
    [[(13, 91)], [(10, 12)], [(12, 12)], [(12, 20), (19, 30)], [(12, 20), (20, 20)], [(12, 20), (20, 10)]],
)
def test_offsets_that_do_not_rise_are_refused(offsets: list[tuple[int, int]]) -> None:
    with pytest.raises(CorruptRecordsError, match="does not follow offset"):
        check_order(FetchPlace("t", 0, 12, 90), headers(*offsets), 90)


def test_an_old_format_is_not_taken_for_a_damaged_batch() -> None:
    old = sealed(raw_record(), 1, fields={"magic": 1, "base_offset": 7, "last_offset_delta": -5})
    check_order(FetchPlace("t", 0, 12, 90), [read_header(old)], 90)
    with pytest.raises(PipelineError, match="have the format 1 of Kafka"):
        wanted(old)
