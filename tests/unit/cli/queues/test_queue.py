"""`conveyor queue`, on a broker in memory."""

import json
from typing import Any

import pytest

from conveyor.cli.queues import queue_scheduled
from tests.unit.cli.commands import Run


@pytest.fixture
def run_with_queue(run_on_broker: Run) -> Run:
    """Create subscription q at the start of topic t, which has messages a, b and c, all with key k."""
    run_on_broker("topic", "create", "t")
    assert run_on_broker("produce", "t", "-k", "k", "-H", "h=1", given=b"a\nb\nc\n").exit_code == 0
    made = run_on_broker("queue", "create", "t", "q", "--start", "earliest")
    assert made == (0, "created subscription q on topic t: it starts with the oldest message\n", "")
    return run_on_broker


def pulled(run: Run, *options: str) -> list[dict[str, Any]]:
    """Pull messages of subscription q."""
    return [json.loads(line) for line in run("queue", "pull", "q", "--json", *options).out.splitlines()]


def described(run: Run) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(run("queue", "describe", "q", "--json").out)
    return document


def test_queues_are_listed(run_on_broker: Run) -> None:
    first = run_on_broker("queue", "list")
    assert first.out == "no subscriptions yet: create one with 'conveyor queue create TOPIC NAME'\n"
    for topic in ("t", "u"):
        run_on_broker("topic", "create", topic)
        run_on_broker("queue", "create", topic, f"q-{topic}", *(["--paused"] if topic == "u" else []))
    assert run_on_broker("queue", "list").out.splitlines() == [
        "name  topic  state   depth  in flight  delayed  dead  oldest",
        "q-t   t      active      0          0        0     0       -",
        "q-u   u      paused      0          0        0     0       -",
    ]
    listed = json.loads(run_on_broker("queue", "list", "--topic", "u", "--json").out)
    assert [(subscription["name"], subscription["paused"]) for subscription in listed] == [("q-u", True)]


def test_every_option_of_create_reaches_the_policy(run_on_broker: Run) -> None:
    run_on_broker("topic", "create", "t")
    options = ["--start", "2026-11-21T08:00Z", "--filter", "key == 'k'", "--on-filter-error", "dead-letter"]
    options += ["--delivery", "exactly-once", "--visibility", "2m", "--max-deliveries", "0"]
    options += ["--retry-base", "5s", "--retry-factor", "1.5", "--retry-cap", "1h", "--dead-letter-topic", "d"]
    options += ["--on-expiry", "dead-letter", "--priority-ageing", "10s", "--fair-by", "user", "--max-in-flight", "7"]
    made = json.loads(run_on_broker("queue", "create", "t", "q", *options, "--paused", "--json").out)
    del made["id"]
    assert made == {
        "name": "q",
        "topic": "t",
        "start": "2026-11-21T08:00:00.000Z",
        "filter": "key == 'k'",
        "on_filter_error": "dead_letter",
        "delivery": "exactly_once",
        "ordering": "none",
        "visibility_timeout_ms": 120_000,
        "max_deliveries": 0,
        "retry": {"base_ms": 5000, "factor": 1.5, "cap_ms": 3_600_000},
        "dead_letter_topic": "d",
        "on_expiry": "dead_letter",
        "priority_ageing_ms": 10_000,
        "fair_by": "user",
        "max_in_flight": 7,
        "max_in_flight_per_key": 1,
        "paused": True,
        "push": None,
    }


def test_keys_are_leased_in_batches(run_on_broker: Run) -> None:
    run_on_broker("topic", "create", "t")
    run_on_broker("queue", "create", "t", "q", "--ordering", "key", "--max-in-flight-per-key", "5")
    assert "max in flight per key  5" in run_on_broker("queue", "describe", "q").out


def test_help_of_create_shows_the_defaults(run_on_broker: Run) -> None:
    run_on_broker("topic", "create", "t")
    made = json.loads(run_on_broker("queue", "create", "t", "q", "--json").out)
    retry = made["retry"]
    numbers = (made["visibility_timeout_ms"], made["max_deliveries"], made["max_in_flight"])
    assert (*numbers, *retry.values()) == (30_000, 5, 100_000, 1000, 2.0, 60_000)
    shown = "".join(run_on_broker("queue", "create", "--help").out.split())
    for default in ("30s", "5", "100000", "1s", "2", "1m", "TOPIC.dlq", "drop", "deliver", "at-least-once", "none"):
        assert f"[default:({default})" in shown, default


def test_queue_is_described(run_with_queue: Run) -> None:
    pulled(run_with_queue)
    lines = run_with_queue("queue", "describe", "q").out.splitlines()
    assert lines[0] == "subscription q on topic t, started at earliest"
    words = {tuple(line.split()[:3]) for line in lines}
    assert {("depth", "2", "can"), ("dead", "letter", "topic"), ("visibility", "timeout", "30s")} <= words
    assert "retry                  after 1s, then times 2, 1m at most" in lines
    run_with_queue("queue", "pause", "q")
    assert run_with_queue("queue", "describe", "q").out.splitlines()[0].endswith("'conveyor queue resume' resumes it")


def test_pulled_message_shows_all_its_fields(run_with_queue: Run) -> None:
    ended = run_with_queue("queue", "pull", "q")
    lines = ended.out.splitlines()
    assert lines[0] == "message  0-0  delivery 1"
    assert lines[1].startswith("ack_id   ")
    assert lines[2:] == ["key      k", "header   h=1", "payload  a", ""]
    assert ended.error == "pulled 1 message; acknowledge with 'conveyor queue ack q ID'\n"


def test_pull_acknowledges_printed_messages(run_with_queue: Run) -> None:
    ended = run_with_queue("queue", "pull", "q", "--max", "9", "--ack", "--format", "payload")
    assert ended == (0, "a\nb\nc\n", "pulled and acknowledged 3 messages\n")
    assert described(run_with_queue)["unsettled"] == 0


def test_pull_stops_at_the_maximum(run_with_queue: Run) -> None:
    assert [message["payload"] for message in pulled(run_with_queue, "--max", "2", "--wait", "1h")] == ["a", "b"]
    assert described(run_with_queue)["in_flight"] == 2


def test_pull_without_messages_gives_the_reason(run_with_queue: Run) -> None:
    pulled(run_with_queue, "--max", "3")
    nothing = run_with_queue("queue", "pull", "q", "--wait", "1ms")
    assert nothing == (0, "", "no messages: 3 in flight, 0 delayed\n")
    run_with_queue("queue", "pause", "q")
    assert "q is paused" in run_with_queue("queue", "pull", "q").error


def test_messages_are_acknowledged_by_either_id(run_with_queue: Run) -> None:
    first, second, _ = pulled(run_with_queue, "--max", "3")
    done = run_with_queue("queue", "ack", "q", first["ack_id"], second["message_id"])
    assert done == (0, "acknowledged 2 messages\n", "")
    assert described(run_with_queue)["unsettled"] == 1


def test_each_failed_ack_has_its_own_error(run_with_queue: Run) -> None:
    pulled(run_with_queue)
    ended = run_with_queue("queue", "ack", "q", "0-0", "no-id", "7-7")
    assert (ended.exit_code, ended.out) == (1, "")
    lines = ended.error.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["no-id", "7-7", "conveyor"]
    assert lines[-1] == "conveyor: 2 of 3 messages not settled: see above"


@pytest.mark.parametrize("command", ["ack q 0-0", "nack q 0-0 --delay 5s", "pause q", "seek q --to latest", "delete q"])
def test_unknown_option_is_refused(run: Run, command: str) -> None:
    ended = run("queue", *command.split(), "--dely")
    assert (ended.exit_code, ended.out) == (2, "")
    assert "No such option: --dely" in ended.error


def test_every_command_prints_the_json_of_the_rest_api(run_with_queue: Run) -> None:
    def answer(*arguments: str) -> Any:
        ended = run_with_queue("queue", *arguments, "--json")
        assert (ended.exit_code, ended.error) == (0, "")
        return json.loads(ended.out)

    pulled(run_with_queue, "--max", "2")
    assert answer("ack", "q", "0-0") == {"results": [{"status": "ok", "ack_id": "0-0"}]}
    assert answer("nack", "q", "0-1") == {"results": [{"status": "ok", "ack_id": "0-1"}]}
    assert answer("pause", "q")["paused"] is True
    assert answer("resume", "q")["paused"] is False
    assert answer("seek", "q", "--to", "latest")["name"] == "q"
    assert answer("purge", "q", "--yes") == {"purged": 0}
    assert answer("delete", "q") is None


def test_json_output_includes_failures(run_with_queue: Run) -> None:
    ended = run_with_queue("queue", "ack", "q", "7-7", "--json")
    [result] = json.loads(ended.out)["results"]
    assert (ended.exit_code, result["status"], result["error"]["kind"]) == (1, "error", "unknown_message")
    assert ended.error.endswith("conveyor: 1 of 1 message not settled: see above\n")


def test_peek_marks_payloads_that_are_not_text(run_with_queue: Run) -> None:
    run_with_queue("produce", "t", given=b"\xff\n")
    assert run_with_queue("queue", "peek", "q").out.splitlines()[4].split()[-1] == "base64:/w=="


def test_returned_message_is_delivered_again(run_with_queue: Run) -> None:
    pulled(run_with_queue, "--max", "3")
    assert run_with_queue("queue", "nack", "q", "0-1", "--delay", "0s").out == "returned 1 message\n"
    [again] = pulled(run_with_queue)
    assert (again["message_id"], again["delivery_count"]) == ("0-1", 2)
    run_with_queue("queue", "nack", "q", "0-1", "--delay", "1h")
    assert described(run_with_queue)["delayed"] == 1


def test_peek_leases_nothing(run_with_queue: Run) -> None:
    pulled(run_with_queue)
    lines = run_with_queue("queue", "peek", "q").out.splitlines()
    assert lines[0].split() == ["message", "state", "deliveries", "due", "consumer", "key", "payload"]
    assert [line.split()[:3] for line in lines[1:3]] == [["0-0", "leased", "1"], ["0-1", "available", "0"]]
    peeked = json.loads(run_with_queue("queue", "peek", "q", "--max", "2", "--json").out)
    assert [message["payload"] for message in peeked] == ["a", "b"]
    assert described(run_with_queue)["depth"] == 2


def test_state_shows_when_a_message_was_settled(run_with_queue: Run) -> None:
    assert run_with_queue("queue", "state", "t", "0-1").out.splitlines() == [
        "subscription  state      deliveries  due  settled  consumer",
        "q             available           0    -        -         -",
    ]
    pulled(run_with_queue)
    run_with_queue("queue", "ack", "q", "0-0")
    [name, state, deliveries, due, settled, consumer] = (
        run_with_queue("queue", "state", "t", "0-0").out.splitlines()[1].split()
    )
    assert (name, state, deliveries, due, consumer) == ("q", "acknowledged", "1", "-", "-")
    assert settled.endswith("Z")
    shown = json.loads(run_with_queue("queue", "state", "t", "0-0", "--json").out)
    assert shown["message_id"] == "0-0"
    assert shown["subscriptions"]["q"]["settled_ms"] > 0


def test_scheduled_messages_are_listed(run_with_queue: Run) -> None:
    assert run_with_queue("queue", "scheduled", "q").out == "no messages wait for their time\n"
    pulled(run_with_queue, "--max", "2")
    run_with_queue("queue", "nack", "q", "0-0", "--delay", "2h")
    run_with_queue("queue", "nack", "q", "0-1", "--delay", "1h")
    run_with_queue("produce", "t", "-H", "conveyor-delay-ms=9000000", given=b"d\n")
    lines = [line.split() for line in run_with_queue("queue", "scheduled", "q").out.splitlines()]
    assert [[line[0], *line[2:]] for line in lines] == [
        ["message", "why", "deliveries"],
        ["0-1", "backoff", "1"],
        ["0-0", "backoff", "1"],
        ["0-3", "delay", "0"],
    ]
    listed = json.loads(run_with_queue("queue", "scheduled", "q", "--max", "2", "--json").out)
    assert [(message["message_id"], message["reason"]) for message in listed] == [
        ("0-1", "backoff"),
        ("0-0", "backoff"),
    ]


def test_list_of_scheduled_messages_has_several_pages(run_with_queue: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_scheduled, "_PAGE", 2)
    run_with_queue("produce", "t", "-H", "conveyor-delay-ms=9000000", given=b"d\ne\nf\n")
    listed = json.loads(run_with_queue("queue", "scheduled", "q", "--json").out)
    assert [message["message_id"] for message in listed] == ["0-3", "0-4", "0-5"]


def test_state_of_a_message_without_subscriptions(run_on_broker: Run) -> None:
    run_on_broker("topic", "create", "t")
    run_on_broker("produce", "t", given=b"a\n")
    assert run_on_broker("queue", "state", "t", "0-0").out == "topic 't' has no subscriptions\n"


def test_purge_asks_first(run_with_queue: Run) -> None:
    for answer in (b"", b"n\n"):
        refused = run_with_queue("queue", "purge", "q", given=answer)
        assert (refused.exit_code, refused.out) == (1, "")
        assert refused.error.startswith("Settle 3 messages of q unread? [y/N]: ")
        assert refused.error.endswith("conveyor: nothing has been changed: answer yes, or add --yes\n")
    assert run_with_queue("queue", "purge", "q", given=b"y\n").out == "purged 3 messages of q\n"
    assert run_with_queue("queue", "peek", "q").out == "no messages: all are settled\n"
    assert run_with_queue("queue", "purge", "q", "--yes", "--json") == (0, '{"purged": 0}\n', "")


@pytest.mark.parametrize(
    ("to", "left"),
    [
        (["earliest"], ["a", "b", "c"]),
        (["latest"], []),
        (["-1h"], ["a", "b", "c"]),
        (["2199-01-01"], []),
        (["0=1"], ["b", "c"]),
    ],
)
def test_queue_continues_at_the_given_position(run_with_queue: Run, to: list[str], left: list[str]) -> None:
    pulled(run_with_queue, "--max", "3", "--ack")
    assert run_with_queue("queue", "seek", "q", "--to", *to).out == f"moved q to {to[0]}\n"
    assert [message["payload"] for message in pulled(run_with_queue, "--max", "3")] == left


def test_queue_is_paused_and_resumed(run_with_queue: Run) -> None:
    assert run_with_queue("queue", "pause", "q") == (0, "paused q\n", "")
    assert pulled(run_with_queue) == []
    assert run_with_queue("queue", "resume", "q") == (0, "resumed q\n", "")
    assert len(pulled(run_with_queue)) == 1


def test_queue_is_deleted(run_with_queue: Run) -> None:
    assert run_with_queue("queue", "delete", "q") == (0, "deleted subscription q\n", "")
    assert run_with_queue("queue", "list", "--json").out == "[]\n"


REFUSED = {
    "create t q": "subscription 'q' exists already",
    "create x y": "topic 'x' does not exist: see 'conveyor topic list'",
    "create t y --start 17": "--start 17: expected earliest, latest, a time such as",
    "create t y --ordering size": "--ordering size: expected none or key",
    "create t y --visibility 30": "--visibility: '30' is not a duration",
    "create t y --retry-base 2m": "retry.cap_ms (60000) is below retry.base_ms (120000)",
    "describe x": "subscription 'x' does not exist: see 'conveyor queue list'",
    "delete x": "subscription 'x' does not exist: see 'conveyor queue list'",
    "describe a/b?c": "subscription 'a/b?c' does not exist",
    "list --topic x": "topic 'x' does not exist",
    "pull q --format xml": "--format xml: expected text, json or payload",
    "pull q --visibility 13h": "at most 12h",
    "nack q 0-0 --delay soon": "--delay: 'soon' is not a duration",
    "seek q --to 17": "--to 17: expected earliest, latest, PARTITION=OFFSET, a time",
    "seek q --to 0=1 --to earliest": "--to: give one position for all partitions",
    "seek q --to 0=99": "partition 0 has offsets 0 to 3, not 99",
    "purge x --yes": "subscription 'x' does not exist",
}


@pytest.mark.slow
def test_errors_are_one_line(run_with_queue: Run) -> None:
    for arguments, message in REFUSED.items():
        ended = run_with_queue("queue", *arguments.split())
        assert (ended.exit_code, ended.out) == (1, ""), arguments
        assert message in ended.error, arguments
        assert ended.error.startswith("conveyor: ")
        assert ended.error.count("\n") == 1


def test_error_shows_the_position_in_an_invalid_filter(run_on_broker: Run) -> None:
    run_on_broker("topic", "create", "t")
    lines = run_on_broker("queue", "create", "t", "q", "--filter", "key = 'k'").error.splitlines()
    assert lines[0].startswith("conveyor: the filter has an error at line 1, column 5: ")
    assert lines[1:] == ["  key = 'k'", "      ^"]
