"""`conveyor serve --workers` in a process, which can be killed, and so can its workers."""

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

_LIMIT_S = 120.0
_CHECK_S = 0.02


class WorkerGroup:
    """The addresses of the first start stay, as those of a machine whose settings name them would.

    pids: the processes of the workers, by number, as the supervisor has last named them.
    """

    def __init__(self, directory: Path, workers: int, *options: str) -> None:
        self.directory = directory
        self.pids: dict[int, int] = {}
        self._options = ("--workers", str(workers), "--data-dir", str(directory / "data"), *options)
        self._log = directory / "workers.log"
        self._ports = ("--kafka", "127.0.0.1:0", "--http", "127.0.0.1:0")

    @property
    def bootstrap(self) -> str:
        return ",".join(self.kafka.values())

    def start(self) -> "WorkerGroup":
        command = [sys.executable, "-m", "conveyor.cli.main", "serve", *self._options, *self._ports]
        with self._log.open("a") as log:
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        assert self._process.stdout is not None
        ready = self._process.stdout.readline()
        assert ready.startswith("ready "), self.log()
        count = int(re.findall(r"workers=(\d+)", ready)[0])
        rows = [self._process.stdout.readline() for _ in range(count)]
        found = [re.findall(r"worker (\d+): kafka=(\S+) .* pid=(\d+)", row)[0] for row in rows]
        self.kafka = {int(number): kafka for number, kafka, _ in found}
        self.pids = {int(number): int(pid) for number, _, pid in found}
        return self

    def log(self) -> str:
        return self._log.read_text()

    def signal_worker(self, number: int, which: signal.Signals) -> None:
        os.kill(self.pids[number], which)

    def kill_worker(self, number: int) -> None:
        """SIGKILL one worker. It comes back by itself; see `until_back`."""
        self.signal_worker(number, signal.SIGKILL)

    def until_back(self, number: int) -> None:
        """Wait until the supervisor has started a killed worker again."""
        found = ""
        while not found or int(found) == self.pids[number]:
            found = (re.findall(rf"worker {number} is back pid=(\d+)", self.log()) or [""])[-1]
            self._pause()
        self.pids[number] = int(found)

    def kill_supervisor(self) -> None:
        self._process.kill()
        self._process.communicate()

    def until_workers_end(self) -> None:
        for pid in self.pids.values():
            while is_running(pid):
                self._pause()

    def stop(self) -> int:
        """SIGTERM to the supervisor; returns the exit code."""
        self._process.terminate()
        self._process.communicate(timeout=_LIMIT_S)
        return self._process.returncode

    def end(self) -> None:
        """Kill everything."""
        if self._process.poll() is None:
            self.kill_supervisor()
        for pid in self.pids.values():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    @staticmethod
    def _pause() -> None:
        """Between two looks at another process; pytest's timeout ends a test that waits forever."""
        time.sleep(_CHECK_S)


def is_running(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
