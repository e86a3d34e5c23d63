"""The file of the leader epochs is an older copy: recovery finds the epochs in the log, and only once."""

import pytest

from conveyor.log.leader_epochs import NAME
from conveyor.log.log import Log
from conveyor.log.log_parts import ExpectedLog
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
    expected = ExpectedLog(may_be_new=False, high_watermark=10, record_epoch=7)
    log = open_topic_log(disk, topic, expected=expected)
    assert log.leader_epochs.entries == EPOCHS
    log.close()
    read = headers_read(monkeypatch)
    assert open_topic_log(disk, topic, expected=expected).leader_epochs.entries == EPOCHS
    assert read == []


def test_a_start_after_a_clean_stop_reads_no_header(monkeypatch: pytest.MonkeyPatch) -> None:
    disk, _ = with_three_epochs(TWO_BATCHES)
    read = headers_read(monkeypatch)
    open_topic_log(disk, TWO_BATCHES, expected=ExpectedLog(may_be_new=False, high_watermark=10, record_epoch=7))
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
    expected = ExpectedLog(may_be_new=False, high_watermark=20, record_epoch=9)
    assert open_topic_log(disk, TWO_BATCHES, expected=expected).leader_epochs.entries == (*EPOCHS, (9, 10))
    read = headers_read(monkeypatch)
    open_topic_log(disk, TWO_BATCHES, expected=expected)
    assert read == []


@pytest.mark.parametrize(
    "expected",
    [
        ExpectedLog(may_be_new=False, high_watermark=11, record_epoch=9),
        ExpectedLog(may_be_new=False, high_watermark=3, start_offset=3, record_epoch=9),
    ],
    ids=["above the end", "below the start"],
)
def test_epoch_of_a_record_that_the_log_does_not_have_proves_nothing(
    expected: ExpectedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, _ = with_three_epochs(TopicSettings())
    open_topic_log(disk, expected=expected._replace(record_epoch=-1)).close()
    read = headers_read(monkeypatch)
    assert open_topic_log(disk, expected=expected).leader_epochs.latest == 7
    assert read == []
