"""A compaction whose process does not start, or dies, is a failure of that compaction and of nothing else."""

import sys
from pathlib import Path

import pytest

from conveyor.adapters.compactor import ProcessCompactor
from conveyor.kernel.errors import StorageFailure
from conveyor.log.compaction_plan import CompactionPlan

PLAN = CompactionPlan(
    directory="logs/c-0", segments=(), first_dirty_offset=0, now_ms=0, delete_retention_ms=0, segment_bytes=1024,
    index_interval_bytes=0, max_keys=1,
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
