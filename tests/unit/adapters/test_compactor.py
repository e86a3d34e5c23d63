"""A compaction whose process does not start, or dies, is a failure of that compaction and of nothing else."""

import os
import sys
from pathlib import Path
from subprocess import PIPE, Popen
from uuid import UUID, uuid4

import msgspec
import pytest
from msgspec.structs import replace

from conveyor.adapters.compactor import ProcessCompactor
from conveyor.adapters.disk import RealDisk
from conveyor.kernel.errors import LogDamaged, StorageFailure
from conveyor.kernel.ids import TopicId
from conveyor.log.compaction.compaction_plan import CompactionPlan, SegmentBounds
from conveyor.log.partition_directory import PartitionDirectory

PLAN = CompactionPlan(
    directory="logs/c-0", topic_id=uuid4().hex, segments=(), first_dirty_offset=0, tombstones_end_offset=0, now_ms=0,
    delete_retention_ms=0,    segment_bytes=1024, index_interval_bytes=0, max_keys=1,
)  # fmt: skip


@pytest.mark.parametrize(
    ("executable", "says"),
    [("/nowhere/python", "logs/c-0 cannot start a process"), ("/bin/false", "logs/c-0: exit code 1")],
)
async def test_process_that_fails_is_a_storage_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, executable: str, says: str
) -> None:
    monkeypatch.setattr(sys, "executable", executable)
    with pytest.raises(StorageFailure, match=says):
        await ProcessCompactor(tmp_path).compact(PLAN)


async def test_process_leaves_the_directory_of_another_topic_alone(tmp_path: Path) -> None:
    disk = RealDisk(tmp_path, 100)
    disk.make_directory("logs/c-0")
    PartitionDirectory(disk, "logs/c-0", TopicId(uuid4())).claim()
    segments = (SegmentBounds(base_offset=5, next_offset=9, size=100, last_append_ms=0),)
    with pytest.raises(StorageFailure, match="logs/c-0"):
        await ProcessCompactor(tmp_path).compact(replace(PLAN, segments=segments))
    assert disk.list("logs/c-0") == ["partition.metadata"]


async def test_process_tells_that_a_log_is_damaged(tmp_path: Path) -> None:
    disk = RealDisk(tmp_path, 100)
    disk.make_directory("logs/c-0")
    PartitionDirectory(disk, "logs/c-0", TopicId(UUID(PLAN.topic_id))).claim()
    content = b"not a batch".ljust(100)
    disk.open(f"logs/c-0/{0:020}.log", create=True).append([content])
    segments = (SegmentBounds(base_offset=0, next_offset=9, size=len(content), last_append_ms=0),)
    with pytest.raises(LogDamaged, match=f"compaction of logs/c-0: logs/c-0/{0:020}.log is damaged at 0"):
        await ProcessCompactor(tmp_path).compact(replace(PLAN, segments=segments))


def test_process_ends_with_its_broker(tmp_path: Path) -> None:
    """It would wait for the marker's content forever."""
    (tmp_path / "logs" / "c-0").mkdir(parents=True)
    os.mkfifo(tmp_path / "logs" / "c-0" / "partition.metadata")
    command = [sys.executable, "-m", "conveyor.adapters.compactor", str(tmp_path)]
    with Popen(command, stdin=PIPE, stdout=PIPE, stderr=PIPE) as process:
        assert process.stdin is not None
        process.stdin.write(msgspec.json.encode(PLAN) + b"\n")
        process.stdin.close()
        assert process.wait(60) == 1
