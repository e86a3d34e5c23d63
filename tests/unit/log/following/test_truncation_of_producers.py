"""Truncation: the producers that a log knows afterwards, also after a trim and a crash."""

import pytest

from conveyor.kernel.errors import RequestError
from conveyor.log.producers.producer_snapshot import snapshot_offsets
from conveyor.settings.tree import TopicSettings
from conveyor.testing import MemoryDisk
from tests.unit.log.following.test_truncation_job import filled, trim, truncate
from tests.unit.log.logs import DIRECTORY, NOW_MS, PAIR, append, batch, flush, idempotent_batch, open_topic_log


def test_snapshots_above_the_end_are_removed_and_producers_are_as_they_were() -> None:
    disk = MemoryDisk()
    log = filled(disk, 3)
    append(log, idempotent_batch(0, b"x", producer_id=8))
    at_four = log.producers.entries()
    append(log, idempotent_batch(3, b"3"))
    append(log, idempotent_batch(0, b"x", epoch=1))
    flush(log)
    assert snapshot_offsets(disk.list(DIRECTORY)) == [4]
    truncate(log, 3)
    assert snapshot_offsets(disk.list(DIRECTORY)) == []
    ids, producers = log.producers.entries()[:2]
    assert (ids, [each.epoch for each in producers]) == ([7], [0])
    assert producers[0].batches == at_four[1][0].batches


def test_producers_without_a_removed_batch_are_not_read_again() -> None:
    disk = MemoryDisk()
    log = filled(disk, 3)
    append(log, batch(b"plain"), NOW_MS)
    before = log.producers
    truncate(log, 3)
    assert log.producers is before


def test_next_snapshot_is_of_the_truncated_log() -> None:
    """A segment that was closed before the truncation is sealed by a flush after it."""
    disk = MemoryDisk()
    log = filled(disk, 5)
    truncate(log, 3)
    flush(log)
    assert snapshot_offsets(disk.list(DIRECTORY)) == [3]
    reopened = open_topic_log(disk, PAIR)
    assert reopened.producers.entries()[0] == [7]
    assert append(reopened, idempotent_batch(3, b"3")).first_offset == 3


@pytest.mark.parametrize("flushes", [False, True])
def test_producers_outlive_a_trim_after_a_truncation_that_removed_all_snapshots(flushes: bool) -> None:
    disk = MemoryDisk()
    log = open_topic_log(disk, PAIR)
    append(log, idempotent_batch(0, b"a", producer_id=8, epoch=3))
    for number in range(9):
        append(log, idempotent_batch(number, b"%d" % number))
        flush(log)
    truncate(log, 5)
    assert (snapshot_offsets(disk.list(DIRECTORY)), log.flushes.is_due) == ([], True)
    if flushes:
        flush(log)
        assert (snapshot_offsets(disk.list(DIRECTORY)), log.flushes.is_due) == ([5], False)
    trim(log, 4)
    assert [segment.base_offset for segment in log.segments.all] == ([4] if flushes else [0, 2, 4])
    log = open_topic_log(disk.process_crash(), PAIR)
    assert (log.log_start_offset, [segment.base_offset for segment in log.segments.all]) == (4, [4])
    with pytest.raises(RequestError, match="its current epoch is 3"):
        append(log, idempotent_batch(0, b"a", producer_id=8, epoch=2))


def test_segments_that_a_trim_has_kept_are_removed_by_the_next_one_after_a_flush() -> None:
    log = filled(MemoryDisk(), 9, flushed=9)
    truncate(log, 5)
    trim(log, 4)
    flush(log)
    trim(log, 4)
    assert [segment.base_offset for segment in log.segments.all] == [4]


def test_truncation_of_a_log_without_producers_needs_no_snapshot() -> None:
    disk = MemoryDisk()
    log = open_topic_log(disk, TopicSettings(segment_bytes=2 * len(batch(b"a"))))
    for _ in range(7):
        append(log, batch(b"a"))
    flush(log)
    truncate(log, 5)
    trim(log, 4)
    assert ([segment.base_offset for segment in log.segments.all], log.flushes.is_due) == ([4], False)
