"""The formats of messages and durations."""

import json
from typing import Any

import pytest

from conveyor.cli.queues.queue_options import duration_ms, one_of
from conveyor.cli.queues.queue_text import age, message_writer, one_line
from conveyor.cli.terminal.kafka_client import ClientError

LEASE: dict[str, Any] = {"message_id": "0-7", "ack_id": "abc", "delivery_count": 2, "key": None, "headers": {}}


def test_age_is_short() -> None:
    shown = {None: None, 0: "0ms", 999: "999ms", 1000: "1s", 119_999: "119s", 120_000: "2m", 7_200_000: "2h"}
    assert {age_ms: age(age_ms) for age_ms in shown} == shown
    assert age(3 * 86_400_000) == "3d"


def test_cell_is_one_short_line() -> None:
    assert one_line(None) is None
    assert one_line("a\nb\x1b[2J ü") == "a\\nb\\x1b[2J ü"
    assert one_line("x" * 40) == "x" * 40
    assert one_line("x" * 41) == "x" * 39 + "…"
    assert len(one_line("\x00" * 40) or "") == 40


def test_message_as_text_has_a_line_for_each_field() -> None:
    full = LEASE | {"payload": "a\nb", "key": "k\n", "headers": {"h": ["1", None], "b": {"base64": "/wA="}}}
    assert message_writer("text")(full).decode().splitlines() == [
        "message  0-7  delivery 2",
        "ack_id   abc",
        "key      k\\n",
        "header   h=1",
        "header   h=",
        'header   b={"base64": "/wA="}',
        "payload  a",
        "b",
    ]


@pytest.mark.parametrize(
    ("payload", "shown"),
    [({"payload": "ü"}, "ü".encode()), ({"payload": "/wA=", "payload_encoding": "base64"}, b"\xff\x00")],
)
def test_payload_format_prints_the_published_bytes(payload: dict[str, str], shown: bytes) -> None:
    assert message_writer("payload")(LEASE | payload) == shown
    assert message_writer("text")(LEASE | payload).endswith(b"payload  " + shown + b"\n")
    assert json.loads(message_writer("json")(LEASE | payload)) == LEASE | payload


def test_text_for_a_terminal_has_no_control_characters() -> None:
    write = message_writer("text", for_terminal=True)
    assert write(LEASE | {"payload": "a\x1b[31m\x9b\r\nü"}).splitlines()[2:] == [
        rb"payload  a\x1b[31m\x9b\r",
        "ü".encode(),
    ]
    binary = {"payload": "/wA=", "payload_encoding": "base64", "key": "/wA=", "key_encoding": "base64"}
    assert write(LEASE | binary).splitlines()[2:] == [b"key      base64:/wA=", b"payload  base64:/wA="]
    assert message_writer("payload", for_terminal=True)(LEASE | {"payload": "\x1b"}) == b"\x1b"


def test_message_without_a_payload_is_empty() -> None:
    assert message_writer("payload")(LEASE | {"payload": None}) == b""


def test_choice_is_spelled_with_dashes_or_underscores() -> None:
    choices = ("at_least_once", "at_most_once", "exactly_once")
    assert {one_of("--d", choice, choices) for choice in ("at-most-once", "at_most_once")} == {"at_most_once"}
    with pytest.raises(ClientError, match="--d often: expected at-least-once, at-most-once or exactly-once"):
        one_of("--d", "often", choices)


def test_duration_needs_a_unit() -> None:
    assert [duration_ms("--d", text) for text in ("1200ms", "5s", "10m", "2h")] == [1200, 5000, 600_000, 7_200_000]
    with pytest.raises(ClientError, match="--d: '5' is not a duration"):
        duration_ms("--d", "5")
