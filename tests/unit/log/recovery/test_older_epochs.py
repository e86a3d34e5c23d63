"""The file of the leader epochs is an older copy: recovery finds the epochs in the log, and only once."""

import logging

import pytest

from conveyor.kernel.ids import Offset
from conveyor.log.leader_epochs import NAME
from conveyor.log.log import Log
from conveyor.log.segments.segment import Segment
from conveyor.records.checked_batch import own_batch
from conveyor.settings.tree import TopicSettings
from conveyor.testing import MemoryDisk
from tests.unit.log.logs import DIRECTORY, NOW_MS, allow_gaps, batch, flush, open_topic_log

PATH = f"{DIRECTORY}/{NAME}"
TWO_BATCHES = TopicSettings(segment_bytes=2 * len(batch(b"0")), index_interval_bytes=0)
EPOCHS = ((2, 0), (4, 3), (7, 6))


def append(log: Log, epoch: int, count: int) -> None:
    for _ in range(count):
        log.append(own_batch(batch(b"0")), epoch, NOW_MS)
    flush(log)


def with_three_epochs(topic: TopicSettings) -> tuple[MemoryDisk, bytes]:
    """A log that was stopped cleanly, and the file of its first epoch."""
    disk = MemoryDisk()
    log = open_topic_log(disk, topic)
    append(log, 2, 3)
    older = disk.read(PATH)
    append(log, 4, 3)
    append(log, 7, 4)
    assert log.leader_epochs.entries == EPOCHS
    log.close()
    return disk, older


def headers_read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The base offsets of the segments of which headers are read from now on."""
    read: list[int] = []
    plain_headers = Segment.headers

    def headers(self: Segment, position: int = 0, end: int | None = None) -> object:
        read.append(self.base_offset)
        return plain_headers(self, position, end)

    monkeypatch.setattr(Segment, "headers", headers)
    return read


@pytest.mark.parametrize("topic", [TopicSettings(), TWO_BATCHES], ids=["one segment", "segments"])
@pytest.mark.parametrize("crashes", [False, True])
def test_an_older_copy_counts_as_missing(topic: TopicSettings, crashes: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    disk, older = with_three_epochs(topic)
    if crashes:
        append(open_topic_log(disk, topic), 7, 1)
        disk = disk.process_crash()
    disk.write_atomic(PATH, older)
    log = open_topic_log(disk, topic)
    assert log.leader_epochs.entries == EPOCHS
    log.close()
    read = headers_read(monkeypatch)
    assert open_topic_log(disk, topic).leader_epochs.entries == EPOCHS
    assert read == []


def test_an_older_copy_with_a_later_epoch_that_was_cut_counts_as_missing() -> None:
    """Its records were replaced by those of an earlier epoch, after an unclean election."""
    disk = MemoryDisk()
    log = open_topic_log(disk)
    append(log, 2, 3)
    append(log, 5, 3)
    older = disk.read(PATH)
    log.truncation.truncate_to(3)
    job = log.truncation.begin(NOW_MS)
    assert job is not None
    log.truncation.complete(job, job.run())
    append(log, 4, 3)
    log.close()
    disk.write_atomic(PATH, older)
    assert open_topic_log(disk).leader_epochs.entries == ((2, 0), (4, 3))


def test_a_start_after_a_clean_stop_reads_no_header(monkeypatch: pytest.MonkeyPatch) -> None:
    disk, _ = with_three_epochs(TWO_BATCHES)
    read = headers_read(monkeypatch)
    open_topic_log(disk, TWO_BATCHES)
    assert read == []


def test_epoch_of_which_compaction_has_left_no_record_begins_after_the_last_record(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The file is older, and the log ends with offsets that were skipped: no header has the newest epoch."""
    disk, older = with_three_epochs(TWO_BATCHES)
    log = open_topic_log(disk, TWO_BATCHES)
    allow_gaps(log, 20)
    log.leader_epochs.copy_from([(9, 12)])
    log.copying.skip_to(20, NOW_MS)
    flush(log)
    assert log.leader_epochs.entries == (*EPOCHS, (9, 12))
    log.close()
    disk.write_atomic(PATH, older)
    assert open_topic_log(disk, TWO_BATCHES).leader_epochs.entries == (*EPOCHS, (9, 10))
    read = headers_read(monkeypatch)
    open_topic_log(disk, TWO_BATCHES)
    assert read == []


@pytest.mark.parametrize("offset", [8, 9, 10])
def test_file_from_after_a_trim_is_no_older_copy(offset: int, caplog: pytest.LogCaptureFixture) -> None:
    """A crash leaves the newest snapshot below the log start, or at it."""
    disk, _ = with_three_epochs(TWO_BATCHES)
    log = open_topic_log(disk, TWO_BATCHES)
    append(log, 8, 1)
    log.start.trim(Offset(offset)).run()
    log.start.complete_trim()
    flush(log)
    disk = disk.process_crash()
    with caplog.at_level(logging.WARNING):
        reopened = open_topic_log(disk, TWO_BATCHES)
    assert reopened.leader_epochs.entries == log.leader_epochs.entries
    assert "older copy" not in caplog.text
