"""A log that becomes empty and continues at another offset."""

from random import Random

import pytest

from conveyor.log.log import Log
from conveyor.log.producers.producer_snapshot import snapshot_offsets
from conveyor.records.batch import placed_prefix, read_header
from conveyor.records.checked_batch import own_batch
from conveyor.testing import MemoryDisk
from tests.unit.log.logs import (
    DIRECTORY,
    NOW_MS,
    PAIR,
    append,
    batch,
    contents,
    flush,
    idempotent_batch,
    open_topic_log,
)


def filled(disk: MemoryDisk, count: int) -> Log:
    """A log with batches of one producer, two in each segment."""
    log = open_topic_log(disk, PAIR)
    for number in range(count):
        append(log, idempotent_batch(number, b"%d" % number))
    return log


def cut_files(log: Log) -> None:
    job = log.truncation.begin(NOW_MS)
    assert job is not None
    log.truncation.complete(job, job.run())


@pytest.mark.parametrize("offset", [0, 3, 4, 6, 50])
def test_restarted_log_is_empty_and_continues_at_the_offset(offset: int) -> None:
    disk = MemoryDisk()
    log = filled(disk, 6)
    flush(log)
    log.truncation.restart_at(offset)
    assert (log.log_start_offset, log.log_end_offset, log.flushes.flushed_offset, contents(log)) == (
        offset,
        offset,
        offset,
        [],
    )
    assert log.start.flushed_offset == 0
    cut_files(log)
    assert log.start.flushed_offset == offset
    assert (log.leader_epochs.entries, len(log.producers), snapshot_offsets(disk.list(DIRECTORY))) == (
        (), 0, [],
    )  # fmt: skip
    for reopened in (open_topic_log(disk, PAIR), open_topic_log(disk.power_cut(Random(1)), PAIR)):
        assert (reopened.log_start_offset, reopened.log_end_offset) == (offset, offset)
        assert (reopened.leader_epochs.entries, len(reopened.producers)) == ((), 0)
    content = batch(b"new")
    log.copying.append(placed_prefix(offset, read_header(content), 4) + content[17:], 4, NOW_MS)
    flush(log)
    assert contents(open_topic_log(disk.power_cut(Random(1)), PAIR)) == [(offset, b"new")]


def test_restart_waits_for_a_flush_and_drops_buffered_batches() -> None:
    log = filled(MemoryDisk(), 3)
    flush_job = log.flushes.begin()
    log.append(own_batch(idempotent_batch(3, b"3")), 0, NOW_MS)
    log.truncation.restart_at(40)
    assert (log.truncation.begin(NOW_MS), log.flushes.is_due, log.written_offset) == (None, False, log.log_end_offset)
    flush_job.run()
    log.flushes.complete(flush_job)
    assert log.flushes.flushed_offset == 40
    cut_files(log)
    assert append(log, idempotent_batch(0, b"new")).first_offset == 40


@pytest.mark.parametrize("is_lost", [False, True], ids=["segment left", "segment lost"])
def test_producers_are_recovered_from_segments_below_the_log_start(is_lost: bool) -> None:
    """The flush that stores the state behind a segment has failed. The stored state is older than the segment."""
    disk = MemoryDisk()
    log = filled(disk, 4)
    flush(log)
    log.start.trim(4).run()
    log.start.complete_trim()
    log.start.roll_if_too_old(NOW_MS + PAIR.retention_ms + 1)
    if is_lost:
        disk.remove(f"{DIRECTORY}/{2:020}.log")
    for _ in range(2):
        disk = disk.process_crash()
        reopened = open_topic_log(disk, PAIR)
        assert [segment.base_offset for segment in reopened.segments.all] == [4]
        assert len(reopened.producers) == (0 if is_lost else 1)
    append(reopened, idempotent_batch(4, b"4"))


def test_producer_of_a_batch_that_holds_the_offset_is_recovered() -> None:
    """The leader's log starts within it. A clean stop has stored the producers of the empty log at the offset."""
    disk = MemoryDisk()
    log = filled(disk, 1)
    log.truncation.restart_at(41)
    cut_files(log)
    log.close()
    log = open_topic_log(disk, PAIR)
    content = idempotent_batch(0, b"one", b"two")
    log.copying.append(placed_prefix(40, read_header(content), 0) + content[17:], 0, NOW_MS)
    flush(log)
    reopened = open_topic_log(disk.process_crash(), PAIR)
    again = append(reopened, idempotent_batch(0, b"one", b"two"))
    assert (again.first_offset, again.duplicate) == (40, True)


def test_producers_of_a_log_that_becomes_empty_are_not_those_of_a_snapshot_below_its_start() -> None:
    """The batches between the snapshot and the log start are gone."""
    disk = MemoryDisk()
    filled(disk, 1).close()
    log = open_topic_log(disk)
    append(log, idempotent_batch(1, b"1", b"2"))
    append(log, idempotent_batch(0, b"a", b"b", producer_id=8))
    flush(log)
    log.start.trim(4).run()
    log.start.complete_trim()
    log.truncation.truncate_to(4)
    cut_files(log)
    assert (log.log_start_offset, log.log_end_offset, len(log.producers)) == (4, 4, 0)
    assert append(log, idempotent_batch(3, b"3")).first_offset == 4
