"""`conveyor topic`, on a broker in memory."""

import json

import pytest

from tests.unit.cli.commands import Run


def test_topics_are_created_listed_and_deleted(run_on_broker: Run) -> None:
    assert run_on_broker("topic", "list").out == "no topics yet: make one with 'conveyor topic create NAME'\n"
    assert run_on_broker("topic", "create", "b", "-p", "3").out == "created topic b with 3 partitions\n"
    assert run_on_broker("topic", "create", "a").out == "created topic a with 1 partition\n"
    rows = [line.split() for line in run_on_broker("topic", "list").out.splitlines()]
    assert rows[0] == ["topic", "partitions"]
    assert rows[-2:] == [["a", "1"], ["b", "3"]]
    assert run_on_broker("topic", "delete", "b").out == "deleted topic b\n"
    assert json.loads(run_on_broker("topic", "list", "--json").out) == [{"name": "a", "partitions": 1}]


def test_a_topic_is_described(run_on_broker: Run) -> None:
    run_on_broker("topic", "create", "t", "-p", "2")
    run_on_broker("produce", "t", "--partition", "1", given=b"x\ny\n")
    described = json.loads(run_on_broker("topic", "describe", "t", "--json").out)
    common = {"leader": 1, "replicas": [1], "isr": [1], "first_offset": 0}
    assert described == {
        "name": "t",
        "partitions": [
            {"partition": 0, **common, "next_offset": 0, "records": 0},
            {"partition": 1, **common, "next_offset": 2, "records": 2},
        ],
    }
    table = run_on_broker("topic", "describe", "t").out.splitlines()
    assert table[0].split() == "partition leader replicas isr first offset next offset records".split()
    assert table[-1].split() == ["1", "1", "[1]", "[1]", "0", "2", "2"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["create", "t"], "topic 't' exists already"),
        (["create", "no spaces"], "topic name 'no spaces' is not valid: use 1 to 249 of letters"),
        (["create", "new", "-p", "0"], ""),
        (["create", "new", "-c", "segment.bytes=1"], "setting 'segment.bytes' is 1: it must be at least 1024 bytes"),
        (["create", "new", "-c", "nothing=1"], "unknown topic setting 'nothing': known are "),
        (["create", "new", "-c", "nothing"], "--config nothing: it takes NAME=VALUE"),
        (["describe", "nothing"], "unknown topic 'nothing': see 'conveyor topic list'"),
        (["delete", "nothing"], "unknown topic 'nothing': see 'conveyor topic list'"),
    ],
)
def test_what_cannot_be_done_is_told_in_one_line(run_on_broker: Run, arguments: list[str], message: str) -> None:
    run_on_broker("topic", "create", "t")
    ended = run_on_broker("topic", *arguments)
    assert (ended.exit_code, ended.out) == (1, "")
    assert message in ended.error
    assert ended.error.startswith("conveyor: ")
    assert ended.error.count("\n") == 1
