"""Formats messages and durations for the queue commands."""

import json
from base64 import b64decode
from collections.abc import Callable, Mapping
from typing import Any

from conveyor.cli.terminal.kafka_client import ClientError

Document = Mapping[str, Any]
WriteMessage = Callable[[Document], bytes]

_SECOND_MS = 1000
_UNITS_MS = (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000))


def age(duration_ms: int | None) -> str | None:
    """Format a duration, rounded down, in the largest unit that gives at least 2."""
    if duration_ms is None or duration_ms < _SECOND_MS:
        return None if duration_ms is None else f"{duration_ms}ms"
    for unit, unit_ms in _UNITS_MS:
        if duration_ms >= 2 * unit_ms:
            return f"{duration_ms // unit_ms}{unit}"
    return f"{duration_ms // _SECOND_MS}s"


def one_line(text: str | None, longest: int = 40) -> str | None:
    """Return text for a cell of a table: shortened, with control characters escaped."""
    if text is None:
        return None
    shown = "".join(
        character if character.isprintable() else repr(character)[1:-1] for character in text[: longest + 1]
    )
    return shown if len(shown) <= longest else f"{shown[: longest - 1]}…"


def as_text(message: Document, field: str) -> str | None:
    """Return a payload or a key; bytes that are not text as `base64:...`."""
    text: str | None = message[field]
    return f"base64:{text}" if message.get(f"{field}_encoding") == "base64" else text


def consumer_text(consumer: Document | None) -> str | None:
    """Return the client that holds a lease: its id if it has given one, its user, and its address."""
    if consumer is None:
        return None
    user = f"{consumer['principal']}@{consumer['address']}"
    return f"{one_line(consumer['client_id'], 20)} {user}" if consumer["client_id"] else user


def message_writer(format_: str, *, for_terminal: bool = False) -> WriteMessage:
    """Return a function that formats a message as lines, without the last line end. Raises ClientError.

    for_terminal: escape control characters in text. Otherwise the bytes of the payload are kept.
    """
    if format_ not in _WRITERS:
        raise ClientError(f"--format {format_}: expected text, json or payload")
    return _for_terminal if format_ == "text" and for_terminal else _WRITERS[format_]


def _text(message: Document) -> bytes:
    return _fields(message) + _payload(message) + b"\n"


def _for_terminal(message: Document) -> bytes:
    payload = "\n".join(map(_whole, (as_text(message, "payload") or "").split("\n")))
    return _fields(message) + payload.encode() + b"\n"


def _fields(message: Document) -> bytes:
    """Return the lines before the payload: id, ack id, key and headers."""
    lines = [f"message  {message['message_id']}  delivery {message['delivery_count']}", f"ack_id   {message['ack_id']}"]
    if message["key"] is not None:
        lines.append(f"key      {_whole(as_text(message, 'key') or '')}")
    lines += [f"header   {_whole(name)}={_whole(_header(value))}" for name, value in _pairs(message["headers"])]
    return "\n".join([*lines, "payload  "]).encode()


def _pairs(headers: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return a (name, value) pair for each header; a repeated name has a list of values."""
    return [(name, item) for name, value in headers.items() for item in (value if isinstance(value, list) else [value])]


def _header(value: Any) -> str:
    return json.dumps(value) if isinstance(value, dict) else value or ""


def _whole(text: str) -> str:
    return one_line(text, 1 << 20) or ""


def _json(message: Document) -> bytes:
    return json.dumps(message, ensure_ascii=False).encode()


def _payload(message: Document) -> bytes:
    payload = message["payload"] or ""
    return b64decode(payload) if message.get("payload_encoding") == "base64" else payload.encode()


_WRITERS: dict[str, WriteMessage] = {"text": _text, "json": _json, "payload": _payload}
