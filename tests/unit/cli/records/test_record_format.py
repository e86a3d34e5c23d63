"""The formats of printed records."""

import json
from dataclasses import dataclass, field

import pytest

from conveyor.cli.records.record_format import record_writer
from conveyor.cli.terminal.kafka_client import ClientError


@dataclass
class Message:
    """The interface of a client's message."""

    content: bytes | None = b"value"
    name: bytes | None = b"key"
    named: list[tuple[str, bytes | None]] = field(default_factory=list)
    stamp: tuple[int, int] = (1, 1000)

    def topic(self) -> str:
        return "t"

    def partition(self) -> int:
        return 2

    def offset(self) -> int:
        return 7

    def timestamp(self) -> tuple[int, int]:
        return self.stamp

    def key(self) -> bytes | None:
        return self.name

    def value(self) -> bytes | None:
        return self.content

    def headers(self) -> list[tuple[str, bytes | None]] | None:
        return self.named or None


HEADERS: list[tuple[str, bytes | None]] = [("a", b"1"), ("a", b"x=y"), ("none", None)]


@pytest.mark.parametrize(
    ("format_", "show_key", "line"),
    [
        ("text", None, b"value"),
        ("text", False, b"value"),
        ("text", True, b"key\tvalue"),
        ("hex", None, b"76616c7565"),
        ("hex", True, b"6b6579\t76616c7565"),
        ("headers", None, b"a=1,a=x=y,none=\tvalue"),
        ("headers", True, b"a=1,a=x=y,none=\tkey\tvalue"),
    ],
)
def test_line_has_the_requested_parts(format_: str, show_key: bool | None, line: bytes) -> None:
    assert record_writer(format_, show_key)(Message(named=HEADERS)) == line


@pytest.mark.parametrize("format_", ["text", "hex", "headers"])
def test_missing_parts_are_empty(format_: str) -> None:
    line = record_writer(format_, True)(Message(content=None, name=None))
    assert line.replace(b"\t", b"") == b""


def test_json_has_everything() -> None:
    assert json.loads(record_writer("json", None)(Message(named=HEADERS))) == {
        "topic": "t",
        "partition": 2,
        "offset": 7,
        "timestamp": 1000,
        "key": "key",
        "value": "value",
        "headers": [{"name": "a", "value": "1"}, {"name": "a", "value": "x=y"}, {"name": "none", "value": None}],
    }


def test_json_marks_base64() -> None:
    binary = json.loads(record_writer("json", None)(Message(content=b"\xff", name=b"\xfe", named=[("h", b"\xfd")])))
    assert (binary["value"], binary["value_encoding"]) == ("/w==", "base64")
    assert (binary["key"], binary["key_encoding"]) == ("/g==", "base64")
    assert binary["headers"] == [{"name": "h", "value": "/Q==", "value_encoding": "base64"}]


def test_json_distinguishes_null_from_empty() -> None:
    shown = json.loads(record_writer("json", None)(Message(content=b"", name=None, stamp=(0, -1))))
    assert (shown["value"], shown["key"], shown["timestamp"]) == ("", None, None)


def test_json_omits_the_key_on_request() -> None:
    assert "key" not in json.loads(record_writer("json", False)(Message()))


def test_unknown_format_is_refused() -> None:
    with pytest.raises(ClientError, match="--format xml: expected text, json, hex or headers"):
        record_writer("xml", None)
