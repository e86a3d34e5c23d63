"""Messages of aborted transactions, read one by one: nobody sees them, and they are searched for once per stretch."""

from collections.abc import Sequence
from itertools import count

import pytest

from conveyor.log import record_source
from conveyor.log.aborted_search import aborted_between
from conveyor.log.log import Log
from conveyor.log.record_source import MessageSource
from conveyor.log.segments.segment import Segment
from conveyor.log.transactions.aborted_entries import AbortedTransaction
from conveyor.records.batch import TRANSACTIONAL
from conveyor.records.record import encode_batch
from conveyor.records.transaction_marker import TransactionMarker, encode_marker
from conveyor.testing import MemoryDisk
from tests.unit.log.logs import NOW_MS, append, open_topic_log

LONG = 1_000
"""The producer of the transaction that stays open."""


@pytest.fixture
def searched(monkeypatch: pytest.MonkeyPatch) -> list[range]:
    """The offsets of each search for aborted transactions."""
    searched: list[range] = []

    def recorded(segments: Sequence[Segment], offset: int, limit_offset: int) -> list[AbortedTransaction]:
        searched.append(range(offset, limit_offset))
        return aborted_between(segments, offset, limit_offset)

    monkeypatch.setattr(record_source, "aborted_between", recorded)
    return searched


def begin(log: Log, producer_id: int) -> int:
    options = {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": 0}
    return append(log, encode_batch([(NOW_MS, None, b"v", ())], attributes=TRANSACTIONAL, **options)).first_offset


def end(log: Log, producer_id: int, *, commits: bool) -> None:
    marker = TransactionMarker(producer_id=producer_id, producer_epoch=1, coordinator_epoch=0, commits=commits)
    append(log, encode_marker(marker, NOW_MS))


def scan(source: MessageSource, offset: int, stable_offset: int) -> None:
    while offset < stable_offset:
        for stored in source.batches(offset, stable_offset, 1_000):
            offset = stored.header.next_offset


def visible(source: MessageSource, offsets: range) -> list[int]:
    return [offset for offset in offsets if source.get(offset) is not None]


def test_aborted_transactions_are_searched_once_for_many_batches(searched: list[range]) -> None:
    log = open_topic_log(MemoryDisk())
    source, producer_ids = MessageSource("t", 3, log), count()
    committed = [begin(log, LONG)]
    for _ in range(300):
        for commits in (True, False):
            producer_id = next(producer_ids)
            offset = begin(log, producer_id)
            committed += [offset] if commits else []
            end(log, producer_id, commits=commits)
    end(log, LONG, commits=True)
    scan(source, 0, log.written_offset)
    assert visible(source, range(log.written_offset)) == committed
    assert searched == [range(log.written_offset)]
    source.use(log)
    assert visible(source, range(log.written_offset)) == committed
    assert searched == [range(log.written_offset)] * 2


def test_transaction_that_is_not_decided_yet_is_searched_for_again(searched: list[range]) -> None:
    log = open_topic_log(MemoryDisk())
    source = MessageSource("t", 3, log)
    first = begin(log, 1)
    end(log, 1, commits=False)
    stable_offset = begin(log, 2)
    later = begin(log, 3)
    end(log, 3, commits=True)
    scan(source, first, stable_offset)
    assert visible(source, range(stable_offset)) == []
    end(log, 2, commits=False)
    scan(source, stable_offset, log.written_offset)
    assert visible(source, range(log.written_offset)) == [later]
    assert searched == [range(first, stable_offset), range(stable_offset, log.written_offset)]
