"""Compaction in another process: on the real disk, at low priority, one process per plan.

    python -m conveyor.adapters.compactor <data directory>     plan: a line of JSON on stdin; result: JSON on stdout

The last line on stderr is the reason of a failure; the exit code is EX_DATAERR if the log is damaged.

The process exits when its stdin is closed: otherwise it could outlive its broker and write files of the next broker's
compactions.
"""

import asyncio
import contextlib
import os
import sys
from pathlib import Path
from subprocess import PIPE, Popen
from threading import Thread
from typing import IO

import msgspec

from conveyor.adapters.disk import RealDisk
from conveyor.kernel.errors import LogDamaged, StorageFailure
from conveyor.kernel.ports import Disk
from conveyor.log.compaction.compaction_plan import CompactionPlan
from conveyor.log.compaction.key_compaction import CompactionResult, compact

_OPEN_FILES = 64
_NICENESS = 10
_STDIN = 0
_DAMAGED = os.EX_DATAERR


class ProcessCompactor:
    """Starts one process per plan."""

    def __init__(self, root: Path) -> None:
        self._root = root

    async def compact(self, plan: CompactionPlan) -> CompactionResult:
        """Execute a plan in a new process. Raises StorageFailure, as `key_compaction` does."""
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
            failure = LogDamaged if process.returncode == _DAMAGED else StorageFailure
            raise failure(f"compaction of {plan.directory}: {lines[-1]}")
        return msgspec.json.decode(output, type=CompactionResult)

    def _start(self, stdin: IO[bytes]) -> "Popen[bytes]":
        """Called on a thread, because asyncio's own subprocess start copies the page tables of the whole process."""
        command = [sys.executable, "-m", __name__, str(self._root)]
        return Popen(command, stdin=stdin, stdout=PIPE, stderr=PIPE)  # noqa: S603 - the broker's own module


class ThreadCompactor:
    """Compacts on a thread, for a disk that no other process can open."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    async def compact(self, plan: CompactionPlan) -> CompactionResult:
        """Execute a plan on a thread. Raises StorageFailure, as `key_compaction` does."""
        return await asyncio.to_thread(compact, self._disk, plan)


def _exchange(process: "Popen[bytes]", stdin: IO[bytes], plan: CompactionPlan) -> tuple[bytes, bytes]:
    """Send the plan, and return the process's output once it has exited. A process that does not read the plan has
    exited early.
    """
    with contextlib.suppress(BrokenPipeError):
        stdin.write(msgspec.json.encode(plan) + b"\n")
    return process.communicate()


def main() -> None:
    """The entry point of the compaction process."""
    os.nice(_NICENESS)
    plan = msgspec.json.decode(sys.stdin.buffer.readline(), type=CompactionPlan)
    Thread(target=_end_with_broker, daemon=True).start()
    try:
        result = compact(RealDisk(Path(sys.argv[1]), _OPEN_FILES), plan)
    except LogDamaged as failure:
        sys.stderr.write(f"{failure}\n")
        raise SystemExit(_DAMAGED) from failure
    except StorageFailure as failure:
        raise SystemExit(str(failure)) from failure
    sys.stdout.buffer.write(msgspec.json.encode(result))


def _end_with_broker() -> None:
    os.read(_STDIN, 1)
    os._exit(1)


if __name__ == "__main__":
    main()
