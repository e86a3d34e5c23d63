"""The commands as a user runs them, each a process of its own, against a broker in another."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer

from tests.processes import BrokerProcess

READ_ALL = ("--from", "earliest", "--exit")


class Shell:
    """Runs `conveyor` with a broker to talk to."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self._environment = os.environ | {"CONVEYOR_BOOTSTRAP": bootstrap, "COLUMNS": "120"}

    def run(self, *arguments: str, given: str | bytes = b"") -> str:
        """Run a command that succeeds. Returns what it printed."""
        typed = given.encode() if isinstance(given, str) else given
        ended = subprocess.run(self._command(arguments), input=typed, env=self._environment, capture_output=True)
        assert ended.returncode == 0, ended.stderr.decode()
        return ended.stdout.decode()

    def fail(self, *arguments: str) -> str:
        """Run a command that is refused. Returns why."""
        ended = subprocess.run(self._command(arguments), env=self._environment, capture_output=True, text=True)
        assert ended.returncode != 0, ended.stdout
        return ended.stderr

    def start(self, *arguments: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            self._command(arguments), env=self._environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def _command(self, arguments: tuple[str, ...]) -> list[str]:
        return [sys.executable, "-m", "conveyor.cli.main", *arguments]


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    data_dir: Path = tmp_path_factory.mktemp("commands") / "data"
    process = BrokerProcess(data_dir).start()
    yield Shell(process.kafka)
    assert process.stop() == 0


def test_the_example_of_the_help_text_works(shell: Shell) -> None:
    shell.run("produce", "greetings", given="hello\n")
    assert shell.run("consume", "greetings", "--from", "earliest", "--max", "1") == "hello\n"


def test_topics_are_created_described_listed_and_deleted(shell: Shell, topic: str) -> None:
    created = shell.run("topic", "create", topic, "--partitions", "2", "--config", "segment.bytes=1048576")
    assert created == f"created topic {topic} with 2 partitions\n"
    shell.run("produce", topic, "--partition", "1", given="a\nb\n")
    partitions = json.loads(shell.run("topic", "describe", topic, "--json"))["partitions"]
    assert [each["records"] for each in partitions] == [0, 2]
    assert [topic, "2"] in [line.split() for line in shell.run("topic", "list").splitlines()]
    assert shell.run("topic", "delete", topic, "--yes") == f"deleted topic {topic}\n"
    assert topic not in shell.run("topic", "list")


def test_lines_and_keys_come_back_in_order(shell: Shell, topic: str) -> None:
    shell.run("produce", topic, "-K", ":", given="k1:v:1\r\nno key\n\nlast")
    assert shell.run("consume", topic, *READ_ALL) == "v:1\nno key\n\nlast\n"
    assert shell.run("consume", topic, *READ_ALL, "--key") == "k1\tv:1\n\tno key\n\t\n\tlast\n"


def test_json_shows_everything(shell: Shell, topic: str) -> None:
    shell.run("produce", topic, "-k", "key", "-H", "a=1", "-H", "b=x=y", given="grüße\n".encode() + b"\xff\n")
    text, binary = map(json.loads, shell.run("consume", topic, *READ_ALL, "-f", "json").splitlines())
    assert text.pop("timestamp") > 0
    headers = [{"name": "a", "value": "1"}, {"name": "b", "value": "x=y"}]
    assert text == {"topic": topic, "partition": 0, "offset": 0, "key": "key", "value": "grüße", "headers": headers}
    assert (binary["value"], binary["value_encoding"]) == ("/w==", "base64")


def test_reading_starts_and_stops_where_it_is_told_to(shell: Shell, topic: str) -> None:
    shell.run("produce", topic, "--compression", "zstd", given="0\n1\n2\n3\n")
    assert shell.run("consume", topic, "--from", "1", "--max", "2") == "1\n2\n"
    assert shell.run("consume", topic, "--exit") == ""


def test_a_group_goes_on_where_it_has_stopped(shell: Shell, topic: str) -> None:
    shell.run("produce", topic, given="0\n1\n2\n")
    assert shell.run("consume", topic, "--group", topic, "--from", "earliest", "-n", "2") == "0\n1\n"
    assert shell.run("consume", topic, "--group", topic, *READ_ALL) == "2\n"
    assert "__consumer_offsets" in shell.run("topic", "list", "--internal")
    assert "__consumer_offsets" not in shell.run("topic", "list")


def test_a_group_is_described_moved_and_deleted(shell: Shell, topic: str) -> None:
    shell.run("produce", topic, given="0\n1\n2\n")
    shell.run("consume", topic, "--group", topic, *READ_ALL)
    assert [topic, "empty", "classic", "0"] in [line.split() for line in shell.run("group", "list").splitlines()]
    assert shell.run("group", "describe", topic).splitlines()[-1] == "total lag: 0"
    moved = shell.run("group", "reset", topic, "--shift-by", "-2", "--execute").splitlines()
    assert moved[-1].split() == [topic, "0", "3", "1", "-2"]
    assert shell.run("consume", topic, "--group", topic, *READ_ALL) == "1\n2\n"
    assert shell.run("group", "delete", topic) == f"deleted group {topic}\n"


def test_a_group_of_the_consumer_protocol_is_described_moved_and_deleted(shell: Shell, topic: str) -> None:
    shell.run("produce", topic, given="0\n1\n2\n")
    settings = {"bootstrap.servers": shell.bootstrap, "group.id": topic, "group.protocol": "consumer"}
    member = Consumer(settings | {"auto.offset.reset": "earliest", "enable.auto.commit": False})
    member.subscribe([topic])
    [read] = member.consume(1, 60)
    member.commit(read, asynchronous=False)
    assert [topic, "stable", "consumer", "1"] in [line.split() for line in shell.run("group", "list").splitlines()]
    described = json.loads(shell.run("group", "describe", topic, "--json"))
    [row] = described["partitions"]
    assert (described["state"], described["total_lag"], row["committed_offset"], row["lag"]) == ("stable", 2, 1, 2)
    assert row["member"] == member.memberid()
    for refused in (("delete", topic), ("reset", topic, "--to", "latest", "--execute")):
        assert "has 1 live member" in shell.fail("group", *refused)
    member.close()
    assert [topic, "empty", "consumer", "0"] in [line.split() for line in shell.run("group", "list").splitlines()]
    moved = shell.run("group", "reset", topic, "--to", "latest", "--execute").splitlines()
    assert moved[-1].split() == [topic, "0", "1", "3", "2"]
    assert json.loads(shell.run("group", "describe", topic, "--json"))["total_lag"] == 0
    assert shell.run("group", "delete", topic) == f"deleted group {topic}\n"
    assert topic not in shell.run("group", "list")


def test_a_topic_is_altered_counted_and_followed(shell: Shell, topic: str) -> None:
    shell.run("produce", topic, given="0\n1\n2\n")
    shell.run("topic", "alter", topic, "--config", "retention.ms=3600000", "--partitions", "2")
    assert shell.run("topic", "describe", topic).splitlines()[-1].split() == ["retention.ms", "3600000", "topic"]
    assert shell.run("topic", "stats", topic, "-i", "0").splitlines()[-1] == "total: 3 records"
    following = shell.start("topic", "tail", topic, "-n", "1")
    assert following.stdout is not None
    assert following.stdout.readline() == "2\n"
    shell.run("produce", topic, "--partition", "1", given="3\n")
    assert following.stdout.readline() == "3\n"
    following.send_signal(2)
    assert following.communicate(timeout=60) == ("", "")
    assert following.returncode == 0


def test_a_member_that_is_terminated_commits_and_leaves(shell: Shell, topic: str) -> None:
    shell.run("produce", topic, given="0\n")
    reader = shell.start("consume", topic, "--group", topic, "--from", "earliest")
    assert reader.stdout is not None
    assert reader.stdout.readline() == "0\n"
    reader.terminate()
    assert reader.communicate(timeout=60) == ("", f"group {topic}: read and committed 1 record\n")
    described = json.loads(shell.run("group", "describe", topic, "--json"))
    assert (reader.returncode, described["state"], described["total_lag"]) == (0, "empty", 0)


def test_a_reader_that_waits_gets_what_comes_later(shell: Shell, topic: str) -> None:
    shell.run("produce", topic, given="first\n")
    waiting = shell.start("consume", topic, "--from", "earliest", "--max", "2")
    assert waiting.stdout is not None
    assert waiting.stdout.readline() == "first\n"
    shell.run("produce", topic, given="second\n")
    assert waiting.communicate(timeout=60) == ("second\n", "")
    assert waiting.returncode == 0


def test_ctrl_c_ends_a_reader_quietly(shell: Shell, topic: str) -> None:
    shell.run("produce", topic, given="first\n")
    waiting = shell.start("consume", topic, "--from", "earliest")
    assert waiting.stdout is not None
    assert waiting.stdout.readline() == "first\n"
    waiting.send_signal(2)
    assert waiting.communicate(timeout=60) == ("", "")
    assert waiting.returncode == 0


def test_a_reader_whose_output_is_closed_ends_quietly(shell: Shell, topic: str) -> None:
    """As in `conveyor consume ... | head -1`."""
    shell.run("produce", topic, given="line\n")
    reader = shell.start("consume", topic, "--from", "earliest")
    assert reader.stdout is not None
    assert reader.stderr is not None
    assert reader.stdout.readline() == "line\n"
    reader.stdout.close()
    shell.run("produce", topic, given="one more\n")
    assert reader.stderr.read() == ""
    reader.wait(timeout=60)
    reader.stderr.close()
