"""What a user meets when a broker cannot start, or a command cannot be carried out: one line that says what to do."""

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes import BrokerProcess

FREE = ("--kafka", "127.0.0.1:0", "--http", "127.0.0.1:0")


def run(*arguments: str, directory: Path, **environment: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "conveyor.cli.main", *arguments]
    return subprocess.run(
        command, cwd=directory, env=os.environ | environment, input="x\n", capture_output=True, text=True, timeout=120
    )


def error_of(*arguments: str, directory: Path, **environment: str) -> str:
    """The one line of a command that fails."""
    ended = run(*arguments, directory=directory, **environment)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.startswith("conveyor: ")
    assert ended.stderr.count("\n") == 1, ended.stderr
    return ended.stderr.removeprefix("conveyor: ").rstrip()


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    process = BrokerProcess(tmp_path / "data").start()
    yield process
    assert process.stop() == 0


@pytest.mark.parametrize("which", ["kafka", "http"])
def test_a_port_that_is_taken(tmp_path: Path, which: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        other = "http" if which == "kafka" else "kafka"
        listeners = (f"--{other}", "127.0.0.1:0", f"--{which}", f"127.0.0.1:{port}")
        error = error_of("serve", *listeners, directory=tmp_path)
    assert error.startswith(f"port {port} on 127.0.0.1 is in use by another process: stop it, or choose another port")
    assert f"--{which} 127.0.0.1:PORT" in error


def test_a_data_directory_that_another_broker_uses(broker: BrokerProcess, tmp_path: Path) -> None:
    error = error_of("serve", *FREE, "--data-dir", "data", directory=tmp_path)
    holder = f"(process {broker.pid})"
    assert error == (
        f"data directory data is in use by another broker {holder}: stop it, or choose another directory"
        " with --data-dir"
    )


def test_a_data_directory_is_free_again_after_a_kill(tmp_path: Path) -> None:
    killed = BrokerProcess(tmp_path / "data").start()
    killed.kill()
    assert BrokerProcess(tmp_path / "data").start().stop() == 0


def test_a_data_directory_that_cannot_be_written(tmp_path: Path) -> None:
    """Below a file, where nobody can make a directory, not even root."""
    (tmp_path / "file").touch()
    error = error_of("serve", *FREE, "--data-dir", "file/data", directory=tmp_path)
    assert error.startswith("data directory file/data is not writable (Not a directory): change its permissions, or")


def test_a_data_directory_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    error = error_of("serve", *FREE, "--data-dir", "file", directory=tmp_path)
    assert error == "data directory file is a file: choose another with --data-dir"


def test_metadata_that_is_no_database(tmp_path: Path) -> None:
    (tmp_path / "metadata.sqlite").write_text("no database, whatever its name says")
    error = error_of("serve", *FREE, "--data-dir", ".", directory=tmp_path)
    assert error == "the data directory cannot be used: metadata.sqlite: file is not a database"


def test_a_setting_that_is_wrong(tmp_path: Path) -> None:
    error = error_of("serve", *FREE, "--set", "network.max_idle_ms=soon", directory=tmp_path)
    assert error == "setting 'network.max_idle_ms' is 'soon': it takes a whole number"


def test_a_variable_that_is_wrong(tmp_path: Path) -> None:
    error = error_of("serve", *FREE, directory=tmp_path, CONVEYOR_TOPICS_SEGMENT_BYTES="12")
    assert error == "setting 'topics.segment_bytes' is 12: it must be at least 1024 bytes"


def test_a_settings_file_that_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "conveyor.toml").write_text("[topics]\nsegment_byte = 4096\n")
    error = error_of("serve", *FREE, directory=tmp_path)
    assert error.startswith("unknown setting 'topics.segment_byte': use one of ")
    assert "segment_bytes" in error


def test_an_address_that_other_machines_reach(tmp_path: Path) -> None:
    error = error_of("serve", "--kafka", "0.0.0.0:0", "--http", "127.0.0.1:0", directory=tmp_path)
    assert error.endswith("clients are not authenticated: bind to 127.0.0.1, or add --insecure")


def test_an_address_that_other_machines_reach_is_taken_when_told_so(tmp_path: Path) -> None:
    process = BrokerProcess(tmp_path / "data", "--insecure")
    process.kafka = "0.0.0.0:0"
    assert process.start().ready["kafka"].startswith("0.0.0.0:")
    assert process.stop() == 0


@pytest.mark.parametrize("command", [["consume", "nothing"], ["topic", "describe", "nothing"]])
def test_a_topic_that_is_not_there(broker: BrokerProcess, tmp_path: Path, command: list[str]) -> None:
    error = error_of(*command, "--bootstrap", broker.kafka, directory=tmp_path)
    assert error == "unknown topic 'nothing': see 'conveyor topic list', or create it with 'conveyor topic create'"


def test_the_ready_line_tells_where_the_broker_is(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "conveyor.cli.main", "serve", "--data-dir", str(tmp_path), *FREE, "--node-id", "7"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.fullmatch(
            r"ready kafka=127\.0\.0\.1:(\d+) http=http://127\.0\.0\.1:(\d+) node=7 startup_ms=\d+\n", line
        )
        assert found is not None, line
        for port in map(int, found.groups()):
            socket.create_connection(("127.0.0.1", port)).close()
        process.terminate()
        assert process.communicate(timeout=60)[0] == "", "the ready line is all that is printed"
    assert process.returncode == 0


@pytest.mark.parametrize("signal_number", [2, 15])
def test_a_broker_stops_cleanly_when_it_is_told_to(tmp_path: Path, signal_number: int) -> None:
    process = BrokerProcess(tmp_path / "data").start()
    os.kill(process.pid, signal_number)
    assert process.stop() == 0
    assert "Traceback" not in process.log()


def test_help_needs_no_broker(tmp_path: Path) -> None:
    ended = run("serve", "--help", directory=tmp_path)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "--data-dir" in ended.stdout
