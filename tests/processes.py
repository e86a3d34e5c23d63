"""A broker in a process of its own, which can be killed; and the environment of processes that start Java."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from conveyor.testing.held_port import HeldPort

_SERVE = ("-m", "conveyor.cli.main", "serve")
_JAVA_OPTIONS = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS")


class BrokerProcess:
    """`conveyor serve` on a data directory; the same ports after each start.

    command: what runs it, as arguments of the interpreter.
    """

    def __init__(self, data_dir: Path, *options: str, command: Sequence[str] = _SERVE) -> None:
        self._command = [sys.executable, *command, "--data-dir", str(data_dir), *options]
        self._log = data_dir.parent / "broker.log"
        self._ports = HeldPort(), HeldPort()
        self.kafka, self.http = (port.address for port in self._ports)
        self.ready: dict[str, str] = {}

    def use_log(self, path: Path) -> None:
        """Keep what it writes to standard error elsewhere than beside its data."""
        self._log = path

    def start(self) -> "BrokerProcess":
        with self._log.open("a") as log:
            command = [*self._command, "--kafka", self.kafka, "--http", self.http]
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
            )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line.startswith("ready "), self.log()
        self.ready = dict(word.partition("=")[::2] for word in line.split()[1:])
        self.kafka, self.http = self.ready["kafka"], self.ready["http"].removeprefix("http://")
        return self

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def bootstrap_servers(self) -> str:
        return self.kafka

    def kill(self) -> None:
        """SIGKILL: no chance to flush or to say goodbye. A broker that has ended stays as it is."""
        self._process.kill()
        self._process.communicate()

    def tell(self, line: str) -> None:
        """Write a line to its standard input."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def send_signal(self, number: int) -> None:
        self._process.send_signal(number)

    def wait(self) -> int:
        """Wait until it ends by itself; returns the exit code."""
        self._process.communicate(timeout=60)
        return self._process.returncode

    def end(self) -> None:
        """SIGKILL, if it still runs."""
        if self._process.poll() is None:
            self.kill()
        elif self._process.stdout is not None:
            self._process.stdout.close()

    def stop(self) -> int:
        """SIGTERM; returns the exit code."""
        self._process.terminate()
        self._process.communicate(timeout=60)
        return self._process.returncode

    def log(self) -> str:
        return self._log.read_text()


def without_java_options() -> dict[str, str]:
    """Return the environment without variables about which Java prints a line, as the tests of Spark set one."""
    return {name: value for name, value in os.environ.items() if name not in _JAVA_OPTIONS}
