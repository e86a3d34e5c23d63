"""`conveyor group`, on a broker in memory."""

import json
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer

from conveyor.cli.terminal.kafka_client import client_config
from conveyor.testing import Broker
from tests.unit.cli.commands import Run


@pytest.fixture
def run_with_group(run_on_broker: Run) -> Run:
    """Let group g read two of the three records in partition 0 of topic t, and nothing of partition 1."""
    run_on_broker("topic", "create", "t", "-p", "2")
    run_on_broker("produce", "t", "--partition", "0", given=b"0\n1\n2\n")
    run_on_broker("consume", "t", "--group", "g", "--from", "earliest", "--max", "2")
    return run_on_broker


@pytest.fixture
def live_member(memory_broker: Broker, run_with_group: Run) -> Iterator[Consumer]:
    """Yield a consumer that has joined group g."""
    config = {"group.id": "g", "client.id": "reader", "enable.auto.commit": False}
    consumer = Consumer(client_config(memory_broker.bootstrap_servers, **config))
    consumer.subscribe(["t"])
    assert consumer.poll(20) is not None
    yield consumer
    consumer.close()


def offsets(run: Run) -> list[int]:
    """Return the committed offsets of group g, by partition."""
    described = json.loads(run("group", "describe", "g", "--json").out)
    return [partition["committed_offset"] for partition in described["partitions"]]


def test_groups_are_listed(run_on_broker: Run) -> None:
    assert run_on_broker("group", "list").out == "no groups yet: 'conveyor consume TOPIC --group NAME' creates one\n"
    run_on_broker("produce", "t", given=b"0\n")
    for group in ("b", "a"):
        run_on_broker("consume", "t", "--group", group, "--exit")
    assert run_on_broker("group", "list").out.splitlines() == [
        "group  state  type     members",
        "a      empty  classic        0",
        "b      empty  classic        0",
    ]
    listed = json.loads(run_on_broker("group", "list", "--json").out)
    assert listed[0] == {"group": "a", "state": "empty", "type": "classic", "members": 0}


def test_group_is_described_with_its_lag(run_with_group: Run) -> None:
    assert run_with_group("group", "describe", "g").out.splitlines() == [
        "group g: empty, 0 members",
        "",
        "topic  partition  committed  log end  lag  member  host",
        "t              0          2        3    1       -     -",
        "t              1          0        0    0       -     -",
        "",
        "total lag: 1",
    ]


def test_members_are_described(run_with_group: Run, live_member: Consumer) -> None:
    described = json.loads(run_with_group("group", "describe", "g", "--json").out)
    [member] = described["members"]
    assert (described["state"], described["assignor"], described["total_lag"]) == ("stable", "range", 1)
    assert (member["client"], member["host"], member["partitions"]) == ("reader", "127.0.0.1", 2)
    assert [partition["member"] for partition in described["partitions"]] == [member["member"]] * 2


@pytest.mark.parametrize("command", [["reset", "g", "--to", "earliest"], ["delete", "g"]])
def test_group_with_live_members_is_not_changed(run_with_group: Run, live_member: Consumer, command: list[str]) -> None:
    refused = run_with_group("group", *command)
    expected = "group 'g' has 1 live member: stop its consumers first (see 'conveyor group describe')"
    assert refused == (1, "", f"conveyor: {expected}\n")


def test_reset_without_execute_only_shows_the_plan(run_with_group: Run) -> None:
    shown = run_with_group("group", "reset", "g", "--to", "earliest")
    table = [
        "topic  partition  old  new  change",
        "t              0    2    0      -2",
        "t              1    0    0       0",
    ]
    assert shown.out.splitlines() == table
    assert shown.error == "nothing has been changed: add --execute to move the offsets\n"
    assert offsets(run_with_group) == [2, 0]
    done = run_with_group("group", "reset", "g", "--to", "earliest", "--execute")
    assert (done.out, done.error) == (shown.out, "group g: moved 2 partitions\n")
    assert offsets(run_with_group) == [0, 0]


@pytest.mark.parametrize(
    ("options", "after"),
    [
        (["--to", "latest"], [3, 0]),
        (["--to", "1"], [1, 0]),
        (["--to", "99"], [3, 0]),
        (["--to", "-1h"], [0, 0]),
        (["--to", "2199-01-01"], [3, 0]),
        (["--shift-by", "-1"], [1, 0]),
        (["--shift-by", "5", "--topic", "t:0"], [3, 0]),
        (["--to", "earliest", "--topic", "t:1"], [2, 0]),
        (["--to", "earliest", "--topic", "t:0,1"], [0, 0]),
    ],
)
def test_group_continues_at_the_given_position(run_with_group: Run, options: list[str], after: list[int]) -> None:
    assert run_with_group("group", "reset", "g", *options, "--execute").exit_code == 0
    assert offsets(run_with_group) == after


def test_reset_with_a_topic_creates_a_new_group(run_on_broker: Run) -> None:
    run_on_broker("produce", "t", given=b"0\n1\n")
    made = run_on_broker("group", "reset", "g", "--to", "1", "--topic", "t", "--execute")
    assert made.error.splitlines() == ["group g does not exist yet: --execute creates it", "group g: moved 1 partition"]
    assert run_on_broker("consume", "t", "--group", "g", "--exit").out == "1\n"


def test_group_is_deleted(run_with_group: Run) -> None:
    assert run_with_group("group", "delete", "g") == (0, "deleted group g\n", "")
    assert json.loads(run_with_group("group", "list", "--json").out) == []


REFUSED = {
    "describe x": "unknown group 'x': see 'conveyor group list'",
    "delete x": "unknown group 'x': see 'conveyor group list'",
    "reset x --to 0": "unknown group 'x': see 'conveyor group list'",
    "reset g": "the new position is missing or ambiguous: give either --to or --shift-by",
    "reset g --to 0 --shift-by 1": "give either --to or --shift-by",
    "reset g --to monday": "--to monday: expected earliest, latest, an offset, a time such as",
    "reset g --to 0 --topic x": "unknown topic 'x': see 'conveyor topic list'",
    "reset g --to 0 --topic t:2": "topic 't' has no partition 2: it has 2 partitions",
    "reset g --to 0 --topic t:": "--topic t:: expected TOPIC or TOPIC:PARTITION,...",
    "reset g --shift-by 1 --topic u": "has no committed offset in partition 0 of 'u'",
}


@pytest.mark.slow
def test_errors_are_one_line(run_with_group: Run) -> None:
    run_with_group("topic", "create", "u")
    for arguments, message in REFUSED.items():
        ended = run_with_group("group", *arguments.split())
        assert (ended.exit_code, ended.out) == (1, ""), arguments
        assert message in ended.error
        assert ended.error.startswith("conveyor: ")
        assert ended.error.count("\n") == 1
