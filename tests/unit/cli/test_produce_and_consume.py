"""`conveyor produce` and `conveyor consume` when something is wrong; tests/clients has what they do otherwise."""

import pytest

from tests.unit.cli.commands import Run


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["consume", "nothing"], "unknown topic 'nothing': see 'conveyor topic list', or make it with"),
        (["consume", "t", "--format", "xml"], "--format xml: it is text, key, json"),
        (["consume", "t", "--from", "monday"], "--from monday: it is earliest, latest, or an offset"),
        (["consume", "t", "--from", "²"], "--from ²: it is earliest, latest, or an offset"),
        (["consume", "t", "--from", "9" * 30], "--from 999"),
        (["produce", "no spaces"], "topic 'no spaces': "),
        (["produce", "t", "--compression", "rar"], "rar"),
        (["produce", "t", "--acks", "2"], "acks"),
        (["produce", "t", "--header", "nothing"], "--header nothing: it takes NAME=VALUE"),
        (["produce", "t", "--partition", "7"], "partition"),
    ],
)
def test_what_cannot_be_done_is_told_in_one_line(run_on_broker: Run, arguments: list[str], message: str) -> None:
    run_on_broker("topic", "create", "t")
    ended = run_on_broker(*arguments, given=b"value\n")
    assert (ended.exit_code, ended.out) == (1, "")
    assert message in ended.error
    assert ended.error.startswith("conveyor: ")
    assert ended.error.count("\n") == 1


def test_what_was_taken_is_counted(run_on_broker: Run) -> None:
    ended = run_on_broker("produce", "t", given=b"one\ntwo\r\n\nfour")
    assert ended == (0, "", "produced 4 records to t\n")


@pytest.mark.parametrize("command", [["topic", "list"], ["consume", "t"], ["produce", "t"], ["topic", "describe", "t"]])
def test_a_broker_that_does_not_answer_is_told(run: Run, command: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("conveyor.cli.client.TIMEOUT_S", 0.1)
    ended = run(*command, "--bootstrap", "127.0.0.1:1")
    expected = "no broker answers at 127.0.0.1:1: start one with 'conveyor serve', or give --bootstrap HOST:PORT"
    assert ended == (1, "", f"conveyor: {expected}\n")
