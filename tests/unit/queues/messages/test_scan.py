"""Scanning a batch into runs of messages with equal attributes."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from conveyor.log.record_source import MessageSource
from conveyor.queues.messages.scan import BatchScan, Scanned
from conveyor.records import compression
from conveyor.records.batch import CONTROL, read_header
from conveyor.records.checked_batch import own_batch
from conveyor.records.record import Header, decode_records, encode_batch, rebuild_batch
from conveyor.testing import MemoryDisk
from tests.unit.log.logs import NOW_MS, open_topic_log
from tests.unit.queues.stage import header

CODECS = [compression.NONE, compression.GZIP]


def scan(content: bytes, attributes: int = 0) -> BatchScan:
    log = open_topic_log(MemoryDisk())
    log.append(own_batch(content), 0, NOW_MS)
    log.write()
    source = MessageSource("t", 0, log)
    found, place, stored = next(source.batches(0, log.written_offset, 1 << 20))
    return BatchScan(source, found._replace(attributes=found.attributes | attributes), place, stored)


def batch(*headers: Sequence[Header], codec: int = compression.NONE) -> bytes:
    return encode_batch([(NOW_MS, None, b"v", record_headers) for record_headers in headers], codec=codec)


def runs(content: bytes, fair_by: str | None = None) -> list[tuple[int, int, int, int, str]]:
    found = scan(content).runs(fair_by)[0]
    return [(run.start, run.end, run.priority, run.due_ms, run.group) for run in found]


@pytest.mark.parametrize("codec", CODECS)
def test_plain_batch_is_one_run(codec: int) -> None:
    found = scan(batch((), (("other", b"1"),), (), codec=codec)).runs(None)[0]
    assert found == [Scanned(0, 3, 4, 0, 0, NOW_MS, "")]


@pytest.mark.parametrize("codec", CODECS)
def test_special_messages_split_runs(codec: int) -> None:
    delayed, urgent = [header("delay-ms", 500)], [header("priority", 9)]
    found = runs(batch((), (), delayed, delayed, urgent, (), codec=codec))
    assert found == [(0, 2, 4, 0, ""), (2, 4, 4, NOW_MS + 500, ""), (4, 5, 9, 0, ""), (5, 6, 4, 0, "")]


def test_groups_split_runs_where_they_are_asked_for() -> None:
    content = batch([("g", b"a")], [("g", b"a")], [("g", b"b")], [])
    assert runs(content) == [(0, 4, 4, 0, "")]
    assert runs(content, "g") == [(0, 2, 4, 0, "a"), (2, 3, 4, 0, "b"), (3, 4, 4, 0, "")]


def test_batch_is_looked_through_once_for_each_grouping() -> None:
    found = scan(batch((), ()))
    assert found.runs(None)[0] is found.runs(None)[0]


def test_control_batch_holds_no_messages() -> None:
    assert scan(batch(()), CONTROL).runs(None)[0] == []


def test_batch_that_was_emptied_holds_no_messages() -> None:
    content = batch((), ())
    found = read_header(content)
    assert scan(rebuild_batch(found, [], NOW_MS, found.attributes)).runs(None)[0] == []


def test_holes_among_special_messages_are_left_out() -> None:
    content = batch([header("priority", 9)], (), ())
    found = read_header(content)
    kept = [record for record in decode_records(content) if record.offset != 1]
    assert runs(rebuild_batch(found, kept, NOW_MS, found.attributes)) == [(0, 1, 9, 0, ""), (2, 3, 4, 0, "")]


def test_batch_whose_record_lies_beyond_it_has_no_messages() -> None:
    """A producer may write any offset into a record. The log after such a batch must not appear empty."""
    content = bytearray(batch([header("priority", 9)], [header("priority", 9)]))
    found = read_header(bytes(content))
    records = list(decode_records(bytes(content)))
    strange = rebuild_batch(found, [records[0], replace(records[1], offset=1_000)], NOW_MS, found.attributes)
    assert runs(strange) == []


@pytest.mark.parametrize("codec", CODECS)
def test_batch_of_many_records_is_looked_through_part_by_part(codec: int) -> None:
    content = batch(*[[header("priority", number % 2)] for number in range(2_500)], codec=codec)
    found = read_header(content)
    kept = [record for record in decode_records(content) if not 1_200 <= record.offset < 1_300]
    scanned = scan(rebuild_batch(found, kept, NOW_MS, found.attributes))
    offsets: list[int] = []
    start = 0
    while start < found.next_offset:
        runs_found, reached = scanned.runs(None, start)
        assert start < reached
        offsets += [run.start for run in runs_found]
        start = reached
    assert offsets == [record.offset for record in kept]
    assert scanned.runs(None, 1_250)[0][0].start == 1_300
