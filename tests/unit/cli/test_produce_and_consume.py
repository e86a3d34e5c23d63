"""Errors and positions of `conveyor produce` and `conveyor consume`; tests/clients tests them with real processes."""

import pytest

from tests.unit.cli.commands import Run

COMMANDS = [
    ["consume", "t"],
    ["produce", "t"],
    ["topic", "list"],
    ["topic", "create", "t"],
    ["topic", "describe", "t"],
    ["topic", "alter", "t", "-p", "2"],
    ["topic", "tail", "t"],
    ["topic", "stats", "t"],
    ["group", "list"],
    ["group", "describe", "g"],
    ["group", "reset", "g", "--to", "0"],
    ["group", "delete", "g"],
]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["consume", "nothing"], "unknown topic 'nothing': see 'conveyor topic list', or create it with"),
        (["consume", "t", "--format", "xml"], "--format xml: expected text, json, hex or headers"),
        (["consume", "t", "--from", "monday"], "--from monday: expected earliest, latest, an offset, a time such as"),
        (["consume", "t", "--partition", "7"], "topic 't' has no partition 7: it has 1 partition"),
        (["consume", "t", "--group", "g", "--partition", "0"], "give --group or --partition, not both"),
        (["consume", "t", "--group", ""], "--group: the name is empty"),
        (["produce", "no spaces"], "topic 'no spaces': "),
        (["produce", "t", "--compression", "rar"], "rar"),
        (["produce", "t", "--acks", "2"], "acks"),
        (["produce", "t", "--header", "nothing"], "--header nothing: expected NAME=VALUE"),
        (["produce", "t", "--partition", "7"], "partition"),
    ],
)
def test_errors_are_one_line(run_on_broker: Run, arguments: list[str], message: str) -> None:
    run_on_broker("topic", "create", "t")
    ended = run_on_broker(*arguments, given=b"value\n")
    assert (ended.exit_code, ended.out) == (1, "")
    assert message in ended.error
    assert ended.error.startswith("conveyor: ")
    assert ended.error.count("\n") == 1


def test_reading_begins_at_a_time(run_on_broker: Run) -> None:
    run_on_broker("produce", "t", given=b"one\ntwo\n")
    for start, printed in (("-1h", "one\ntwo\n"), ("2000-01-01", "one\ntwo\n"), ("-0s", "")):
        assert run_on_broker("consume", "t", "--exit", "--from", start) == (0, printed, "")


@pytest.mark.parametrize("more", [[], ["--exit"], ["--group", "g"]])
def test_offset_beyond_the_end_is_an_error(run_on_broker: Run, more: list[str]) -> None:
    run_on_broker("produce", "t", given=b"one\ntwo\n")
    ended = run_on_broker("consume", "t", "--from", "99", *more)
    assert ended == (1, "", "conveyor: --from 99: partition 0 of 't' ends at offset 2\n")
    ended = run_on_broker("consume", "t", "--from", "2199-01-01T00:00Z", *more)
    assert (ended.exit_code, ended.out) == (1, "")
    assert ended.error.startswith("conveyor: --from 2199-01-01T00:00Z: no record has a timestamp that late")


def test_offset_is_an_error_only_if_beyond_the_end_of_every_partition(run_on_broker: Run) -> None:
    run_on_broker("topic", "create", "t", "-p", "2")
    run_on_broker("produce", "t", "--partition", "1", given=b"one\ntwo\n")
    assert run_on_broker("consume", "t", "--exit", "--from", "1") == (0, "two\n", "")
    assert run_on_broker("consume", "t", "--exit", "--from", "2") == (0, "", "")
    expected = "conveyor: --from 3: the longest partition of 't' ends at offset 2\n"
    assert run_on_broker("consume", "t", "--exit", "--from", "3") == (1, "", expected)


def test_reading_begins_at_an_offset(run_on_broker: Run) -> None:
    run_on_broker("produce", "t", given=b"one\ntwo\n")
    assert run_on_broker("consume", "t", "--exit", "--from", "1").out == "two\n"


def test_only_the_given_partitions_are_read(run_on_broker: Run) -> None:
    run_on_broker("topic", "create", "t", "-p", "3")
    for number in range(3):
        run_on_broker("produce", "t", "--partition", str(number), given=b"%d\n" % number)
    read = run_on_broker("consume", "t", "--from", "earliest", "--exit", "-p", "2", "-p", "0").out
    assert sorted(read.split()) == ["0", "2"]


def test_group_continues_where_it_stopped_and_prints_the_count(run_on_broker: Run) -> None:
    run_on_broker("produce", "t", given=b"one\ntwo\nthree\n")
    read = ("consume", "t", "--group", "g", "--from", "1")
    assert run_on_broker(*read, "--max", "1") == (0, "two\n", "group g: read and committed 1 record\n")
    assert run_on_broker(*read, "--exit") == (0, "three\n", "group g: read and committed 1 record\n")
    assert run_on_broker(*read, "--exit") == (0, "", "group g: read and committed 0 records\n")


def test_group_that_started_at_the_end_keeps_its_position(run_on_broker: Run) -> None:
    """Although the first run reads nothing, the second reads the records produced in between."""
    run_on_broker("produce", "t", given=b"before\n")
    assert run_on_broker("consume", "t", "--group", "g", "--exit").out == ""
    run_on_broker("produce", "t", given=b"between\n")
    assert run_on_broker("consume", "t", "--group", "g", "--exit").out == "between\n"


def test_acknowledged_records_are_counted(run_on_broker: Run) -> None:
    ended = run_on_broker("produce", "t", given=b"one\ntwo\r\n\nfour")
    assert ended == (0, "", "produced 4 records to t\n")


@pytest.mark.parametrize("command", COMMANDS)
def test_a_broker_that_does_not_answer_is_an_error(
    run: Run, command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("conveyor.cli.terminal.kafka_client.TIMEOUT_S", 0.1)
    ended = run(*command, "--bootstrap", "127.0.0.1:1")
    expected = "no broker answers at 127.0.0.1:1: start one with 'conveyor serve', or give --bootstrap HOST:PORT"
    assert ended == (1, "", f"conveyor: {expected}\n")
