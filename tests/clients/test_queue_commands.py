"""The queue commands as a user runs them, each a process of its own, against a broker over HTTP."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from conveyor.testing import Broker
from tests.clients.rest_client import Rest

LETTERS = 40
COMMAND = [sys.executable, "-m", "conveyor.cli.main"]


class Shell:
    """Runs `conveyor` with a broker to talk to."""

    def __init__(self, broker: Broker) -> None:
        addresses = {"CONVEYOR_BOOTSTRAP": broker.bootstrap_servers}
        self._environment = os.environ | addresses | {"COLUMNS": "120"}

    def run(self, *arguments: str, given: str = "") -> str:
        """Run a command that succeeds. Returns what it printed."""
        process = self.start(*arguments)
        out, error = process.communicate(given, timeout=60)
        assert process.returncode == 0, error
        return out

    def start(self, *arguments: str, out: int = subprocess.PIPE) -> "subprocess.Popen[str]":
        command, pipe = [*COMMAND, *arguments], subprocess.PIPE
        return subprocess.Popen(command, env=self._environment, stdin=pipe, stdout=out, stderr=pipe, text=True)


@pytest.fixture
def shell(broker: Broker) -> Shell:
    return Shell(broker)


def kill_messages(rest: Rest, name: str, count: int) -> None:
    """So many messages of a subscription become dead letters."""
    while count:
        ids = [each["ack_id"] for each in rest.lease(name, max_messages=count)]
        assert rest.post(f"/subscriptions/{name}/reject", {"ack_ids": ids}).status == 200
        count -= len(ids)


def test_a_message_goes_all_the_way(shell: Shell, topic: str) -> None:
    """Published, pulled, given back until it is dead, redriven, acknowledged."""
    shell.run("topic", "create", topic)
    shell.run(
        "queue", "create", topic, f"{topic}-q", "--max-deliveries", "2", "--retry-base", "0s", "--retry-cap", "0s"
    )
    shell.run("produce", topic, given="hello\n")
    for _ in range(2):
        pulled = json.loads(shell.run("queue", "pull", f"{topic}-q", "--wait", "30s", "--client-id", "w", "--json"))
        assert "w User:ANONYMOUS@127.0.0.1" in shell.run("queue", "peek", f"{topic}-q")
        shell.run("queue", "nack", f"{topic}-q", pulled["ack_id"])
    assert shell.run("queue", "pull", f"{topic}-q") == ""
    assert shell.run("dlq", "redrive", f"{topic}-q", "--rate", "100") == f"redrove 1 dead letter of {topic}-q\n"
    assert shell.run("queue", "pull", f"{topic}-q", "--wait", "30s", "--ack", "-f", "payload") == "hello\n"
    assert json.loads(shell.run("queue", "describe", f"{topic}-q", "--json"))["unsettled"] == 0
    assert shell.run("consume", topic, "--from", "earliest", "--exit") == "hello\n"


def test_a_pull_that_waits_gets_what_comes_later(shell: Shell, rest: Rest, topic: str) -> None:
    rest.create(topic, topic)
    rest.publish(topic, "first")
    waiting = shell.start("queue", "pull", topic, "--max", "2", "--wait", "1h", "-f", "payload", "--ack")
    assert waiting.stdout is not None
    assert waiting.stdout.readline() == "first\n"
    rest.publish(topic, "second")
    assert waiting.communicate(timeout=60) == ("second\n", "pulled and acknowledged 2 messages\n")


def test_ctrl_c_ends_a_pull_and_leases_nothing_more(shell: Shell, rest: Rest, topic: str) -> None:
    rest.create(topic, topic)
    rest.publish(topic, "first")
    waiting = shell.start("queue", "pull", topic, "--max", "9", "--wait", "1h", "-f", "payload", "--ack")
    assert waiting.stdout is not None
    assert waiting.stdout.readline() == "first\n"
    waiting.send_signal(2)
    assert waiting.communicate(timeout=60) == ("", "")
    assert waiting.returncode == 130


def test_ctrl_c_ends_a_redrive_between_two_portions(shell: Shell, rest: Rest, topic: str) -> None:
    """What was asked for last is carried out by the broker; nothing is asked for after that."""
    rest.create(topic, topic)
    rest.publish(topic, *map(str, range(LETTERS)))
    kill_messages(rest, topic, LETTERS)
    redrive = shell.start("dlq", "redrive", topic, "--rate", "5")
    leased = rest.lease(topic, max_messages=1, wait="20s")
    redrive.send_signal(2)
    out, error = redrive.communicate(timeout=60)
    assert (redrive.returncode, out, len(leased)) == (130, "", 1)
    assert error.startswith("interrupted: redrove ")
    assert error.endswith(f" of {topic}\n")
    left = len(json.loads(shell.run("dlq", "peek", topic, "--max", "100", "--json")))
    assert LETTERS - 10 <= left < LETTERS


def test_an_output_that_is_closed_leaves_the_rest_unacknowledged(shell: Shell, rest: Rest, topic: str) -> None:
    """As in `conveyor queue pull ... | head -1`."""
    rest.create(topic, topic)
    rest.publish(topic, "first")
    puller = shell.start("queue", "pull", topic, "--max", "2", "--wait", "1h", "-f", "payload", "--ack")
    assert puller.stdout is not None
    assert puller.stdin is not None
    assert puller.stderr is not None
    assert puller.stdout.readline() == "first\n"
    puller.stdout.close()
    rest.publish(topic, "second")
    puller.wait(timeout=60)
    puller.stdin.close()
    puller.stderr.close()
    assert rest.get(f"/subscriptions/{topic}").json["unsettled"] == 1


def test_a_terminal_is_told_of_control_characters_and_a_pipe_gets_them(shell: Shell, rest: Rest, topic: str) -> None:
    rest.create(topic, topic)
    rest.publish(topic, "\x1b[31mred", "\x1b[31mred")
    assert "payload  \x1b[31mred\n" in shell.run("queue", "pull", topic)
    ours, theirs = os.openpty()
    shell.start("queue", "pull", topic, out=theirs).communicate(timeout=60)
    os.close(theirs)
    assert b"payload  \\x1b[31mred\r\n" in os.read(ours, 10_000)
    os.close(ours)


def test_a_schedule_publishes(shell: Shell, topic: str) -> None:
    shell.run("topic", "create", topic)
    shell.run("schedule", "add", topic, "--topic", topic, "--cron", "* * * * *", "--payload", "tick")
    assert topic in shell.run("schedule", "list")
    assert shell.run("schedule", "remove", topic) == f"removed schedule {topic}\n"


def test_push_by_commands(topic: str, rest: Rest, shell: Shell, tmp_path: Path) -> None:
    rest.create(topic)
    name, url = f"{topic}-s", "https://hook.example/orders"
    made = shell.run("queue", "create", topic, name, "--push-url", url, "--push-mode", "batch")
    assert "secret for the receiver, which is not shown again: whsec_" in made
    assert f"{name} pushes to {url}, paused" in shell.run("queue", "push", name, "--pause")
    secret_file = tmp_path / "secret"
    secret_file.write_text("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n")
    changed = shell.run("queue", "push", name, "--push-secret-file", str(secret_file), "--push-timeout", "5s")
    assert "whsec_" not in changed
    described = shell.run("queue", "describe", name)
    for part in (f"pushes to {url} as User:ANONYMOUS, paused", "2, while they rotate", "batch", "5s", "closed"):
        assert part in described
    assert "whsec_" not in described
    assert "whsec_" in shell.run("queue", "push", name, "--rotate-secret")
    assert f"{name} pushes no more" in shell.run("queue", "push", name, "--end")
    assert "pushes" not in shell.run("queue", "describe", name)
    for wrong in ((), ("--end", "--pause"), ("--pause", "--resume"), ("--push-secret-file", "/nowhere")):
        refused = shell.start("queue", "push", name, *wrong)
        assert refused.communicate(timeout=60)[0] == ""
        assert refused.returncode == 1
