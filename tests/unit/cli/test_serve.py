"""`conveyor serve` with invalid settings starts nothing, and prints the reason in one line."""

from pathlib import Path

import pytest

from tests.unit.cli.commands import Run

FREE = ("--kafka", "127.0.0.1:0", "--http", "127.0.0.1:0")


@pytest.fixture(autouse=True)
def _in_an_empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--set", "topics.segment_bytes=1"], "setting 'topics.segment_bytes' is 1: it must be at least 1024 bytes"),
        (["--set", "topics.segment_byte=1"], "unknown setting 'topics.segment_byte': use one of "),
        (["--set", "nothing"], "--set nothing: expected NAME=VALUE"),
        (["--kafka", "nowhere"], "setting 'network.kafka' is 'nowhere': it takes host:port"),
        (["--http", "0.0.0.0:0", "--kafka", "127.0.0.1:0"], "--http 0.0.0.0:0 can be reached from other machines"),
        (["--node-id", "-1"], "setting 'broker.node_id' is -1: it must be at least 0"),
        (["--config", "nothing.toml"], "settings file nothing.toml does not exist"),
        (["--workers", "0"], "setting 'broker.workers' is 0: it must be at least 1 processes"),
        (["--workers", "2", "--node-id", "2"], "--workers and --node-id 2 exclude each other: "),
        (["--workers", "2", "--metadata", "zookeeper://zk"], "--workers and --metadata exclude each other: "),
        (
            ["--metadata", "zookeeper://me:pw@zk/x"],
            "--metadata has a password, which other users of the ",
        ),
        (["--set", "broker.metadata=zookeeper://me:pw@zk"], "--metadata has a password, which other users "),
        (["--workers", "2", "--gateway"], "broker.gateway and broker.workers exclude each other: "),
        (["--workers", "2", "--peer", "127.0.0.1:1"], "--workers excludes --peer and network.peer_advertised: "),
        (["--workers", "2", "--kafka", "nowhere"], "setting 'network.kafka' is 'nowhere': it takes host:port"),
        (["--log-level", "loud"], "setting 'broker.log_level' is 'loud': it is one of debug, info, warning, error"),
    ],
)
def test_an_invalid_option_is_an_error_in_one_line(run: Run, options: list[str], message: str) -> None:
    ended = run("serve", *options)
    assert (ended.exit_code, ended.out) == (1, "")
    assert ended.error.startswith(f"conveyor: {message}")
    assert ended.error.count("\n") == 1


def test_an_invalid_variable_is_an_error(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONVEYOR_TOPIC_SEGMENT_BYTES", "1")
    assert run("serve").error.startswith("conveyor: environment variable CONVEYOR_TOPIC_SEGMENT_BYTES names no setting")


def test_password_of_a_zookeeper_may_be_in_the_environment_or_the_file(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With --workers, the address is read and refused; its text is not repeated."""
    address = "zookeeper://me:pw@zk/x"
    monkeypatch.setenv("CONVEYOR_METADATA", address)
    monkeypatch.setenv("CONVEYOR_TOKEN", "for-commands")
    assert run("serve", "--workers", "2").error.startswith("conveyor: --workers and --metadata exclude each other: ")
    monkeypatch.delenv("CONVEYOR_METADATA")
    Path("conveyor.toml").write_text(f'[broker]\nmetadata = "{address}"\n')
    assert run("serve", "--workers", "2").error.startswith("conveyor: --workers and --metadata exclude each other: ")


def test_the_file_of_the_working_directory_is_read(run: Run) -> None:
    Path("conveyor.toml").write_text("[broker]\nflush_threads = 1000\n")
    assert run("serve").error.startswith("conveyor: setting 'broker.flush_threads' is 1000: it must be at most 64")


def test_the_flag_is_checked_before_the_variable_and_the_file(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """All three are invalid; the error is about the one that takes precedence."""
    Path("conveyor.toml").write_text("[broker]\nnode_id = -3\n")
    assert "is -3" in run("serve").error
    monkeypatch.setenv("CONVEYOR_BROKER_NODE_ID", "-2")
    assert "is -2" in run("serve").error
    assert "is -1" in run("serve", "--set", "broker.node_id=-1").error


def test_each_flag_has_a_variable_of_its_name(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("mine.toml").write_text("[broker]\nrack = 3\n")
    Path("file").touch()
    for variable, value, message in (
        ("CONVEYOR_CONFIG", "mine.toml", "setting 'broker.rack' is 3: it takes text"),
        ("CONVEYOR_LOG_LEVEL", "loud", "setting 'broker.log_level' is 'loud'"),
        ("CONVEYOR_NODE_ID", "one", "setting 'broker.node_id' is 'one': it takes a whole number"),
        ("CONVEYOR_INSECURE", "perhaps", "setting 'network.insecure' is 'perhaps': it takes true or false"),
        ("CONVEYOR_KAFKA", "nowhere", "setting 'network.kafka' is 'nowhere': it takes host:port"),
    ):
        with monkeypatch.context() as patch:
            patch.setenv(variable, value)
            assert run("serve").error.startswith(f"conveyor: {message}")
    monkeypatch.setenv("CONVEYOR_DATA_DIR", "file")
    assert run("serve", *FREE).error == "conveyor: data directory file is a file: choose another with --data-dir\n"


def test_the_data_directory_may_be_in_the_file_and_the_flag_takes_precedence(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("of-file", "of-environment", "of-flag"):
        Path(name).touch()
    Path("conveyor.toml").write_text("[broker]\ndata_dir = 'of-file'\n")
    assert "data directory of-file is a file" in run("serve", *FREE).error
    monkeypatch.setenv("CONVEYOR_DATA_DIR", "of-environment")
    assert "data directory of-environment is a file" in run("serve", *FREE).error
    assert "data directory of-flag is a file" in run("serve", *FREE, "--data-dir", "of-flag").error


def test_workers_refuse_the_data_directory_of_one_broker(run: Run) -> None:
    Path("conveyor-data").mkdir()
    Path("conveyor-data/metadata.sqlite").touch()
    assert run("serve", "--workers", "2").error.startswith(
        "conveyor: data directory conveyor-data belongs to a single broker, whose partitions cannot be divided among"
        " workers: start without --workers"
    )
