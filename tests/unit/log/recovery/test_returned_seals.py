"""Seals of a clean stop that are there again after a power failure, because their removal was not durable."""

import pytest

from conveyor.kernel.errors import StorageFailure
from conveyor.log.log import Log
from conveyor.records.batch import placed_prefix, read_header
from conveyor.testing import MemoryDisk
from tests.unit.log.logs import (
    DIRECTORY,
    NOW_MS,
    PAIR,
    allow_gaps,
    append,
    contents,
    flush,
    idempotent_batch,
    open_topic_log,
    segment_file,
)


def stopped(disk: MemoryDisk, log: Log, base_offset: int) -> bytes:
    """Stop a log cleanly. Returns the seal of its last segment."""
    log.close()
    return disk.read(segment_file(base_offset, "seal"))


@pytest.mark.parametrize("allows_gaps", [False, True])
def test_seal_of_a_segment_that_others_follow_does_not_count(allows_gaps: bool) -> None:
    """The batch at offset 1 was not flushed, and is lost. The next one is in a segment of its own."""
    disk = MemoryDisk()
    log = open_topic_log(disk, PAIR)
    append(log, idempotent_batch(0, b"0"))
    flush(log)
    size = len(disk.read(segment_file(0)))
    if allows_gaps:
        allow_gaps(log, 50)
    seal = stopped(disk, log, 0)
    log = open_topic_log(disk, PAIR)
    append(log, idempotent_batch(1, b"1"))
    append(log, idempotent_batch(2, b"2"))
    assert [segment.base_offset for segment in log.segments.all] == [0, 2]
    cut = disk.process_crash()
    cut.open(segment_file(0)).truncate(size)
    cut.write_atomic(segment_file(0, "seal"), seal)
    for _ in range(2):
        log = open_topic_log(cut, PAIR)
        assert (log.log_end_offset, contents(log)) == (1, [(0, b"0")])
        cut = cut.process_crash()


def restarted_at(disk: MemoryDisk, offset: int) -> Log:
    log = open_topic_log(disk, PAIR)
    log.truncation.restart_at(offset)
    job = log.truncation.begin(NOW_MS)
    assert job is not None
    log.truncation.complete(job, job.run())
    return log


@pytest.mark.parametrize("rolls", [False, True])
def test_seal_of_an_empty_segment_that_was_replaced_is_removed(rolls: bool) -> None:
    """The leader's first batch begins below the offset at which the follower's log was restarted."""
    disk = MemoryDisk()
    seal = stopped(disk, restarted_at(disk, 41), 41)
    log = open_topic_log(disk, PAIR)
    content = idempotent_batch(0, b"a", b"b")
    log.copying.append(placed_prefix(40, read_header(content), 0) + content[17:], 0, NOW_MS)
    if rolls:
        append(log, idempotent_batch(2, b"c"))
        append(log, idempotent_batch(3, b"d"))
        assert [segment.base_offset for segment in log.segments.all] == [40, 42]
    log.write()
    cut = disk.process_crash()
    cut.write_atomic(segment_file(41, "seal"), seal)
    end = log.log_end_offset
    log = open_topic_log(cut, PAIR)
    assert (log.log_start_offset, log.log_end_offset) == (41, end)
    assert f"{41:020}.seal" not in cut.list(DIRECTORY)


def test_missing_empty_segment_below_a_flushed_one_is_a_hole() -> None:
    """The follower continues above a part of its leader's log that compaction has emptied."""
    disk = MemoryDisk()
    log = restarted_at(disk, 100)
    allow_gaps(log, 150)
    log.copying.skip_to(150, NOW_MS)
    append(log, idempotent_batch(0, b"a"))
    flush(log)
    disk.remove(segment_file(100))
    for _ in range(2):
        with pytest.raises(StorageFailure, match=f"{100:020}.log is missing, although it was on the disk"):
            open_topic_log(disk, PAIR)
        disk = disk.process_crash()
        assert disk.exists(segment_file(150))


def test_seal_of_a_trimmed_segment_is_not_taken_for_that_of_a_new_one() -> None:
    """A trim has removed the segment's file when the power fails. Then the follower begins again in a segment of the
    same offset, because its leader's first batch begins there.
    """
    disk = MemoryDisk()
    log = open_topic_log(disk, PAIR)
    append(log, idempotent_batch(0, b"a", b"b"))
    append(log, idempotent_batch(2, b"c"))
    flush(log)
    seal = disk.read(segment_file(0, "seal"))
    stopped(disk, restarted_at(disk, 1), 1)
    disk.write_atomic(segment_file(0, "seal"), seal)
    log = open_topic_log(disk, PAIR)
    assert f"{0:020}.seal" not in disk.list(DIRECTORY)
    content = idempotent_batch(0, b"a", b"b", b"c")
    log.copying.append(placed_prefix(0, read_header(content), 0) + content[17:], 0, NOW_MS)
    log.write()
    log = open_topic_log(disk.process_crash(), PAIR)
    assert (log.log_start_offset, log.log_end_offset) == (1, 3)
