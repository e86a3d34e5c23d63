"""A real ZooKeeper, from Spark's jars."""

import os
import signal
import subprocess
from pathlib import Path

from conveyor.cli.zookeeper import HOST, wait_until_serving, zookeeper_command
from conveyor.testing.held_port import HeldPort


class ZookeeperProcess:
    """One server on a data directory; the same port after each start."""

    def __init__(self, data_dir: Path, tick_ms: int = 500) -> None:
        self._data_dir = data_dir
        self._tick_ms = tick_ms
        self._held = HeldPort()
        self.port = self._held.port

    @property
    def server(self) -> str:
        return f"{HOST}:{self.port}"

    def start(self) -> "ZookeeperProcess":
        command = zookeeper_command(self._data_dir, self.port)
        config = self._data_dir / "zoo.cfg"
        config.write_text(config.read_text().replace("tickTime=500", f"tickTime={self._tick_ms}"))
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        wait_until_serving(self._process, self.port)
        return self

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def pause(self) -> None:
        """SIGSTOP: it accepts connections, and answers nothing."""
        os.kill(self._process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self._process.pid, signal.SIGCONT)
