"""Compaction in another process: on the real disk, at low priority, one plan a process.

    python -m conveyor.adapters.compactor <data directory>     plan: a line of JSON on stdin; result: JSON on stdout

The process ends when its stdin does: one that outlives its broker would write files of the next broker's compactions.
"""

import asyncio
import contextlib
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from subprocess import PIPE, Popen
from threading import Thread
from typing import IO

from conveyor.adapters.disk import RealDisk
from conveyor.kernel.errors import StorageFailure
from conveyor.kernel.ports import Disk
from conveyor.log.compaction.compaction_plan import CompactionPlan, SegmentBounds
from conveyor.log.compaction.key_compaction import CleanedSegment, CompactionResult, compact

_OPEN_FILES = 64
_NICENESS = 10
_STDIN = 0


class ProcessCompactor:
    """Starts a process for each plan."""

    def __init__(self, root: Path) -> None:
        self._root = root

    async def compact(self, plan: CompactionPlan) -> CompactionResult:
        """Raises StorageFailure."""
        reading, writing = os.pipe()
        with os.fdopen(reading, "rb") as for_process, os.fdopen(writing, "wb", buffering=0) as for_plan:
            try:
                process = await asyncio.to_thread(self._start, for_process)
            except OSError as error:
                raise StorageFailure(f"compaction of {plan.directory} cannot start a process: {error}") from error
            try:
                for_process.close()
                output, errors = await asyncio.to_thread(_exchange, process, for_plan, plan)
            finally:
                if process.returncode is None:
                    process.kill()
        if process.returncode != 0:
            lines = errors.decode(errors="replace").strip().splitlines() or [f"exit code {process.returncode}"]
            raise StorageFailure(f"compaction of {plan.directory}: {lines[-1]}")
        return _decode_result(output)

    def _start(self, stdin: IO[bytes]) -> "Popen[bytes]":
        """On a thread, as the event loop's own way to start a process copies the page tables of all its memory."""
        command = [sys.executable, "-m", __name__, str(self._root)]
        return Popen(command, stdin=stdin, stdout=PIPE, stderr=PIPE)  # noqa: S603 - the broker's own module


class ThreadCompactor:
    """For a disk that no other process can see."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    async def compact(self, plan: CompactionPlan) -> CompactionResult:
        """Raises StorageFailure."""
        return await asyncio.to_thread(compact, self._disk, plan)


def _exchange(process: "Popen[bytes]", stdin: IO[bytes], plan: CompactionPlan) -> tuple[bytes, bytes]:
    """What the process has written when it has ended. It has ended early if it does not take the plan."""
    with contextlib.suppress(BrokenPipeError):
        stdin.write(json.dumps(asdict(plan)).encode() + b"\n")
    return process.communicate()


def main() -> None:
    """What the process does."""
    os.nice(_NICENESS)
    plan = _decode_plan(sys.stdin.buffer.readline())
    Thread(target=_end_with_broker, daemon=True).start()
    try:
        result = compact(RealDisk(Path(sys.argv[1]), _OPEN_FILES), plan)
    except StorageFailure as failure:
        raise SystemExit(str(failure)) from failure
    sys.stdout.write(json.dumps(asdict(result)))


def _end_with_broker() -> None:
    os.read(_STDIN, 1)
    os._exit(1)


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
