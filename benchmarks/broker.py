"""A broker in a process of its own, as `conveyor serve` starts it, on a fresh data directory."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningBroker:
    """A broker that is ready. startup_ms: from the start of the command to its ready line."""

    bootstrap_servers: str
    pid: int
    startup_ms: float

    def resident_bytes(self) -> int:
        return int(psutil.Process(self.pid).memory_info().rss)

    def cpu_seconds(self) -> float:
        """User and system time so far."""
        times = psutil.Process(self.pid).cpu_times()
        return float(times.user + times.system)


@contextmanager
def running_broker(*settings: str) -> Iterator[RunningBroker]:
    """Start a broker with `section.name=value` settings; it is stopped, and its data deleted, afterwards."""
    with tempfile.TemporaryDirectory(prefix="conveyor-bench-") as directory:
        command = [str(Path(sys.executable).with_name("conveyor")), "serve", "--data-dir", directory]
        command += ["--kafka", "127.0.0.1:0", "--http", "127.0.0.1:0"]
        command += [word for setting in settings for word in ("--set", setting)]
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        started = time.perf_counter()
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            startup_ms = (time.perf_counter() - started) * 1000
            ready = dict(word.partition("=")[::2] for word in line.split()[1:])
            yield RunningBroker(bootstrap_servers=ready["kafka"], pid=process.pid, startup_ms=startup_ms)
        finally:
            process.terminate()
            process.wait(60)
