"""The precedence of settings - flag, environment, file, default - and the errors for invalid ones."""

from pathlib import Path

import pytest

from conveyor.kernel.errors import SettingsError
from conveyor.settings.sources import environment_settings, file_settings
from conveyor.settings.tree import Settings, from_sources

NAME = "network.max_idle_ms"
FLAG = {NAME: "1"}
ENVIRONMENT = {"CONVEYOR_NETWORK_MAX_IDLE_MS": "2"}
FILE = "[network]\nmax_idle_ms = 3\n"


def idle_ms(flags: dict[str, object], environment: dict[str, str], file: Path) -> int:
    sources = flags, environment_settings(environment), file_settings(file, required=False)
    return from_sources(*sources).network.max_idle_ms


def test_the_flag_wins_then_the_environment_then_the_file(tmp_path: Path) -> None:
    file, nothing = tmp_path / "conveyor.toml", tmp_path / "nothing.toml"
    file.write_text(FILE)
    assert idle_ms(dict(FLAG), ENVIRONMENT, file) == 1
    assert idle_ms({}, ENVIRONMENT, file) == 2
    assert idle_ms({}, {}, file) == 3
    assert idle_ms({}, {}, nothing) == Settings().network.max_idle_ms


def test_sources_are_joined_setting_by_setting(tmp_path: Path) -> None:
    file = tmp_path / "conveyor.toml"
    file.write_text(FILE + "max_in_flight = 5\n[topics]\nflush_policy = 'os'\n")
    settings = from_sources(environment_settings(ENVIRONMENT), file_settings(file, required=True))
    assert (settings.network.max_idle_ms, settings.network.max_in_flight) == (2, 5)
    assert settings.topics.flush_policy == "os"


def test_other_variables_are_let_be() -> None:
    assert (
        environment_settings(
            {"PATH": "x", "CONVEYOR_BOOTSTRAP": "127.0.0.1:1", "CONVEYOR_CONFIG": "x", "conveyor_x": "1"}
        )
        == {}
    )


def test_what_has_a_flag_has_a_short_variable() -> None:
    environment = {"CONVEYOR_DATA_DIR": "d", "CONVEYOR_KAFKA": "k:1", "CONVEYOR_HTTP": "h:1"}
    expected = {"broker.data_dir": "d", "network.kafka": "k:1", "network.http": "h:1"}
    assert environment_settings(environment) == expected
    long = {"CONVEYOR_BROKER_DATA_DIR": "d", "CONVEYOR_NETWORK_KAFKA": "k:1", "CONVEYOR_NETWORK_HTTP": "h:1"}
    assert environment_settings(long) == expected


def test_a_setting_that_two_variables_name_is_refused() -> None:
    with pytest.raises(SettingsError, match="CONVEYOR_KAFKA and CONVEYOR_NETWORK_KAFKA both set"):
        environment_settings({"CONVEYOR_KAFKA": "a:1", "CONVEYOR_NETWORK_KAFKA": "b:1"})


@pytest.mark.parametrize("variable", ["CONVEYOR_NETWROK_KAFKA", "CONVEYOR_X"])
def test_a_variable_of_no_section_is_named(variable: str) -> None:
    with pytest.raises(SettingsError, match=f"environment variable {variable} names no setting: sections are broker,"):
        environment_settings({variable: "1"})


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("network.idle_ms", "1", r"unknown setting 'network\.idle_ms': use one of advertised, .*max_idle_ms"),
        ("networks.kafka", "1", "unknown setting 'networks.kafka': there is no section 'networks'; sections are"),
        ("kafka", "1", "unknown setting 'kafka': there is no section 'kafka'"),
        (NAME, "soon", f"setting '{NAME}' is 'soon': it takes a whole number"),
        (NAME, 1.5, f"setting '{NAME}' is 1.5: it takes a whole number"),
        (NAME, "0", f"setting '{NAME}' is 0: it must be at least 1 ms"),
        ("broker.flush_threads", 65, "setting 'broker.flush_threads' is 65: it must be at most 64 threads"),
        ("network.insecure", "perhaps", "setting 'network.insecure' is 'perhaps': it takes true or false"),
        ("network.kafka", 9092, "setting 'network.kafka' is 9092: it takes text"),
        ("topics.flush_policy", "never", "setting 'topics.flush_policy' is 'never': it is one of ack, os"),
        ("groups.min_session_timeout_ms", 2_000_000, r"is above groups\.max_session_timeout_ms \(1800000\)"),
        ("topics.max_message_bytes", 200_000_000, "no request could carry such a batch"),
        ("network.max_request_bytes", 600_000_000, r"is above network\.max_buffered_bytes"),
    ],
)
def test_a_wrong_setting_is_named_with_what_would_be_right(name: str, value: object, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        from_sources({name: value})


@pytest.mark.parametrize(("text", "value"), [("true", True), ("Yes", True), ("1", True), ("no", False), ("0", False)])
def test_words_for_true_and_false(text: str, value: bool) -> None:
    assert from_sources({"network.insecure": text}).network.insecure is value


def test_numbers_may_be_grouped() -> None:
    assert from_sources({NAME: "60_000"}).network.max_idle_ms == 60_000


def test_a_file_that_is_asked_for_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"nothing\.toml does not exist: check --config"):
        file_settings(tmp_path / "nothing.toml", required=True)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[network", "cannot be read"),
        (b"\xff", "cannot be read"),
        (b"kafka = 'x'", "'kafka' stands outside a table: sections are broker"),
    ],
)
def test_a_file_that_is_wrong_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "mine.toml"
    file.write_bytes(content)
    with pytest.raises(SettingsError, match=message) as refused:
        file_settings(file, required=False)
    assert "mine.toml" in str(refused.value)


def test_a_directory_is_no_settings_file(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot be read"):
        file_settings(tmp_path, required=False)
