"""Compaction in another process: on the real disk, at low priority, one plan a process.

    python -m conveyor.adapters.compactor <data directory>     plan as JSON on stdin, result as JSON on stdout

A broker that is killed leaves the process to itself: what it writes is only looked at if its result was taken.
"""

import asyncio
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path

from conveyor.adapters.disk import RealDisk
from conveyor.kernel.errors import StorageFailure
from conveyor.kernel.ports import Disk
from conveyor.log.compaction import CleanedSegment, CompactionResult, compact
from conveyor.log.compaction_plan import CompactionPlan, SegmentBounds

_OPEN_FILES = 64
_NICENESS = 10


class ProcessCompactor:
    """Starts a process for each plan."""

    def __init__(self, root: Path) -> None:
        self._root = root

    async def compact(self, plan: CompactionPlan) -> CompactionResult:
        """Raises StorageFailure."""
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", __name__, str(self._root),
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            )  # fmt: skip
        except OSError as error:
            raise StorageFailure(f"compaction of {plan.directory} cannot start a process: {error}") from error
        try:
            output, errors = await process.communicate(json.dumps(asdict(plan)).encode())
        finally:
            if process.returncode is None:
                process.kill()
        if process.returncode != 0:
            lines = errors.decode(errors="replace").strip().splitlines() or [f"exit code {process.returncode}"]
            raise StorageFailure(f"compaction of {plan.directory}: {lines[-1]}")
        return _decode_result(output)


class ThreadCompactor:
    """For a disk that no other process can see."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    async def compact(self, plan: CompactionPlan) -> CompactionResult:
        """Raises StorageFailure."""
        return await asyncio.to_thread(compact, self._disk, plan)


def main() -> None:
    """What the process does."""
    os.nice(_NICENESS)
    plan = _decode_plan(sys.stdin.buffer.read())
    try:
        result = compact(RealDisk(Path(sys.argv[1]), _OPEN_FILES), plan)
    except StorageFailure as failure:
        raise SystemExit(str(failure)) from failure
    sys.stdout.write(json.dumps(asdict(result)))


def _decode_plan(content: bytes) -> CompactionPlan:
    document = json.loads(content)
    segments = tuple(SegmentBounds(**each) for each in document.pop("segments"))
    return CompactionPlan(segments=segments, **document)


def _decode_result(content: bytes) -> CompactionResult:
    document = json.loads(content)
    cleaned = tuple(CleanedSegment(**each) for each in document.pop("cleaned"))
    return CompactionResult(replaced=tuple(document.pop("replaced")), cleaned=cleaned, **document)


if __name__ == "__main__":
    main()
