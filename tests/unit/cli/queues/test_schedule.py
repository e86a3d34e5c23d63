"""`conveyor schedule`, on a broker in memory."""

import json
from pathlib import Path

import pytest

from tests.unit.cli.commands import Run

YEARLY = ["--topic", "t", "--cron", "30 7 1 1 *"]


@pytest.fixture
def run_with_topic(run_on_broker: Run) -> Run:
    run_on_broker("topic", "create", "t")
    return run_on_broker


def test_schedules_are_added_listed_and_removed(run_with_topic: Run) -> None:
    assert run_with_topic("schedule", "list").out == "no schedules yet: create one with 'conveyor schedule add'\n"
    options = ["--time-zone", "Asia/Kolkata", "--payload", "hello", "--key", "k"]
    added = run_with_topic("schedule", "add", "new-year", *YEARLY, *options)
    due = added.out.removeprefix("added schedule new-year: next at ").strip()
    assert due[4:] == "-01-01T07:30+05:30"
    header, line = run_with_topic("schedule", "list").out.splitlines()
    assert header.split() == ["schedule", "topic", "cron", "time", "zone", "next", "key", "payload"]
    assert line.split() == ["new-year", "t", "30", "7", "1", "1", "*", "Asia/Kolkata", due, "k", "hello"]
    assert run_with_topic("schedule", "remove", "new-year") == (0, "removed schedule new-year\n", "")
    assert run_with_topic("schedule", "list", "--json").out == "[]\n"
    run_with_topic("schedule", "add", "new-year", *YEARLY)
    assert run_with_topic("schedule", "remove", "new-year", "--json") == (0, "null\n", "")


def test_headers_may_repeat_a_name(run_with_topic: Run) -> None:
    options = ["-H", "a=1", "-H", "b=x=y", "-H", "a=2"]
    added = json.loads(run_with_topic("schedule", "add", "s", *YEARLY, *options, "--json").out)
    assert added["headers"] == {"a": ["1", "2"], "b": "x=y"}


@pytest.mark.parametrize(
    ("content", "shown"),
    [("ü".encode(), {"payload": "ü"}), (b"\xff\x00", {"payload": "/wA=", "payload_encoding": "base64"})],
)
def test_payload_comes_from_a_file(run_with_topic: Run, tmp_path: Path, content: bytes, shown: dict[str, str]) -> None:
    file = tmp_path / "payload"
    file.write_bytes(content)
    added = json.loads(run_with_topic("schedule", "add", "s", *YEARLY, "--payload", f"@{file}", "--json").out)
    assert {name: value for name, value in added.items() if name.startswith("payload")} == shown


REFUSED = {
    "add s --topic t --cron hourly": "cron expression 'hourly' is not valid",
    "add s --topic t --cron x --payload @/nowhere/file": "/nowhere/file: No such file or directory",
    "add s --topic t --cron x --header colour": "--header colour: expected NAME=VALUE",
    "remove s": "there is no schedule 's'",
}


def test_errors_are_one_line(run_with_topic: Run) -> None:
    for arguments, message in REFUSED.items():
        ended = run_with_topic("schedule", *arguments.split())
        assert (ended.exit_code, ended.out) == (1, ""), arguments
        assert message in ended.error, arguments
        assert ended.error.startswith("conveyor: ")
        assert ended.error.count("\n") == 1


def test_unknown_topic_and_zone_are_named(run_with_topic: Run) -> None:
    unknown = run_with_topic("schedule", "add", "s", "--topic", "x", "--cron", "0 3 * * *").error
    assert unknown == "conveyor: topic 'x' does not exist: see 'conveyor topic list'\n"
    assert "time zone 'Mars/X'" in run_with_topic("schedule", "add", "s", *YEARLY, "--time-zone", "Mars/X").error
