"""The log's own life: offsets, duplicates, rolls by size and age, writes and flushes."""

from pathlib import Path

import pytest

from conveyor.adapters.disk import RealDisk
from conveyor.kernel.errors import ErrorKind, ReadLater, RequestError, StorageFailure
from conveyor.log import log_start, tail
from conveyor.log.compaction import swap
from conveyor.log.compaction.key_compaction import CompactionResult
from conveyor.log.log import Log
from conveyor.log.log_probe import LogProbe
from conveyor.records.batch import read_header
from conveyor.records.checked_batch import own_batch
from conveyor.records.record import decode_records
from conveyor.settings.tree import TopicSettings
from conveyor.testing import MemoryDisk
from tests.unit.log.logs import (
    DIRECTORY,
    NOW_MS,
    append,
    batch,
    flush,
    idempotent_batch,
    open_topic_log,
    read_bytes,
    values,
)

SIZE = len(batch(b"a"))


def bases(log: Log) -> list[int]:
    return [segment.base_offset for segment in log.segments.all]


def test_append_gives_dense_offsets() -> None:
    log = open_topic_log(MemoryDisk())
    placed = [log.append(own_batch(batch(*[b"v"] * count)), 0, NOW_MS) for count in (1, 3, 2)]
    assert [(each.first_offset, each.last_offset) for each in placed] == [(0, 0), (1, 3), (4, 5)]
    assert [each.duplicate for each in placed] == [False] * 3


def test_offsets_follow_append_write_and_flush() -> None:
    log = open_topic_log(MemoryDisk())
    log.append(own_batch(batch(b"a", b"b")), 0, NOW_MS)
    assert (log.flushes.flushed_offset, log.written_offset, log.log_end_offset) == (0, 0, 2)
    log.write()
    assert (log.flushes.flushed_offset, log.written_offset, log.flushes.is_due) == (0, 2, True)
    flush(log)
    assert (log.flushes.flushed_offset, log.flushes.is_due) == (2, False)


def test_all_appends_are_one_write() -> None:
    disk = MemoryDisk()
    log = open_topic_log(disk)
    for value in (b"a", b"b"):
        log.append(own_batch(batch(value)), 0, NOW_MS)
    assert log.segments.size_bytes == 0
    log.write()
    assert log.segments.size_bytes == 2 * SIZE
    assert values(log) == [b"a", b"b"]


def test_stored_batch_is_the_producers_own_but_for_offset_and_epoch() -> None:
    log = open_topic_log(MemoryDisk())
    append(log, batch(b"before"))
    sent = idempotent_batch(0, b"a", b"b")
    log.append(own_batch(sent), 6, NOW_MS)
    log.write()
    stored = read_bytes(log, 1)
    assert (read_header(stored).base_offset, read_header(stored).leader_epoch) == (1, 6)
    assert stored[8:12] + stored[16:] == sent[8:12] + sent[16:]


def test_append_takes_a_view() -> None:
    log = open_topic_log(MemoryDisk())
    log.append(own_batch(memoryview(batch(b"a"))), 0, NOW_MS)
    log.write()
    assert values(log) == [b"a"]


def test_duplicate_is_answered_with_its_first_offsets_and_not_stored() -> None:
    log = open_topic_log(MemoryDisk())
    append(log, batch(b"before"))
    append(log, idempotent_batch(0, b"a", b"b"), NOW_MS)
    again = append(log, idempotent_batch(0, b"a", b"b"), NOW_MS + 5)
    assert (again.first_offset, again.last_offset, again.append_timestamp_ms, again.duplicate) == (1, 2, NOW_MS, True)
    assert values(log) == [b"before", b"a", b"b"]


def test_out_of_order_sequence_is_refused_and_leaves_no_trace() -> None:
    log = open_topic_log(MemoryDisk())
    append(log, idempotent_batch(0, b"a"))
    with pytest.raises(RequestError) as refused:
        log.append(own_batch(idempotent_batch(2, b"c")), 0, NOW_MS)
    assert refused.value.kind is ErrorKind.OUT_OF_ORDER_SEQUENCE
    assert (log.log_end_offset, log.written_offset) == (1, 1)


def test_append_time_stamps_the_records() -> None:
    log = open_topic_log(MemoryDisk(), TopicSettings(message_timestamp_type="LogAppendTime"))
    append(log, batch(b"a", at_ms=5), NOW_MS + 1)
    assert [record.timestamp_ms for record in decode_records(read_bytes(log, 0))] == [NOW_MS + 1]


def test_log_rolls_before_a_segment_grows_too_large() -> None:
    log = open_topic_log(MemoryDisk(), TopicSettings(segment_bytes=2 * SIZE))
    for value in (b"a", b"b", b"c", b"d", b"e"):
        append(log, batch(value))
    assert bases(log) == [0, 2, 4]
    assert values(log) == [b"a", b"b", b"c", b"d", b"e"]


def test_batch_larger_than_a_segment_has_one_to_itself() -> None:
    log = open_topic_log(MemoryDisk(), TopicSettings(segment_bytes=SIZE))
    for value in (b"a", b"b" * 500, b"c"):
        append(log, batch(value))
    assert bases(log) == [0, 1, 2]


def test_log_rolls_by_the_age_of_its_first_record() -> None:
    log = open_topic_log(MemoryDisk(), TopicSettings(segment_ms=1000))
    for age_ms in (0, 999, 1000, 1999, 2000):
        append(log, batch(b"v"), NOW_MS + age_ms)
    assert bases(log) == [0, 2, 4]


def test_log_with_many_segments_makes_no_small_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise each record of a client could be a segment, with files and memory of its own."""
    monkeypatch.setattr(tail, "MANY_SEGMENTS", 3)
    log = open_topic_log(MemoryDisk(), TopicSettings(segment_bytes=SIZE, segment_ms=1))
    half = b"x" * (1 << 19)
    for number, value in enumerate((b"a", b"b", b"c", b"d", half, half, b"e")):
        append(log, batch(value), NOW_MS + number * 1_000)
    assert bases(log) == [0, 1, 2, 5]


@pytest.mark.parametrize("swaps", [False, True])
def test_removal_of_many_segments_opens_few_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, swaps: bool) -> None:
    """Of the others those stay readable that are open: a broker has few files to open beside its connections."""
    for module in (log_start, swap):
        monkeypatch.setattr(module, "MOST_DETACHED", 2)
    log = open_topic_log(RealDisk(tmp_path, max_open_files=4), TopicSettings(segment_bytes=SIZE))
    for number in range(20):
        append(log, batch(bytes([number])))
        flush(log)
    removed = log.segments.all[:19]
    for segment in removed:
        segment.file.read(0, 1)
    if swaps:
        offsets = tuple(segment.base_offset for segment in removed)
        result = CompactionResult(
            replaced=offsets, cleaned=(), cleaned_offset=19, bytes_before=0, bytes_after=0,
            unreadable_batches=0, first_unreadable_offset=-1,
        )  # fmt: skip
        swap.SwapJob(disk=log.place, directory=DIRECTORY, result=result, replaced=removed[:]).run()
    else:
        log.start.trim(19).run()
        log.start.complete_trim()
    assert opened_below(tmp_path) <= 4 + 2 * 3
    assert [segment.file.read(0, SIZE)[-2:-1] for segment in removed[-2:]] == [bytes([17]), bytes([18])]
    with pytest.raises(ReadLater, match="no longer belongs to this log"):
        removed[0].file.read(0, 1)


def test_log_rolls_earlier_by_a_jitter_that_differs_from_segment_to_segment() -> None:
    log = open_topic_log(MemoryDisk(), TopicSettings(segment_ms=1000, segment_jitter_ms=1 << 40))
    ages: list[int] = []
    now_ms = NOW_MS
    while len(ages) < 5:
        segments, began_ms = len(log.segments.all), now_ms
        while len(log.segments.all) == segments:
            now_ms += 1
            append(log, batch(b"x"), now_ms)
        ages.append(now_ms - began_ms)
    assert len(set(ages)) > 1
    assert all(0 < age <= 1001 for age in ages)


def test_log_rolls_within_one_tick() -> None:
    log = open_topic_log(MemoryDisk(), TopicSettings(segment_bytes=2 * SIZE))
    for value in (b"a", b"b", b"c"):
        log.append(own_batch(batch(value)), 0, NOW_MS)
    log.write()
    assert bases(log) == [0, 2]
    assert values(log) == [b"a", b"b", b"c"]


def test_flush_seals_closed_segments_only() -> None:
    disk = MemoryDisk()
    log = open_topic_log(disk, TopicSettings(segment_bytes=SIZE))
    for value in (b"a", b"b", b"c"):
        append(log, batch(value))
    assert [segment.sealed for segment in log.segments.all] == [False, False, False]
    flush(log)
    assert [segment.sealed for segment in log.segments.all] == [True, True, False]
    assert [name for name in disk.list(DIRECTORY) if name.endswith(".index")] == [f"{0:020d}.index", f"{1:020d}.index"]
    assert values(log) == [b"a", b"b", b"c"]


def test_appends_during_a_flush_wait_for_the_next() -> None:
    log = open_topic_log(MemoryDisk(), TopicSettings(segment_bytes=SIZE))
    append(log, batch(b"a"))
    job = log.flushes.begin()
    append(log, batch(b"b"))
    job.run()
    log.flushes.complete(job)
    assert (log.flushes.flushed_offset, log.written_offset, log.flushes.is_due) == (1, 2, True)
    flush(log)
    assert (log.flushes.flushed_offset, log.flushes.is_due) == (2, False)


@pytest.mark.parametrize("operation", ["append", "sync", "write_atomic"])
def test_failing_disk_is_a_storage_failure(operation: str) -> None:
    disk = MemoryDisk()
    log = open_topic_log(disk, TopicSettings(segment_bytes=SIZE))
    append(log, batch(b"a"))
    disk.faults.fail(operation)
    log.append(own_batch(batch(b"b")), 0, NOW_MS)
    with pytest.raises(StorageFailure, match=f"{operation} failed"):
        flush(log)


def test_close_leaves_a_clean_log_that_goes_on() -> None:
    disk = MemoryDisk()
    log = open_topic_log(disk)
    append(log, idempotent_batch(0, b"a"))
    log.append(own_batch(idempotent_batch(1, b"b")), 0, NOW_MS)
    log.close()
    probe = LogProbe()
    reopened = open_topic_log(disk, probe=probe)
    assert probe.recovered_segments == 0
    assert reopened.flushes.flushed_offset == reopened.log_end_offset == 2
    assert append(reopened, idempotent_batch(1, b"b")).duplicate
    assert append(reopened, idempotent_batch(2, b"c")).first_offset == 2
    assert values(reopened) == [b"a", b"b", b"c"]


def test_log_reopened_and_closed_unused_stays_clean() -> None:
    disk = MemoryDisk()
    append(first := open_topic_log(disk), batch(b"a"))
    first.close()
    names = disk.list(DIRECTORY)
    open_topic_log(disk).close()
    assert disk.list(DIRECTORY) == names
    assert values(open_topic_log(disk)) == [b"a"]


def test_reopened_log_that_grows_is_no_longer_sealed() -> None:
    disk = MemoryDisk()
    append(first := open_topic_log(disk), batch(b"a"))
    first.close()
    append(open_topic_log(disk), batch(b"b"))
    assert [name for name in disk.list(DIRECTORY) if name.endswith("seal")] == []
    assert values(open_topic_log(disk)) == [b"a", b"b"]


def test_abandon_writes_nothing_more() -> None:
    disk = MemoryDisk()
    log = open_topic_log(disk)
    append(log, batch(b"a"))
    log.append(own_batch(batch(b"b")), 0, NOW_MS)
    log.abandon()
    assert values(open_topic_log(disk)) == [b"a"]


def test_abandoned_log_that_is_opened_again_holds_no_file_open(tmp_path: Path) -> None:
    """Whatever still refers to it would keep the space of removed files in use."""
    log = open_topic_log(RealDisk(tmp_path, 100), TopicSettings(segment_bytes=100))
    for _ in range(3):
        append(log, batch(bytes(100)))
    flush(log)
    assert len(values(log)) == 3
    assert opened_below(tmp_path) == 3
    log.abandon()
    assert len(values(log)) == 3
    log.segments.close()
    assert opened_below(tmp_path) == 0
    with pytest.raises(ReadLater, match="no longer belongs to this log"):
        values(log)


def opened_below(path: Path) -> int:
    """Return how many descriptors this process has of files below a path."""
    return sum(descriptor.resolve().is_relative_to(path) for descriptor in Path("/proc/self/fd").iterdir())


def test_probe_counts_what_was_appended() -> None:
    probe = LogProbe()
    log = open_topic_log(MemoryDisk(), probe=probe)
    append(log, idempotent_batch(0, b"a", b"b"))
    append(log, idempotent_batch(0, b"a", b"b"))
    assert (probe.appended_batches, probe.appended_records, probe.appended_bytes) == (1, 2, log.segments.size_bytes)
