"""`conveyor zookeeper`: a ZooKeeper to develop with."""

import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from conveyor.kernel.ports import PutNode, Versioned
from tests.coordination.conftest import OpenStore
from tests.processes import without_java_options

COMMAND = [sys.executable, "-m", "conveyor.cli.main", "zookeeper"]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
        return port


class Command:
    """The running command, once it listens."""

    def __init__(self, *options: str) -> None:
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            [*COMMAND, *options], stdout=pipe, stderr=pipe, text=True, env=without_java_options()
        )
        assert self._process.stdout is not None
        self.lines = [self._process.stdout.readline().rstrip() for _ in range(2)]

    def stop(self, number: signal.Signals) -> tuple[int, str, str]:
        """Returns the exit code, and the rest of its output and errors."""
        self._process.send_signal(number)
        output, errors = self._process.communicate(timeout=60)
        return self._process.returncode, output, errors


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_command_says_how_to_use_it_and_keeps_its_data(
    tmp_path: Path, open_store: OpenStore, number: signal.Signals
) -> None:
    port = free_port()
    for run in range(2):
        command = Command("--port", str(port), "--data-dir", str(tmp_path / "data"))
        assert command.lines == [
            f"ZooKeeper listens on 127.0.0.1:{port}, data in {tmp_path / 'data'}. Start a broker with",
            f"  conveyor serve --metadata zookeeper://127.0.0.1:{port}/conveyor",
        ]
        store = await open_store(command.lines[1].split()[-1])
        assert store.session_timeout_ms == 2_000
        assert await store.get("/a") == (Versioned(b"", 1) if run else None)
        await store.commit(PutNode("/a", b""))
        await store.close()
        assert command.stop(number) == (0, "stopped\n", "")


def test_command_without_a_directory_leaves_nothing_behind() -> None:
    command = Command("--port", str(free_port()))
    directory = Path(command.lines[0].partition("data in ")[2].partition(". Start")[0])
    assert directory.is_dir()
    assert command.stop(signal.SIGINT) == (0, "stopped\n", "")
    assert not directory.exists()


def error_of(command: list[str]) -> str:
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout) == (1, "")
    return ended.stderr


def test_port_that_is_taken_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        error = error_of([*COMMAND, "--port", str(port)])
    assert error == f"conveyor: port {port}: Address already in use: choose another with --port\n"


def test_directory_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    error = error_of([*COMMAND, "--port", str(free_port()), "--data-dir", str(tmp_path / "file" / "below")])
    assert "file/below: Not a directory: choose another with --data-dir" in error


def test_command_without_spark_says_what_to_install(tmp_path: Path) -> None:
    """`find_spec` finds no module that is None in `sys.modules`."""
    script = "import sys; sys.modules['pyspark'] = None; from conveyor.cli.main import main; main()"
    error = error_of([sys.executable, "-c", script, "zookeeper", "--port", str(free_port())])
    assert error == "conveyor: pyspark not installed, whose jars include ZooKeeper: pip install 'conveyor[spark]'\n"
