"""The entry point: help, version, and errors in one line."""

import pytest

from conveyor import __version__
from tests.unit.cli.commands import Run

COMMANDS = ["serve", "produce", "consume", "demo", "settings", "topic", "group", "queue", "dlq", "schedule", "pipeline"]
TOPIC_COMMANDS = ["create", "list", "describe", "stats", "tail", "alter", "delete"]
GROUP_COMMANDS = ["list", "describe", "reset", "delete"]
QUEUE_COMMANDS = ["create", "list", "describe", "pull", "ack", "nack"]
QUEUE_COMMANDS += ["peek", "scheduled", "state", "purge", "seek", "pause", "resume", "delete"]
DLQ_COMMANDS = ["list", "peek", "redrive", "drop"]
SCHEDULE_COMMANDS = ["add", "list", "remove"]
COMMANDS_OF = {
    "topic": TOPIC_COMMANDS,
    "group": GROUP_COMMANDS,
    "queue": QUEUE_COMMANDS,
    "dlq": DLQ_COMMANDS,
    "schedule": SCHEDULE_COMMANDS,
}
SUBCOMMANDS = [[group, command] for group, commands in COMMANDS_OF.items() for command in commands]


def test_version(run: Run) -> None:
    assert run("--version") == (0, f"conveyor {__version__}\n", "")


def test_help_lists_every_command(run: Run) -> None:
    ended = run("--help")
    assert ended.exit_code == 0
    listed = [line.split()[0] for line in ended.out.splitlines() if line.startswith("  ") and line.strip()]
    assert set(COMMANDS) <= set(listed)


@pytest.mark.parametrize("command", [[each] for each in COMMANDS] + SUBCOMMANDS + [["pipeline", "archive"]])
def test_every_command_has_help(run: Run, command: list[str]) -> None:
    ended = run(*command, "--help")
    assert (ended.exit_code, ended.error) == (0, "")
    assert ended.out.startswith(f"Usage: conveyor {' '.join(command)}")


@pytest.mark.parametrize("command", [["produce"], ["consume"], *SUBCOMMANDS])
def test_help_of_a_client_has_an_example(run: Run, command: list[str]) -> None:
    _, found, examples = run(*command, "--help").out.partition("  Example")
    assert found
    assert f"    conveyor {' '.join(command)}" in examples or f" | conveyor {command[0]}" in examples


@pytest.mark.parametrize("command", [["nothing"], ["topic", "nothing"], ["serve", "--nothing"], ["consume"]])
def test_a_wrong_command_line_shows_the_usage(run: Run, command: list[str]) -> None:
    ended = run(*command)
    assert (ended.exit_code, ended.out) == (2, "")
    assert "Usage: conveyor" in ended.error
    assert "--help" in ended.error


def test_no_command_at_all_shows_help(run: Run) -> None:
    ended = run()
    assert "serve" in ended.out + ended.error
