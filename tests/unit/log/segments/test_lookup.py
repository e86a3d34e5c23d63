"""Reading: whole batches within a size, at least one of them (KIP-74), and offsets by time."""

from collections.abc import Iterator
from typing import Any

import pytest

from conveyor.kernel.errors import ErrorKind, RequestError, StorageFailure
from conveyor.log.log import Log
from conveyor.log.segments.lookup import find_newest, find_time, segment_for
from conveyor.log.segments.segment import Segment
from conveyor.records.batch import HEADER_BYTES, BatchHeader, read_header
from conveyor.records.checked_batch import own_batch
from conveyor.records.compression import ZSTD
from conveyor.records.record import encode_batch, seal_batch, unpack_records
from conveyor.settings.tree import TopicSettings
from conveyor.testing import MemoryDisk
from tests.lying_batches import LIES
from tests.unit.log.logs import NOW_MS, append, batch, contents, flush, open_topic_log, read_bytes, records_of

SIZE = len(batch(b"a", b"b"))
COUNT = 12


def log_of_pairs(*, segment_bytes: int = 5 * SIZE, index_interval_bytes: int = SIZE, flushed: bool = False) -> Log:
    """Twelve batches of two records in segments of five."""
    log = open_topic_log(
        MemoryDisk(), TopicSettings(segment_bytes=segment_bytes, index_interval_bytes=index_interval_bytes)
    )
    for _ in range(COUNT):
        append(log, batch(b"a", b"b"))
    if flushed:
        flush(log)
    return log


@pytest.fixture(params=[False, True], ids=["written", "sealed"])
def pairs(request: pytest.FixtureRequest) -> Log:
    return log_of_pairs(flushed=request.param)


def found_time(log: Log, timestamp_ms: int, limit_offset: int | None = None) -> int | None:
    limit: int = log.written_offset if limit_offset is None else limit_offset
    record = find_time(log.segments.all, timestamp_ms, limit)
    return None if record is None else record.offset


def test_read_begins_with_the_batch_that_holds_the_offset(pairs: Log) -> None:
    for offset in range(2 * COUNT):
        assert records_of(read_bytes(pairs, offset))[0][0] == offset // 2 * 2


@pytest.mark.parametrize("max_bytes", [SIZE, SIZE + 1, 2 * SIZE, 3 * SIZE - 1, 5 * SIZE, 100 * SIZE])
def test_read_ends_on_a_batch_boundary_within_the_size(pairs: Log, max_bytes: int) -> None:
    for offset in range(0, 2 * COUNT, 2):
        content = read_bytes(pairs, offset, max_bytes)
        assert 0 < len(content) <= max_bytes
        assert len(content) % SIZE == 0


@pytest.mark.parametrize("max_bytes", [0, 1, SIZE - 1])
def test_read_takes_one_large_batch_whole_if_it_must(pairs: Log, max_bytes: int) -> None:
    assert len(read_bytes(pairs, 4, max_bytes)) == SIZE
    assert pairs.read(4, max_bytes, pairs.written_offset, at_least_one=False) is None


@pytest.mark.parametrize("max_bytes", [0, SIZE, 3 * SIZE, 100 * SIZE])
def test_reads_one_after_the_other_give_everything(pairs: Log, max_bytes: int) -> None:
    assert [offset for offset, _ in contents(pairs, 0, max_bytes)] == list(range(2 * COUNT))


def test_read_stays_below_the_limit(pairs: Log) -> None:
    for limit in range(0, 2 * COUNT + 1, 2):
        found = pairs.read(0, 100 * SIZE, limit, at_least_one=True)
        assert (found.length if found else 0) == min(limit // 2, 5) * SIZE


def test_read_at_the_limit_finds_nothing_yet(pairs: Log) -> None:
    assert pairs.read(6, 100, 6, at_least_one=True) is None
    assert pairs.read(2 * COUNT, 100, 2 * COUNT, at_least_one=True) is None


@pytest.mark.parametrize("offset", [-1, 2 * COUNT + 1])
def test_read_outside_the_log_is_refused(pairs: Log, offset: int) -> None:
    with pytest.raises(RequestError) as refused:
        pairs.read(offset, 100, pairs.written_offset, at_least_one=True)
    assert refused.value.kind is ErrorKind.OFFSET_OUT_OF_RANGE


def test_read_does_not_see_what_is_not_written() -> None:
    log = log_of_pairs(index_interval_bytes=0)
    log.append(own_batch(batch(b"c")), 0, NOW_MS)
    assert log.read(2 * COUNT, 100, log.log_end_offset, at_least_one=True) is None
    assert contents(log, 2 * COUNT - 2) == [(2 * COUNT - 2, b"a"), (2 * COUNT - 1, b"b")]


def test_read_finds_its_way_after_many_other_readers() -> None:
    log = log_of_pairs(segment_bytes=1 << 20, index_interval_bytes=1 << 20)
    for _ in range(100):
        append(log, batch(b"a", b"b"))
    for offset in [*range(0, 224, 2), *range(0, 224, 2)]:
        assert records_of(read_bytes(log, offset, SIZE))[0][0] == offset


def test_segment_for_takes_the_first_for_what_is_below_all(pairs: Log) -> None:
    found = [segment_for(pairs.segments.all, offset).base_offset for offset in (-1, 0, 9, 10, 19, 20, 99)]
    assert found == [0, 0, 0, 10, 10, 20, 20]


@pytest.mark.parametrize("cut_bytes", [1, SIZE - 61, SIZE - 60])
def test_headers_of_a_cut_file_are_a_failure(cut_bytes: int) -> None:
    segment = log_of_pairs().segments.all[0]
    segment.file.truncate(segment.size - cut_bytes)
    with pytest.raises(StorageFailure, match=rf"{0:020d}\.log"):
        list(segment.headers())


def test_find_time_takes_the_first_record_at_or_after() -> None:
    log = open_topic_log(MemoryDisk(), TopicSettings(segment_bytes=3 * SIZE, index_interval_bytes=0))
    times = [10, 30, 20, 40, 60, 50, 70]
    for at_ms in times:
        append(log, batch(b"v", at_ms=at_ms))
    for wanted in range(80):
        first = next((offset for offset, at_ms in enumerate(times) if at_ms >= wanted), None)
        assert found_time(log, wanted) == first
    flush(log)
    assert [found_time(log, wanted) for wanted in (0, 21, 55, 70, 71)] == [0, 1, 4, 6, None]


@pytest.mark.parametrize("codec", [0, ZSTD])
def test_find_time_looks_inside_a_batch(codec: int) -> None:
    log = open_topic_log(MemoryDisk())
    append(log, encode_batch([(at_ms, None, b"v", ()) for at_ms in (5, 9, 7)], codec=codec))
    assert [found_time(log, wanted) for wanted in (5, 6, 9, 10)] == [0, 1, 1, None]


def test_find_time_stays_below_the_limit() -> None:
    log = open_topic_log(MemoryDisk())
    for at_ms in (10, 20):
        append(log, batch(b"v", at_ms=at_ms))
    assert found_time(log, 15, limit_offset=1) is None
    assert found_time(log, 15, limit_offset=2) == 1


def test_find_newest_takes_the_first_of_the_newest() -> None:
    log = open_topic_log(MemoryDisk(), TopicSettings(segment_bytes=2 * SIZE))
    assert find_newest(log.segments.all, 0) is None
    for at_ms in (10, 40, 20, 40, 30):
        append(log, batch(b"v", at_ms=at_ms))
    newest = find_newest(log.segments.all, log.written_offset)
    assert newest is not None
    assert (newest.offset, newest.timestamp_ms) == (1, 40)


@pytest.mark.parametrize("interval_bytes", [0, SIZE, 100 * SIZE])
@pytest.mark.parametrize("flushed", [False, True], ids=["written", "sealed"])
@pytest.mark.parametrize("times", [(90, 10, 20, 20, 5, 30, 30, 7), (9, 8, 7, 6, 5, 4, 3, 2), (1, 2, 3, 3, 3, 2, 9, 9)])
def test_find_newest_looks_only_between_its_limits(times: tuple[int, ...], interval_bytes: int, flushed: bool) -> None:
    """The newest record may be deleted, or not be committed."""
    settings = TopicSettings(segment_bytes=4 * len(batch(b"v")), index_interval_bytes=interval_bytes)
    log = open_topic_log(MemoryDisk(), settings)
    for at_ms in times:
        append(log, batch(b"v", at_ms=at_ms))
    if flushed:
        flush(log)
    for limit in range(1, len(times) + 1):
        for start in range(limit):
            newest = find_newest(log.segments.all, limit, start)
            assert newest is not None
            expected_ms = max(times[start:limit])
            assert (newest.offset, newest.timestamp_ms) == (times.index(expected_ms, start), expected_ms)


@pytest.mark.parametrize("start", [0, 1])
def test_batch_that_claims_a_time_that_none_of_its_records_has_is_the_newest(start: int) -> None:
    """The record may be deleted."""
    log = open_topic_log(MemoryDisk())
    true = encode_batch([(10, None, b"", ()), (5, None, b"", ())])
    append(log, true if start else seal_batch(read_header(true)._replace(max_timestamp=11), true[HEADER_BYTES:]))
    newest = find_newest(log.segments.all, 2, start)
    assert newest is not None
    assert (newest.offset, newest.timestamp_ms) == (start, 10 if start else 11)


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_batch_that_cannot_be_read_is_found_by_time_and_hides_none(lie: bytes) -> None:
    time_ms = read_header(lie).max_timestamp
    log = open_topic_log(MemoryDisk())
    append(log, batch(b"before", at_ms=time_ms - 1))
    append(log, lie)
    append(log, batch(b"after", at_ms=time_ms + 1))
    before, found, after = (found_time(log, time_ms + late_ms) for late_ms in (-1, 0, 1))
    assert found is not None
    assert before == 0
    assert 1 <= found < log.log_end_offset - 1
    assert after == log.log_end_offset - 1


def test_batch_that_takes_long_to_look_at_is_found_as_a_whole() -> None:
    log = open_topic_log(MemoryDisk())
    append(log, encode_batch([(NOW_MS, None, b"", ())] * 30_000 + [(NOW_MS + 1, None, b"", ())], codec=ZSTD))
    assert found_time(log, NOW_MS + 1) == 0


@pytest.mark.parametrize("count", [1, 1_000])
def test_few_batches_are_examined_that_claim_times_none_of_their_records_has(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    examined: list[int] = []

    def unpack_counted(*arguments: Any) -> Any:
        examined.append(count)
        return unpack_records(*arguments)

    monkeypatch.setattr("conveyor.log.segments.lookup.unpack_records", unpack_counted)
    true = encode_batch([(NOW_MS, None, b"", ())] * count, codec=ZSTD)
    lie = seal_batch(read_header(true)._replace(max_timestamp=NOW_MS + 1_000), true[HEADER_BYTES:])
    log = open_topic_log(MemoryDisk(), TopicSettings(segment_bytes=10 * len(lie)))
    for _ in range(21_000 // (count + 50) + 20):
        append(log, lie)
    assert found_time(log, NOW_MS + 1) == len(examined) * count
    assert sum(examined) <= 20_000
    assert len(examined) <= 400
    find_newest(log.segments.all, log.written_offset)
    assert len(examined) <= 800


@pytest.fixture
def looked_at(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The positions of the headers that searches have looked at."""
    positions: list[int] = []
    headers = Segment.headers

    def counted_headers(*arguments: Any) -> Iterator[tuple[int, BatchHeader]]:
        for position, header in headers(*arguments):
            positions.append(position)
            yield position, header

    monkeypatch.setattr(Segment, "headers", counted_headers)
    return positions


@pytest.mark.parametrize("is_sealed", [False, True])
def test_search_by_time_skips_older_batches_that_a_newer_one_precedes(looked_at: list[int], is_sealed: bool) -> None:
    """As after a record with a time in the future. The last batch is not committed yet."""
    size = len(batch(b"v"))
    log = open_topic_log(MemoryDisk(), TopicSettings(segment_bytes=302 * size, index_interval_bytes=2 * size))
    for at_ms in (500, *[100] * 300, 900, 1_000):
        append(log, batch(b"v", at_ms=at_ms))
    if is_sealed:
        flush(log)
    assert found_time(log, 600) == 301
    newest = find_newest(log.segments.all, 300)
    assert newest is not None
    assert newest.offset == 0
    assert len(looked_at) < 20


def test_search_by_time_is_exact_however_long_the_index_interval_is() -> None:
    """All batches of an interval are looked at, and no more than a limited number."""
    log = open_topic_log(MemoryDisk(), TopicSettings(index_interval_bytes=1 << 30))
    for at_ms in range(60_000):
        log.append(own_batch(batch(b"v", at_ms=at_ms)), 0, NOW_MS)
    log.write()
    assert found_time(log, 55_000) == 55_000
    newest = find_newest(log.segments.all, log.written_offset - 1)
    assert newest is not None
    assert newest.offset == 59_998


def test_search_by_time_ends_although_no_batch_is_what_it_seems(looked_at: list[int]) -> None:
    """The first batch claims a time that none of its records has; or a record is deleted, the only one with its time in
    the index. Every record before the found one is older all the same.
    """
    log = open_topic_log(MemoryDisk(), TopicSettings(index_interval_bytes=0))
    true = batch(b"v", at_ms=100)
    append(log, seal_batch(read_header(true)._replace(max_timestamp=500), true[HEADER_BYTES:]))
    for _ in range(60_000):
        log.append(own_batch(true), 0, NOW_MS)
    append(log, batch(b"v", at_ms=600))
    assert found_time(log, 400) == 49_999
    deleted = find_time(log.segments.all, 400, log.written_offset, start_offset=1)
    assert deleted is not None
    assert deleted.offset == 50_000
    newest = find_newest(log.segments.all, log.written_offset - 1, start_offset=1)
    assert newest is not None
    assert newest.timestamp_ms == 100
    assert len(looked_at) <= 200_000
