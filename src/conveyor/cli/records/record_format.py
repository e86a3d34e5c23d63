"""Formats a record as one line: text, JSON, hexadecimal, or headers and text."""

import json
from base64 import b64encode
from collections.abc import Callable
from typing import Annotated, Any

import typer

from conveyor.cli.terminal.kafka_client import ClientError

WriteRecord = Callable[[Any], bytes | None]
"""Returns the line of a record; None if it is not printed."""

Format = Annotated[
    str,
    typer.Option(
        "--format",
        "-f",
        metavar="text|json|hex|headers",
        help="text: the value. json: the record. hex: the value in hexadecimal. headers: NAME=VALUE,... and the value.",
    ),
]
ShowKey = Annotated[
    bool | None,
    typer.Option(
        "--key/--no-key",
        help="Print the key and a tab before the value; --no-key leaves the key out of JSON.",
        show_default=False,
    ),
]


def record_writer(format_: str, show_key: bool | None) -> Callable[[Any], bytes]:
    """Return a function that formats a client's message as a line, without line end. Raises ClientError."""
    if format_ == "json":
        return lambda message: _json(message, show_key=show_key is not False)
    if format_ not in _FIELDS:
        raise ClientError(f"--format {format_}: expected text, json, hex or headers")
    fields = _FIELDS[format_]
    return lambda message: b"\t".join(fields(message, bool(show_key)))


def _text(message: Any, show_key: bool) -> list[bytes]:
    value = message.value() or b""
    return [message.key() or b"", value] if show_key else [value]


def _hex(message: Any, show_key: bool) -> list[bytes]:
    return [part.hex().encode() for part in _text(message, show_key)]


def _headers(message: Any, show_key: bool) -> list[bytes]:
    pairs = (name.encode() + b"=" + (value or b"") for name, value in message.headers() or [])
    return [b",".join(pairs), *_text(message, show_key)]


_FIELDS = {"text": _text, "hex": _hex, "headers": _headers}


def _json(message: Any, *, show_key: bool) -> bytes:
    """Format a record as JSON: UTF-8 as a string, other bytes in base64 with a field `..._encoding`, none as null."""
    kind, timestamp_ms = message.timestamp()
    document: dict[str, Any] = {
        "topic": message.topic(),
        "partition": message.partition(),
        "offset": message.offset(),
        "timestamp": timestamp_ms if kind else None,
    }
    if show_key:
        document |= _readable("key", message.key())
    document |= _readable("value", message.value())
    document["headers"] = [{"name": name} | _readable("value", value) for name, value in message.headers() or []]
    return json.dumps(document, ensure_ascii=False).encode()


def _readable(name: str, content: bytes | None) -> dict[str, str | None]:
    try:
        return {name: None if content is None else content.decode()}
    except UnicodeDecodeError:
        return {name: b64encode(content or b"").decode(), f"{name}_encoding": "base64"}
