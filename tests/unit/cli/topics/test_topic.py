"""`conveyor topic`, on a broker in memory."""

import json

import pytest

from tests.unit.cli.commands import Run


def test_topics_are_created_listed_and_deleted(run_on_broker: Run) -> None:
    assert run_on_broker("topic", "list").out == "no topics yet: create one with 'conveyor topic create NAME'\n"
    assert run_on_broker("topic", "create", "b", "-p", "3").out == "created topic b with 3 partitions\n"
    assert run_on_broker("topic", "create", "a").out == "created topic a with 1 partition\n"
    rows = [line.split() for line in run_on_broker("topic", "list").out.splitlines()]
    assert rows[0] == ["topic", "partitions"]
    assert rows[-2:] == [["a", "1"], ["b", "3"]]
    assert run_on_broker("topic", "delete", "b", "--yes").out == "deleted topic b\n"
    assert json.loads(run_on_broker("topic", "list", "--json").out) == [{"name": "a", "partitions": 1}]


def test_a_topic_is_deleted_only_after_a_yes(run_on_broker: Run) -> None:
    run_on_broker("topic", "create", "t", "-p", "2")
    for answer in (b"", b"n\n"):
        refused = run_on_broker("topic", "delete", "t", given=answer)
        assert (refused.exit_code, refused.out) == (1, "")
        assert refused.error.startswith("Delete topic t: 2 partitions, with all records, subscriptions and schedules?")
    assert run_on_broker("topic", "delete", "t", given=b"yes\n").out == "deleted topic t\n"
    assert "unknown topic 't'" in run_on_broker("topic", "delete", "t", "--yes").error


NUMBERS = ("-2", "-1", "0", str(1 << 31), str(1 << 64))


@pytest.mark.parametrize("number", [*NUMBERS, "100001"])
@pytest.mark.parametrize(
    "command", [("create", "new", "--partitions"), ("create", "new", "--replicas"), ("alter", "t", "--partitions")]
)
def test_numbers_that_no_topic_can_have_are_refused(run_on_broker: Run, command: tuple[str, ...], number: str) -> None:
    run_on_broker("topic", "create", "t")
    refused = run_on_broker("topic", *command, number)
    assert (refused.exit_code, refused.out) == (2, "")
    assert refused.error.splitlines()[-1].startswith(f"Error: Invalid value for '{command[-1]}'")
    assert json.loads(run_on_broker("topic", "list", "--json").out) == [{"name": "t", "partitions": 1}]


@pytest.mark.parametrize("number", ["-1", "1", str(1 << 31), str(1 << 64)])
def test_records_for_a_partition_that_does_not_exist_are_refused(run_on_broker: Run, number: str) -> None:
    run_on_broker("topic", "create", "t")
    refused = run_on_broker("produce", "t", "--partition", number, given=b"x\n")
    assert refused.exit_code > 0
    assert "Invalid value" in refused.error or refused.error == (
        f"conveyor: topic 't' has no partition {number}: it has 1 partition\n"
    )


@pytest.mark.parametrize(
    "command",
    [
        ("topic", "stats", "t", "--interval", "inf"),
        ("txn", "list", "--open-longer-than", str(1 << 64)),
        ("txn", "abort-hanging", "t", "-1", "0"),
        ("queue", "create", "t", "q", "--retry-factor", "nan"),
        ("dlq", "redrive", "q", "--rate", "inf"),
        ("cluster", "reassign", "t", "--replicas", "-1"),
    ],
)
def test_numbers_without_a_meaning_are_an_error_of_the_command_line(
    run_on_broker: Run, command: tuple[str, ...]
) -> None:
    refused = run_on_broker(*command)
    assert (refused.exit_code, refused.out) == (2, "")


def test_a_topic_is_described(run_on_broker: Run) -> None:
    run_on_broker("topic", "create", "t", "-p", "2")
    run_on_broker("produce", "t", "--partition", "1", given=b"x\ny\n")
    described = json.loads(run_on_broker("topic", "describe", "t", "--json").out)
    common = {"leader": 1, "replicas": [1], "isr": [1], "log_start_offset": 0}
    assert described == {
        "name": "t",
        "partitions": [
            {"partition": 0, **common, "log_end_offset": 0, "records": 0},
            {"partition": 1, **common, "log_end_offset": 2, "records": 2},
        ],
        "config": {},
    }
    table = run_on_broker("topic", "describe", "t").out.splitlines()
    assert table[0].split() == "partition leader replicas isr log start log end records".split()
    assert table[2].split() == ["1", "1", "1", "1", "0", "2", "2"]
    assert table[-1] == "every setting has its default value: --all-config lists them"


def test_settings_that_differ_are_described(run_on_broker: Run) -> None:
    run_on_broker("topic", "create", "t", "-c", "retention.ms=1000")
    assert run_on_broker("topic", "describe", "t").out.splitlines()[-2:] == [
        "setting       value  source",
        "retention.ms  1000   topic",
    ]
    every = run_on_broker("topic", "describe", "t", "--all-config").out.splitlines()
    assert ["cleanup.policy", "delete", "default"] in [line.split() for line in every]
    assert json.loads(run_on_broker("topic", "describe", "t", "--json").out)["config"] == {
        "retention.ms": {"value": "1000", "source": "topic"}
    }


def test_topic_is_altered(run_on_broker: Run) -> None:
    run_on_broker("topic", "create", "t", "-c", "retention.ms=1000")
    altered = run_on_broker("topic", "alter", "t", "-p", "3", "-c", "segment.bytes=4096", "--unset", "retention.ms")
    assert altered.out.splitlines() == [
        "topic t: 3 partitions (had 1)",
        "topic t: segment.bytes = 4096 (was 1073741824)",
        "topic t: retention.ms = 1209600000, the default (was 1000)",
    ]
    assert json.loads(run_on_broker("topic", "list", "--json").out) == [{"name": "t", "partitions": 3}]


def test_topic_is_altered_completely_or_not_at_all(run_on_broker: Run) -> None:
    run_on_broker("topic", "create", "t", "-p", "2")
    before = run_on_broker("topic", "describe", "t").out
    assert run_on_broker("topic", "alter", "t", "-c", "retention.ms=1", "-p", "1").exit_code == 1
    assert run_on_broker("topic", "alter", "t", "-c", "segment.bytes=1", "-p", "3").exit_code == 1
    assert run_on_broker("topic", "describe", "t").out == before


def test_tail_prints_the_last_of_each_partition(run_on_broker: Run) -> None:
    run_on_broker("topic", "create", "t", "-p", "2")
    run_on_broker("produce", "t", "--partition", "0", given=b"a\nb\nc\n")
    run_on_broker("produce", "t", "--partition", "1", "-k", "k", given=b"x\n")
    assert sorted(run_on_broker("topic", "tail", "t", "-n", "2", "--exit").out.split()) == ["b", "c", "x"]
    assert run_on_broker("topic", "tail", "t", "-e", "-p", "1", "--key").out == "k\tx\n"
    assert run_on_broker("topic", "tail", "t", "-e", "-n", "0").out == ""


def test_stats_count_the_records(run_on_broker: Run) -> None:
    run_on_broker("topic", "create", "t", "-p", "2")
    run_on_broker("produce", "t", "--partition", "1", given=b"a\nb\n")
    counted = json.loads(run_on_broker("topic", "stats", "t", "--interval", "0", "--json").out)
    assert counted["partitions"][1].pop("newest_timestamp") > 0
    places = {"log_start_offset": 0, "log_end_offset": 0}
    assert counted == {
        "name": "t",
        "partitions": [
            {"partition": 0, "records": 0, **places, "newest_timestamp": None},
            {"partition": 1, "records": 2, **places, "log_end_offset": 2},
        ],
        "records": 2,
    }
    table = run_on_broker("topic", "stats", "t", "--interval", "0.01").out.splitlines()
    assert table[0].split() == "partition records log start log end newest records/s".split()
    assert table[1].split() == ["0", "0", "0", "0", "-", "0.0"]
    assert table[-1] == "total: 2 records, 0.0 a second"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["create", "t"], "topic 't' exists already"),
        (["create", "no spaces"], "topic name 'no spaces' is not valid: use 1 to 249 of letters"),
        (["create", "new", "-c", "segment.bytes=1"], "setting 'segment.bytes' is 1: it must be at least 1024 bytes"),
        (["create", "new", "-c", "nothing=1"], "unknown topic setting 'nothing': use one of "),
        (["create", "new", "-c", "nothing"], "--config nothing: expected NAME=VALUE"),
        (["describe", "nothing"], "unknown topic 'nothing': see 'conveyor topic list'"),
        (["alter", "nothing", "-p", "2"], "unknown topic 'nothing': see 'conveyor topic list'"),
        (["alter", "t"], "nothing to alter: give --partitions, --config or --unset"),
        (["alter", "t", "-c", "retention.ms"], "--config retention.ms: expected NAME=VALUE"),
        (["alter", "t", "-c", "a=1", "--unset", "a"], "--config and --unset both name 'a'"),
        (["alter", "t", "--unset", "nothing"], "unknown topic setting 'nothing'"),
        (["alter", "t", "-p", "1"], "topic 't' has 1 partition"),
        (["tail", "nothing"], "unknown topic 'nothing': see 'conveyor topic list'"),
        (["tail", "t", "-p", "1"], "topic 't' has no partition 1: it has 1 partition"),
        (["stats", "nothing"], "unknown topic 'nothing': see 'conveyor topic list'"),
        (["delete", "nothing"], "unknown topic 'nothing': see 'conveyor topic list'"),
    ],
)
def test_errors_are_one_line(run_on_broker: Run, arguments: list[str], message: str) -> None:
    run_on_broker("topic", "create", "t")
    ended = run_on_broker("topic", *arguments)
    assert (ended.exit_code, ended.out) == (1, "")
    assert message in ended.error
    assert ended.error.startswith("conveyor: ")
    assert ended.error.count("\n") == 1
