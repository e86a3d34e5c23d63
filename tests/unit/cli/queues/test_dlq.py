"""`conveyor dlq`, on a broker in memory."""

import json

import pytest

from tests.unit.cli.commands import Run

pytestmark = pytest.mark.slow


@pytest.fixture
def run_with_dead(run_on_broker: Run) -> Run:
    """Give subscription q on topic t three dead letters, with payloads and keys a, b and c."""
    run_on_broker("topic", "create", "t")
    run_on_broker("queue", "create", "t", "q", "--max-deliveries", "1")
    run_on_broker("produce", "t", "-K", ":", given=b"a:a\nb:b\nc:c\n")
    die(run_on_broker)
    return run_on_broker


def die(run: Run, name: str = "q") -> None:
    """Make all available messages dead letters."""
    leased = run("queue", "pull", name, "--max", "9", "--json").out.splitlines()
    assert run("queue", "nack", name, *(json.loads(line)["ack_id"] for line in leased)).exit_code == 0
    while json.loads(run("queue", "describe", name, "--json").out)["dead"] < len(leased):
        pass


def keys(run: Run, *options: str) -> list[str]:
    """Return the keys of the dead letters."""
    return [message["key"] for message in json.loads(run("dlq", "peek", "q", "--json", *options).out)]


def test_dead_letters_are_listed(run_with_dead: Run) -> None:
    assert run_with_dead("dlq", "list").out.splitlines() == [
        "dead-letter topic  dead letters  subscriptions",
        "t.dlq                         3  q",
    ]
    listed = json.loads(run_with_dead("dlq", "list", "--json").out)
    assert listed == [{"topic": "t.dlq", "depth": 3, "subscriptions": ["q"]}]


def test_list_without_subscriptions_says_so(run_on_broker: Run) -> None:
    assert "no subscriptions yet" in run_on_broker("dlq", "list").out


def test_dead_letters_are_shown_with_their_reason(run_with_dead: Run) -> None:
    lines = run_with_dead("dlq", "peek", "q").out.splitlines()
    assert lines[0] == "message  reason             deliveries  last failure              key  payload  dead letter"
    assert [(line.split()[:4], line.split()[-3:]) for line in lines[1:2]] == [
        (["0-0", "delivered", "1", "times"], ["a", "a", "0-0"])
    ]
    assert keys(run_with_dead, "--max", "2") == ["a", "b"]
    assert keys(run_with_dead, "--filter", "key == 'b'") == ["b"]
    nothing = run_with_dead("dlq", "peek", "q", "--filter", "key == 'x'").out
    assert nothing == "no dead letters of q that match the filter\n"


def test_dead_letters_are_redriven(run_with_dead: Run) -> None:
    assert run_with_dead("dlq", "redrive", "q") == (0, "redrove 3 dead letters of q\n", "")
    assert run_with_dead("dlq", "peek", "q").out == "no dead letters of q\n"
    assert run_with_dead("queue", "pull", "q", "-n", "9", "-f", "payload", "--ack").out == "a\nb\nc\n"
    assert run_with_dead("dlq", "redrive", "q", "--json").out == '{"redriven": 0, "unknown": []}\n'


def test_redrive_in_portions_covers_all_dead_letters(run_with_dead: Run) -> None:
    """At a rate of two a second, the first portion has two of the three dead letters."""
    assert run_with_dead("dlq", "redrive", "q", "--rate", "2").out == "redrove 3 dead letters of q\n"
    assert keys(run_with_dead) == []


@pytest.mark.parametrize(
    ("options", "left"),
    [
        (["--filter", "key == 'b'"], ["a", "c"]),
        (["--message-id", "0-0", "--message-id", "0-2"], ["b"]),
        (["--message-id", "0-0", "--filter", "key == 'c'"], ["a", "b", "c"]),
    ],
)
def test_dead_letters_are_selected(run_with_dead: Run, options: list[str], left: list[str]) -> None:
    redriven = json.loads(run_with_dead("dlq", "redrive", "q", *options, "--json").out)["redriven"]
    assert (redriven, keys(run_with_dead)) == (3 - len(left), left)


def test_dead_letter_that_dies_again_can_be_redriven_again(run_with_dead: Run) -> None:
    for _ in range(2):
        assert run_with_dead("dlq", "redrive", "q").out == "redrove 3 dead letters of q\n"
        die(run_with_dead)


def test_drop_asks_first(run_with_dead: Run) -> None:
    refused = run_with_dead("dlq", "drop", "q", given=b"n\n")
    assert refused.error.startswith("Drop 3 dead letters of q? [y/N]: ")
    assert (refused.exit_code, keys(run_with_dead)) == (1, ["a", "b", "c"])
    dropped = run_with_dead("dlq", "drop", "q", "--filter", "key == 'a'", "--yes")
    assert (dropped.out, keys(run_with_dead)) == ("dropped 1 dead letter of q\n", ["b", "c"])
    assert run_with_dead("dlq", "drop", "q", "--yes", "--json").out == '{"dropped": 2, "unknown": []}\n'


@pytest.mark.parametrize(("command", "done"), [(["redrive"], "redrove"), (["drop", "--yes"], "dropped")])
def test_unknown_dead_letter_id_is_refused(run_with_dead: Run, command: list[str], done: str) -> None:
    ids = ["--message-id", "0-7", "--message-id", "0-0", "--message-id", "x"]
    refused = "conveyor: no dead letter of 'q': 0-7, x; see 'conveyor dlq peek q'\n"
    assert run_with_dead("dlq", *command, "q", *ids) == (1, f"{done} 1 dead letter of q\n", refused)
    again = run_with_dead("dlq", *command, "q", *ids[2:4], "--json")
    assert (again.exit_code, json.loads(again.out)["unknown"]) == (1, ["0-0"])


def test_id_that_peek_shows_identifies_the_letter_to_drop(run_with_dead: Run) -> None:
    """The copy of the dropped letter is behind three others."""
    run_with_dead("topic", "create", "u")
    run_with_dead("queue", "create", "u", "q2", "--max-deliveries", "1", "--dead-letter-topic", "t.dlq")
    run_with_dead("produce", "u", "-K", ":", given=b"d:d\n")
    die(run_with_dead, "q2")
    shown = run_with_dead("dlq", "peek", "q2").out.splitlines()[1].split()
    assert (shown[0], shown[-1]) == ("0-0", "0-3")
    dropped = run_with_dead("dlq", "drop", "q2", "--message-id", shown[0], "--yes")
    assert dropped == (0, "dropped 1 dead letter of q2\n", "")
    assert keys(run_with_dead) == ["a", "b", "c"]


def test_letters_without_copies_are_counted_and_redriven(run_with_dead: Run) -> None:
    run_with_dead("topic", "delete", "t.dlq", "--yes")
    note = "3 dead letters of q without a copy in the dead-letter topic to show: "
    note += "'conveyor dlq redrive q' still delivers the originals\n"
    assert run_with_dead("dlq", "peek", "q") == (0, "", note)
    assert run_with_dead("dlq", "peek", "q", "--json") == (0, "[]\n", note)
    assert run_with_dead("dlq", "redrive", "q").out == "redrove 3 dead letters of q\n"
    assert len(run_with_dead("queue", "pull", "q", "-n", "9", "--json").out.splitlines()) == 3


REFUSED = {
    "peek x": "subscription 'x' does not exist: see 'conveyor queue list'",
    "redrive x": "subscription 'x' does not exist: see 'conveyor queue list'",
    "drop x --yes": "subscription 'x' does not exist: see 'conveyor queue list'",
    "redrive x --message-id 0-0": "subscription 'x' does not exist: see 'conveyor queue list'",
    "redrive q --filter 1": "the filter returns a value of type int",
}


def test_errors_are_one_line(run_with_dead: Run) -> None:
    for arguments, message in REFUSED.items():
        ended = run_with_dead("dlq", *arguments.split())
        assert (ended.exit_code, ended.out) == (1, ""), arguments
        assert message in ended.error
        assert ended.error.startswith("conveyor: ")
        assert ended.error.count("\n") == 1


def test_rate_of_zero_is_an_invalid_command_line(run: Run) -> None:
    assert run("dlq", "redrive", "q", "--rate", "0").exit_code == 2
