"""Truncation: what is left in memory and on the disk, what readers see, and what a crash makes of it."""

from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from conveyor.adapters.disk import RealDisk
from conveyor.kernel.errors import ErrorKind, ReadLater, RequestError, StorageFailure
from conveyor.log.compaction.key_compaction import compact
from conveyor.log.leader_epochs import load_leader_epochs
from conveyor.log.log import Log
from conveyor.records.batch import HEADER_BYTES, placed_prefix, read_header
from conveyor.records.checked_batch import own_batch
from conveyor.records.record import encode_batch
from conveyor.settings.tree import TopicSettings
from conveyor.testing import MemoryDisk
from tests.unit.log.forgetful_disk import ForgetfulDisk
from tests.unit.log.logs import (
    DIRECTORY,
    NOW_MS,
    PAIR,
    all_below,
    allow_gaps,
    append,
    batch,
    contents,
    flush,
    idempotent_batch,
    open_topic_log,
    read_bytes,
    segment_file,
    values,
)

SIZE = len(idempotent_batch(0, b"a"))
COMPACTED = TopicSettings(
    segment_bytes=2 * SIZE, index_interval_bytes=0, cleanup_policy="compact", min_cleanable_dirty_ratio=0
)


def filled(disk: MemoryDisk, count: int, topic: TopicSettings = PAIR, flushed: int = 0) -> Log:
    """A log of one-record batches of one idempotent producer, two in each segment; the first ones are flushed."""
    log = open_topic_log(disk, topic)
    for number in range(count):
        append(log, idempotent_batch(number, b"%d" % number))
        if number + 1 == flushed:
            flush(log)
    return log


def numbers(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def trim(log: Log, offset: int) -> None:
    log.start.trim(offset).run()
    log.start.complete_trim()


def cut_files(log: Log) -> None:
    job = log.truncation.begin(NOW_MS)
    assert job is not None
    log.truncation.complete(job, job.run())


def truncate(log: Log, offset: int) -> None:
    """As the broker does it, on this thread."""
    log.truncation.truncate_to(offset)
    cut_files(log)


@pytest.mark.parametrize("flushed", [0, 3, 7])
@pytest.mark.parametrize("offset", range(7))
def test_log_ends_at_the_offset_and_goes_on(offset: int, flushed: int) -> None:
    disk = MemoryDisk()
    log = filled(disk, 7, flushed=flushed)
    truncate(log, offset)
    assert (log.log_end_offset, log.written_offset, log.flushes.flushed_offset) == (
        offset,
        offset,
        min(offset, flushed),
    )
    assert values(log) == numbers(offset)
    assert log.segments.size_bytes == offset * SIZE
    if offset:
        assert append(log, idempotent_batch(offset - 1, b"%d" % (offset - 1))).duplicate
    assert append(log, idempotent_batch(offset, b"new")).first_offset == offset
    flush(log)
    assert log.flushes.flushed_offset == offset + 1
    for reopened in (open_topic_log(disk, PAIR), open_topic_log(disk.power_cut(Random(1)), PAIR)):
        assert values(reopened) == [*numbers(offset), b"new"]
        assert append(reopened, idempotent_batch(offset, b"new")).duplicate


def test_offset_within_a_batch_removes_the_batch() -> None:
    log = open_topic_log(MemoryDisk())
    append(log, batch(b"a"))
    append(log, batch(b"b", b"c", b"d"))
    truncate(log, 3)
    assert (log.log_end_offset, values(log)) == (1, [b"a"])


def test_offset_above_the_end_changes_nothing() -> None:
    log = filled(MemoryDisk(), 3)
    log.truncation.truncate_to(9)
    assert (log.truncation.is_pending, log.truncation.begin(NOW_MS), log.log_end_offset) == (False, None, 3)


def test_offset_below_the_log_start_is_out_of_range() -> None:
    log = filled(MemoryDisk(), 6, flushed=6)
    trim(log, 3)
    with pytest.raises(RequestError) as refused:
        log.truncation.truncate_to(2)
    assert refused.value.kind is ErrorKind.OFFSET_OUT_OF_RANGE
    truncate(log, 3)
    assert (log.log_start_offset, log.log_end_offset, contents(log)) == (3, 3, [])


def test_log_start_within_the_removed_batch_stays() -> None:
    disk = MemoryDisk()
    log = open_topic_log(disk)
    append(log, batch(b"a", b"b", b"c"))
    flush(log)
    trim(log, 2)
    truncate(log, 2)
    assert (log.log_start_offset, log.log_end_offset) == (2, 2)
    reopened = open_topic_log(disk)
    assert (reopened.log_start_offset, reopened.log_end_offset) == (2, 2)


def test_the_log_start_of_a_trim_in_progress_does_not_replace_that_of_a_restart() -> None:
    disk = MemoryDisk()
    log = filled(disk, 6, flushed=6)
    earlier, later = log.start.trim(2), log.start.trim(3)
    log.truncation.restart_at(9)
    for job in (earlier, later):
        assert log.truncation.begin(NOW_MS) is None
        job.run()
        log.start.complete_trim()
    assert log.start.flushed_offset == 0
    cut_files(log)
    assert open_topic_log(disk).log_start_offset == log.log_start_offset == log.start.flushed_offset == 9


def test_buffered_batches_are_removed_too() -> None:
    log = filled(MemoryDisk(), 2)
    log.append(own_batch(idempotent_batch(2, b"2")), 0, NOW_MS)
    truncate(log, 2)
    assert (log.written_offset, values(log)) == (log.log_end_offset, numbers(2))


def test_log_that_a_clean_stop_sealed_is_truncated() -> None:
    disk = MemoryDisk()
    filled(disk, 5).close()
    log = open_topic_log(disk, PAIR)
    truncate(log, 4)
    append(log, idempotent_batch(4, b"4"))
    truncate(log, 1)
    assert values(log) == numbers(1)
    log.close()
    assert values(open_topic_log(disk, PAIR)) == numbers(1)


# Leader epochs.


def test_epochs_at_the_new_end_go_even_if_no_record_does() -> None:
    """Otherwise a follower that has led without a record asks forever (KAFKA-10706)."""
    disk = MemoryDisk()
    log = filled(disk, 3)
    log.copying.begin_epoch(4)
    flush(log)
    log.truncation.truncate_to(3)
    assert log.leader_epochs.entries == ((0, 0),)
    assert log.truncation.is_pending
    cut_files(log)
    stored = load_leader_epochs(disk, DIRECTORY)
    assert stored is not None
    assert stored.entries == ((0, 0),)
    assert values(log) == numbers(3)


def test_epochs_of_removed_records_go() -> None:
    disk = MemoryDisk()
    log = open_topic_log(disk)
    for epoch in (0, 2, 5):
        log.append(own_batch(batch(b"a")), epoch, NOW_MS)
    flush(log)
    truncate(log, 2)
    assert log.leader_epochs.entries == ((0, 0), (2, 1))
    assert open_topic_log(disk).leader_epochs.entries == ((0, 0), (2, 1))


# Jobs in progress.


def test_flush_that_ends_later_does_not_raise_the_flushed_offset() -> None:
    log = filled(MemoryDisk(), 5)
    flush_job = log.flushes.begin()
    log.truncation.truncate_to(3)
    assert (log.truncation.begin(NOW_MS), log.flushes.is_due, log.log_end_offset) == (None, False, 3)
    flush_job.run()
    log.flushes.complete(flush_job)
    assert log.flushes.flushed_offset == 3
    cut_files(log)
    assert (values(log), log.flushes.flushed_offset) == (numbers(3), 3)


def keyed(log: Log, *keys: bytes) -> None:
    for key in keys:
        content = encode_batch([(NOW_MS, key, b"%d" % log.log_end_offset, ())])
        append(log, content)
    flush(log)


def test_compaction_that_ends_later_brings_no_record_back() -> None:
    """The segment has its name again, and is sealed again, but with other records."""
    disk = MemoryDisk()
    log = open_topic_log(disk, COMPACTED)
    keyed(log, b"a", b"a", b"a", b"a", b"a")
    plan = log.compaction.plan(all_below(log.flushes.flushed_offset), NOW_MS, 100)
    assert plan is not None
    result = compact(disk, plan)
    truncate(log, 1)
    keyed(log, b"b", b"c", b"d", b"e")
    expected = contents(log)
    assert log.compaction.begin_swap(result) is None
    log.compaction.discard([each.base_offset for each in result.cleaned])
    assert contents(log) == expected
    assert contents(open_topic_log(disk, COMPACTED)) == expected


def test_compaction_of_segments_below_the_truncation_is_used() -> None:
    disk = MemoryDisk()
    log = open_topic_log(disk, COMPACTED)
    keyed(log, b"a", b"a", b"a", b"a", b"a", b"a")
    plan = log.compaction.plan(all_below(log.flushes.flushed_offset), NOW_MS, 100)
    assert plan is not None
    result = compact(disk, plan)
    truncate(log, plan.segments[-1].next_offset)
    assert log.compaction.begin_swap(result) is not None


def test_truncation_waits_for_a_swap_and_cuts_what_it_has_made() -> None:
    disk = MemoryDisk()
    log = open_topic_log(disk, COMPACTED)
    keyed(log, b"a", b"b", b"a", b"c", b"d")
    plan = log.compaction.plan(all_below(log.flushes.flushed_offset), NOW_MS, 100)
    assert plan is not None
    result = compact(disk, plan)
    swap = log.compaction.begin_swap(result)
    assert swap is not None
    log.truncation.truncate_to(3)
    assert log.truncation.begin(NOW_MS) is None
    log.compaction.complete_swap(result, swap.run())
    cut_files(log)
    assert (log.log_end_offset, log.compaction.cleaned_offset) == (3, 3)
    assert contents(log) == [(1, b"1"), (2, b"2")]
    reopened = open_topic_log(disk, COMPACTED)
    assert (contents(reopened), reopened.compaction.cleaned_offset) == ([(1, b"1"), (2, b"2")], 3)


def test_no_other_change_happens_between_the_steps() -> None:
    log = filled(MemoryDisk(), 5, flushed=5)
    log.truncation.truncate_to(3)
    log.start.roll_if_too_old(NOW_MS + (1 << 50))
    for change in (
        lambda: log.append(own_batch(batch(b"x")), 0, NOW_MS),
        lambda: log.copying.append(read_bytes(filled(MemoryDisk(), 4), 3), 0, NOW_MS),
        lambda: log.start.trim(1),
        lambda: log.copying.allow_gaps(9),
        lambda: log.copying.skip_to(3, NOW_MS),
        log.flushes.begin,
    ):
        with pytest.raises(AssertionError, match="not complete"):
            change()
    cut_files(log)
    assert values(log) == numbers(3)


def test_log_closed_between_the_steps_is_left_to_recovery() -> None:
    disk = MemoryDisk()
    log = filled(disk, 5)
    log.truncation.truncate_to(3)
    log.close()
    assert values(open_topic_log(disk, PAIR)) == numbers(5)


# Gaps.


def test_offset_in_a_gap_becomes_the_end() -> None:
    disk = MemoryDisk()
    log = filled(disk, 1)
    allow_gaps(log, 40)
    for offset in (20, 30):
        content = batch(b"%d" % offset)
        log.copying.append(placed_prefix(offset, read_header(content), 0) + content[17:], 0, NOW_MS)
    truncate(log, 20)
    assert (log.log_end_offset, log.copying.gap_offset, contents(log)) == (20, 20, [(0, b"0")])
    flush(log)
    reopened = open_topic_log(disk, PAIR)
    assert (reopened.log_end_offset, reopened.copying.gap_offset, contents(reopened)) == (20, 20, [(0, b"0")])


# Readers.


def test_slice_across_the_new_end_never_shows_new_records() -> None:
    log = filled(MemoryDisk(), 4, TopicSettings())
    across, below = log.read(0, 1 << 20, 4, at_least_one=True), log.read(0, 2 * SIZE, 2, at_least_one=True)
    assert across is not None
    assert below is not None
    kept = below.file.read(below.position, below.length)
    truncate(log, 2)
    append(log, idempotent_batch(2, b"X"))
    append(log, idempotent_batch(3, b"Y"))
    for read in (across.file.read, across.file.read_cached):
        with pytest.raises(ReadLater, match="truncated"):
            read(across.position, across.length)
    assert below.file.read(below.position, below.length) == kept
    assert values(log) == [*numbers(2), b"X", b"Y"]


def test_slice_of_a_removed_segment_shows_its_old_records() -> None:
    log = filled(MemoryDisk(), 6, flushed=6)
    piece = log.read(4, 1 << 20, 6, at_least_one=True)
    assert piece is not None
    old = piece.file.read(piece.position, piece.length)
    truncate(log, 1)
    for number in range(1, 6):
        append(log, idempotent_batch(number, b"X"))
    assert piece.file.read(piece.position, piece.length) == old
    assert read_bytes(log, 4)[HEADER_BYTES:] != old[HEADER_BYTES:]


def test_records_below_the_end_are_read_before_the_files_are_cut() -> None:
    log = filled(MemoryDisk(), 6)
    log.truncation.truncate_to(3)
    assert values(log) == numbers(3)


# Crashes.

OPERATIONS = 60


@pytest.mark.parametrize("loses_power", [True, False])
@pytest.mark.parametrize("offset", [0, 1, 4, 5, 6])
def test_crash_at_any_operation_leaves_the_old_log_or_the_truncated_one(offset: int, loses_power: bool) -> None:
    outcomes = []
    for operations in range(OPERATIONS):
        disk = ForgetfulDisk()
        log = filled(disk, 7, flushed=7)
        log.truncation.truncate_to(offset)
        disk.faults.call_after(operations, lambda: None)
        try:
            cut_files(log)
        except StorageFailure:
            log.abandon()
        left = disk.power_cut(Random(operations)) if loses_power else disk
        disk.faults.call_after(1 << 40, lambda: None)
        reopened = open_topic_log(left, PAIR)
        outcomes.append(reopened.log_end_offset)
        assert outcomes[-1] in (7, offset)
        assert values(reopened) == numbers(outcomes[-1])
        assert not left.exists(f"{DIRECTORY}/truncation")
        if outcomes[-1] > offset:
            truncate(reopened, offset)
        assert append(reopened, idempotent_batch(offset, b"new")).first_offset == offset
    assert outcomes == sorted(outcomes, reverse=True), "from one operation on, the truncation is committed"
    assert set(outcomes) == {7, offset}


@pytest.mark.parametrize("crash", range(20))
def test_crash_while_a_start_finishes_a_truncation(crash: int) -> None:
    for operations in range(OPERATIONS):
        disk = ForgetfulDisk()
        log = filled(disk, 7, flushed=7)
        log.truncation.truncate_to(3)
        disk.faults.call_after(operations, lambda: None)
        try:
            cut_files(log)
        except StorageFailure:
            log.abandon()
        is_committed = disk.exists(f"{DIRECTORY}/truncation")
        second = disk.power_cut(Random(operations))
        second.faults.call_after(crash, lambda: None)
        with suppress(StorageFailure):
            open_topic_log(second, PAIR)
        reopened = open_topic_log(second.power_cut(Random(crash)), PAIR)
        assert values(reopened) == numbers(reopened.log_end_offset)
        assert reopened.log_end_offset == 3 or (reopened.log_end_offset == 7 and not is_committed)


@pytest.mark.parametrize("operation", ["sync", "sync_directory", "write_atomic", "truncate", "open", "read"])
def test_failing_disk_is_a_storage_failure_and_loses_nothing_below(operation: str) -> None:
    disk = MemoryDisk()
    log = filled(disk, 7, flushed=7)
    log.truncation.truncate_to(3)
    job = log.truncation.begin(NOW_MS)
    assert job is not None
    disk.faults.fail(operation)
    with pytest.raises(StorageFailure, match=f"{operation} failed"):
        job.run()
    log.abandon()
    disk.faults.heal()
    end = open_topic_log(disk, PAIR).log_end_offset
    assert end in (3, 7)


def test_failing_disk_before_the_first_step_changes_nothing() -> None:
    disk = MemoryDisk()
    log = filled(disk, 7)
    disk.faults.fail("read")
    with pytest.raises(StorageFailure, match="read failed"):
        log.truncation.truncate_to(3)
    assert (log.log_end_offset, log.truncation.is_pending) == (7, False)


def test_removed_files_leave_no_trace() -> None:
    disk = MemoryDisk()
    log = filled(disk, 7, flushed=7)
    truncate(log, 3)
    assert [name for name in disk.list(DIRECTORY) if name.endswith(".log")] == [f"{0:020d}.log", f"{2:020d}.log"]
    assert not disk.exists(segment_file(2, "seal"))
    assert not disk.exists(segment_file(4, "index"))


def test_real_disk_is_truncated(tmp_path: Path) -> None:
    disk = RealDisk(tmp_path, max_open_files=2)
    log = open_topic_log(disk, PAIR)
    for number in range(7):
        append(log, idempotent_batch(number, b"%d" % number))
    flush(log)
    pieces = [log.read(offset, SIZE, 7, at_least_one=True) for offset in (2, 3, 6)]
    old = [piece.file.read(piece.position, piece.length) for piece in pieces if piece is not None]
    truncate(log, 3)
    for number in range(3, 7):
        append(log, idempotent_batch(number, b"new"))
    flush(log)
    below, cut, removed = (piece for piece in pieces if piece is not None)
    assert below.file.read(below.position, below.length) == old[0]
    with pytest.raises(ReadLater, match="truncated"):
        cut.file.read(cut.position, cut.length)
    assert removed.file.read(removed.position, removed.length) == old[2]
    assert values(open_topic_log(disk, PAIR)) == [*numbers(3), *[b"new"] * 4]


def test_start_with_a_damaged_truncation_file_is_refused() -> None:
    disk = MemoryDisk()
    filled(disk, 3, flushed=3)
    disk.write_atomic(f"{DIRECTORY}/truncation", b'{"end_offset":')
    with pytest.raises(StorageFailure, match="truncation is damaged"):
        open_topic_log(disk, PAIR)
