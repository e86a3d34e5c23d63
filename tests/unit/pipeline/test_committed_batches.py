"""Which batches a reader of committed transactions sees."""

from conveyor.pipeline.source.committed_batches import CommittedBatches
from conveyor.records.batch import TRANSACTIONAL, read_header
from conveyor.records.record import encode_batch
from conveyor.records.transaction_marker import TransactionMarker, encode_marker


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
