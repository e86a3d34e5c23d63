"""A truncation that cuts a marker opens its transaction again, and forgets that it was aborted."""

from conveyor.log.aborted_search import aborted_between
from conveyor.log.log import Log
from conveyor.records.batch import TRANSACTIONAL
from conveyor.records.record import encode_batch
from conveyor.records.transaction_marker import TransactionMarker, encode_marker
from conveyor.testing import MemoryDisk
from tests.unit.log.logs import NOW_MS, append, batch, flush, open_topic_log


def begin(log: Log, producer_id: int) -> None:
    append(
        log,
        encode_batch(
            [(NOW_MS, None, b"v", ())],
            attributes=TRANSACTIONAL, producer_id=producer_id, producer_epoch=0, base_sequence=0,
        ),
    )  # fmt: skip


def abort(log: Log, producer_id: int) -> None:
    marker = TransactionMarker(producer_id=producer_id, producer_epoch=1, coordinator_epoch=0, commits=False)
    append(log, encode_marker(marker, NOW_MS))


def cut(log: Log, offset: int) -> None:
    log.truncation.truncate_to(offset)
    job = log.truncation.begin(NOW_MS)
    assert job is not None
    log.truncation.complete(job, job.run())


def test_cut_marker_opens_its_transaction_again() -> None:
    disk = MemoryDisk()
    log = open_topic_log(disk)
    begin(log, 1)
    begin(log, 2)
    abort(log, 1)
    append(log, batch(b"v"))
    abort(log, 2)
    flush(log)
    log.producers.transactions.forget_decided(5)
    assert aborted_between(log.segments.all, 0, 5) == [(1, 0, 2, 1), (2, 1, 4, 5)]
    assert aborted_between(log.segments.all, 0, 1) == [(1, 0, 2, 1)]
    cut(log, 4)
    for each in (log, open_topic_log(disk)):
        assert aborted_between(each.segments.all, 0, 4) == [(1, 0, 2, 1)]
        assert each.producers.transactions.first_unstable_offset(4) == 1
    cut(log, 2)
    for each in (log, open_topic_log(disk)):
        assert aborted_between(each.segments.all, 0, 2) == []
        assert each.producers.transactions.first_unstable_offset(2) == 0
