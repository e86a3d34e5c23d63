"""A flush job: its order, and what is durable when it has run."""

import pytest

from conveyor.kernel.errors import StorageFailure
from conveyor.log.log import Log
from conveyor.log.producers.producer_snapshot import snapshot_offsets
from conveyor.settings.tree import TopicSettings
from conveyor.testing import MemoryDisk
from tests.unit.log.logs import DIRECTORY, append, batch, flush, idempotent_batch, open_topic_log, segment_file

SIZE = len(batch(b"a"))


class RecordingDisk(MemoryDisk):
    """A memory disk that notes what makes things durable, in its order."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[tuple[str, str]] = []

    def check(self, operation: str, path: str) -> None:
        super().check(operation, path)
        if operation in ("sync", "sync_directory", "write_atomic"):
            self.steps.append((operation, path))


def rolled(disk: MemoryDisk, count: int) -> Log:
    """A log of batches with one in each segment, not flushed."""
    log = open_topic_log(disk, TopicSettings(segment_bytes=SIZE))
    for number in range(count):
        append(log, idempotent_batch(number, b"a"))
    return log


def test_flush_job_order_lets_a_seal_say_that_its_segment_is_on_disk() -> None:
    disk = RecordingDisk()
    flush(rolled(disk, 2))
    assert disk.steps == [
        ("sync", f"{DIRECTORY}/partition.metadata"),
        ("sync_directory", DIRECTORY),
        ("write_atomic", f"{DIRECTORY}/leader-epoch-checkpoint"),
        ("sync", segment_file(0)),
        ("write_atomic", segment_file(0, "timeindex")),
        ("write_atomic", segment_file(0, "index")),
        ("write_atomic", segment_file(0, "seal")),
        ("sync", segment_file(1)),
        ("write_atomic", segment_file(1, "producers")),
    ]


def test_flush_job_without_a_roll_is_one_sync() -> None:
    disk = RecordingDisk()
    log = rolled(disk, 1)
    flush(log)
    disk.steps.clear()
    log.use(TopicSettings())
    append(log, batch(b"b"))
    flush(log)
    assert disk.steps == [("sync", segment_file(0))]


def test_flush_job_keeps_two_snapshots() -> None:
    disk = MemoryDisk()
    log = rolled(disk, 1)
    for number in range(1, 5):
        append(log, idempotent_batch(number, b"a"))
        flush(log)
    assert snapshot_offsets(disk.list(DIRECTORY)) == [3, 4]


@pytest.mark.parametrize("operation", ["sync_directory", "sync", "write_atomic"])
def test_flush_job_failure_is_raised(operation: str) -> None:
    disk = MemoryDisk()
    log = rolled(disk, 2)
    disk.faults.fail(operation)
    job = log.flushes.begin()
    with pytest.raises(StorageFailure, match=operation):
        job.run()
    assert log.flushes.flushed_offset == 0
