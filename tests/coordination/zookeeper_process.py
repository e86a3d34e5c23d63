"""A real ZooKeeper, from Spark's jars, also one that takes clients by certificates."""

import contextlib
import os
import signal
import socket
import subprocess
from pathlib import Path

from conveyor.cli.zookeeper import HOST, wait_until_serving, zookeeper_command
from conveyor.testing.held_port import HeldPort

_SECURE = """\
secureClientPort={port}
secureClientPortAddress=0.0.0.0
serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory
ssl.keyStore.location={own}
ssl.keyStore.type=PEM
ssl.trustStore.location={trusted}
ssl.trustStore.type=PEM
ssl.clientAuth=need
"""


class SecurePort:
    """Where a server takes only clients with certificates. own: its certificate and key. trusted: the authorities."""

    def __init__(self, own: Path, trusted: Path) -> None:
        self._held = HeldPort()
        self.port = self._held.port
        self.settings = _SECURE.format(port=self.port, own=own, trusted=trusted)

    def wait_until_open(self, process: "subprocess.Popen[bytes]") -> None:
        """Wait until the server listens, which it does here later than at its other port."""
        while process.poll() is None:
            with contextlib.suppress(ConnectionRefusedError), socket.create_connection((HOST, self.port)):
                return


class ZookeeperProcess:
    """One server on a data directory; the same ports after each start."""

    def __init__(self, data_dir: Path, tick_ms: int = 500, secure: SecurePort | None = None) -> None:
        self._secure = secure
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
        if self._secure is not None:
            config.write_text(config.read_text() + self._secure.settings)
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        wait_until_serving(self._process, self.port)
        if self._secure is not None:
            self._secure.wait_until_open(self._process)
        return self

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def pause(self) -> None:
        """SIGSTOP: it accepts connections, and answers nothing."""
        os.kill(self._process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self._process.pid, signal.SIGCONT)
