"""A system's server in a process of its own, on a fresh data directory, that can be stopped and started again."""

import os
import re
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import psutil

from benchmarks.wire import log_end_offsets

_WAIT_TIMEOUT_S = 120
_STOP_TIMEOUT_S = 60
_PROBE_PAUSE_S = 0.005


class System(Protocol):
    """What is measured. The rows know no more of it than this.

    policy: when the system flushes what it acknowledges, or `-` where there is no choice.
    topic_settings: what a topic is created with to have that policy.
    """

    @property
    def name(self) -> str: ...

    @property
    def policy(self) -> str: ...

    @property
    def topic_settings(self) -> dict[str, str]: ...

    def prepare(self, directory: Path, address: str) -> list[str]:
        """Ready an empty directory; returns the command that starts a server there, for clients at an address."""

    def answers(self, address: str) -> bool:
        """Whether it takes requests at that address. Raises OSError."""


class Server:
    """One process of a system. startup_ms: from the command to the first answer."""

    def __init__(self, command: list[str], address: str, answers: Callable[[str], bool], log: Path) -> None:
        self._command = command
        self._takes_requests = answers
        self._log = log
        self.bootstrap_servers = address
        self.startup_ms = self.start()

    def start(self) -> float:
        """Returns how long it took until a request was answered, in milliseconds."""
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        self._told_before = self._log.stat().st_size if self._log.exists() else 0
        with self._log.open("a") as log:
            self._started = time.perf_counter()
            self._process = psutil.Popen(self._command, stdout=log, stderr=subprocess.STDOUT, env=environment)
        try:
            return self.wait_until(lambda: self._takes_requests(self.bootstrap_servers), "an answer")
        except BaseException:
            self.stop()
            raise

    def wait_for_records(self, topic: str, partitions: int, count: int) -> float:
        """Wait until the partitions all answer and consumers may see so many records; milliseconds since the command.

        Acknowledged may be earlier than to be seen: with acks=1 and a flush before a record is shown.
        Raises RuntimeError if it stays fewer, or becomes more.
        """

        def all_there() -> bool:
            offsets = log_end_offsets(self.bootstrap_servers, topic, partitions)
            if offsets is not None and sum(offsets) > count:
                raise RuntimeError(f"{count} records were sent to {topic} and {sum(offsets)} are there")
            return offsets is not None and sum(offsets) == count

        return self.wait_until(all_there, f"{count} records in {topic}")

    def wait_until(self, holds: Callable[[], bool], what: str) -> float:
        """Wait until something holds, which may raise OSError until then; milliseconds since the command."""
        deadline = time.perf_counter() + _WAIT_TIMEOUT_S
        while not self._answers(holds):
            if self._process.poll() is not None or time.perf_counter() > deadline:
                raise RuntimeError(f"{what} did not come: {self._log.read_text()[-2000:]}")
            time.sleep(_PROBE_PAUSE_S)
        return (time.perf_counter() - self._started) * 1000

    def http_address(self) -> str:
        """Where Conveyor's HTTP door is, as it has said when it was ready."""
        found: list[str] = []

        def has_told() -> bool:
            found[:] = re.findall(
                r"^ready .*http=http://(\S+)", self._log.read_text()[self._told_before :], re.MULTILINE
            )
            return bool(found)

        self.wait_until(has_told, "the line that says ready")
        return found[-1]

    def stop(self) -> None:
        """Ask it to end, and see that it does."""
        if self._process.poll() is not None:
            return
        self._process.terminate()
        try:
            self._process.wait(_STOP_TIMEOUT_S)
        except psutil.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def drop_page_cache(self) -> None:
        """Let the system read the server's files from the disk the next time."""
        for path in self._log.parent.rglob("*"):
            if path.is_file():
                with path.open("rb") as file:
                    os.fsync(file.fileno())
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    def resident_bytes(self) -> int:
        """Of the process and its children."""
        return sum(int(each.memory_info().rss) for each in self._processes())

    def cpu_seconds(self) -> float:
        """User and system time so far, of the process and its children."""
        times = [each.cpu_times() for each in self._processes()]
        return float(sum(each.user + each.system for each in times))

    def _processes(self) -> list[psutil.Process]:
        return [self._process, *self._process.children(recursive=True)]

    @staticmethod
    def _answers(holds: Callable[[], bool]) -> bool:
        try:
            return holds()
        except OSError:
            return False


@contextmanager
def running(system: System) -> Iterator[Server]:
    """Start a server of a system; it is stopped, and its data deleted, afterwards."""
    with tempfile.TemporaryDirectory(prefix="conveyor-bench-") as name:
        directory = Path(name)
        address = f"127.0.0.1:{free_port()}"
        server = Server(system.prepare(directory, address), address, system.answers, directory / "console.log")
        try:
            yield server
        finally:
            server.stop()


def free_port() -> int:
    """A port of the loopback address that nothing listens on just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
