"""Messages as CloudEvents 1.0.2 over HTTP: binary, structured and batched.

    id            the message's id, `<partition>-<offset>`
    source        /topics/<topic>
    type          the record header `ce_type`, or `conveyor.message`
    time          the message's timestamp
    subject, dataschema    the record headers `ce_subject`, `ce_dataschema`
    partitionkey  the message's key, if it is text
    extensions    other record headers whose names can be those of attributes, also with `ce_` before them

`ce-` in a record header's name means the same as `ce_`. A value that is no text, or too long, is left out; so are the
attributes after the first MAX_ATTRIBUTES, or after MAX_ATTRIBUTES_BYTES of them. Of a name that occurs more than once
the last header counts.

Source: CloudEvents 1.0.2 with its HTTP and JSON bindings, and the names of its Kafka binding.
"""

import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec

from conveyor.queues.push.push_target import BATCH, BINARY, MAX_CONTENT_TYPE
from conveyor.records.message import Message
from conveyor.records.record import Header

DEFAULT_TYPE = "conveyor.message"
MAX_ATTRIBUTES = 50
MAX_VALUE_BYTES = 1_024
MAX_ATTRIBUTES_BYTES = 8_192

CONTENT_TYPE = "content-type"
_STRUCTURED_TYPE = "application/cloudevents+json; charset=utf-8"
_BATCH_TYPE = "application/cloudevents-batch+json; charset=utf-8"
_NAME = re.compile(r"[a-z0-9]{1,20}")
_MEDIA_TYPE = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+/[\x20-\x7e]+")
_PREFIXES = ("ce_", "ce-")
_CONTEXT = ("type", "subject", "dataschema")
"""Attributes that only a header with a prefix gives."""
_OWN = frozenset(("id", "source", "specversion", "time", "partitionkey", "data", "datacontenttype"))
"""Attributes that no header gives."""
_PERCENT = re.compile(r"[^\x21\x23\x24\x26-\x7e]")
_LAST_MS = 253_402_300_799_999
"""The end of the year 9999."""


class PushContent(NamedTuple):
    """The headers and the body of a request, without its signature."""

    headers: tuple[tuple[str, str], ...]
    body: bytes


def encode_events(mode: str, messages: Sequence[Message], content_type: str) -> PushContent:
    """Return the content of a request: several messages only in batch mode. content_type: of messages without one."""
    if mode == BINARY:
        return _binary(messages[0], content_type)
    if mode == BATCH:
        events = [_document(message, content_type) for message in messages]
        return PushContent(((CONTENT_TYPE, _BATCH_TYPE),), msgspec.json.encode(events))
    return PushContent(((CONTENT_TYPE, _STRUCTURED_TYPE),), msgspec.json.encode(_document(messages[0], content_type)))


def _binary(message: Message, content_type: str) -> PushContent:
    headers = [(f"ce-{name}", _percent_encoded(value)) for name, value in _attributes(message).items()]
    if message.value is not None:
        headers.insert(0, (CONTENT_TYPE, _content_type(message.headers) or content_type))
    return PushContent(tuple(headers), message.value or b"")


def _document(message: Message, default_type: str) -> dict[str, Any]:
    attributes: dict[str, Any] = dict(_attributes(message))
    value = message.value
    if value is None:
        return attributes
    content_type = _content_type(message.headers) or default_type
    attributes["datacontenttype"] = content_type
    media_type = content_type.partition(";")[0].strip().lower()
    if (media_type == "application/json" or media_type.endswith("+json")) and _is_json(value):
        attributes["data"] = msgspec.Raw(value)
    elif media_type.startswith("text/") and (text := _text(value)) is not None:
        attributes["data"] = text
    else:
        attributes["data_base64"] = b64encode(value).decode()
    return attributes


def _attributes(message: Message) -> Mapping[str, str]:
    """Return the attributes in the order in which they are sent, the required ones first."""
    extensions = _from_headers(message.headers) if message.headers else {}
    attributes = {
        "specversion": "1.0",
        "id": message.message_id,
        "source": f"/topics/{message.topic}",
        "type": extensions.pop("type", DEFAULT_TYPE),
        "time": _time(message.timestamp_ms),
    }
    if message.key and (key := _attribute_text(message.key)) is not None:
        attributes["partitionkey"] = key
    return attributes | extensions


def _from_headers(headers: Sequence[Header]) -> dict[str, str]:
    """Return the attributes that record headers give. The last of a name counts, so those behind are read first."""
    found: dict[str, str] = {}
    left_bytes = MAX_ATTRIBUTES_BYTES
    for header_name, value in reversed(headers):
        name = _attribute_name(header_name)
        if name is None or name in found or value is None or len(found) >= MAX_ATTRIBUTES:
            continue
        if len(value) <= left_bytes and (text := _attribute_text(value)) is not None:
            found[name] = text
            left_bytes -= len(value)
    return found


def _attribute_name(header_name: str) -> str | None:
    """Return the attribute that a record header gives; None if it gives none."""
    name = header_name.lower()
    has_prefix = name.startswith(_PREFIXES)
    name = name[3:] if has_prefix else name
    if not _NAME.fullmatch(name) or name in _OWN or (name in _CONTEXT and not has_prefix):
        return None
    return name


def _attribute_text(value: bytes) -> str | None:
    """Return the text of an attribute; None if it is none, or too long. An attribute is not empty."""
    text = _text(value) if 0 < len(value) <= MAX_VALUE_BYTES else None
    return text if text is not None and text.isprintable() else None


def _content_type(headers: Sequence[Header]) -> str | None:
    """Return what a record says of its value: the last `content-type`, or `ce_datacontenttype`."""
    for name, value in reversed(headers):
        if name.lower() in (CONTENT_TYPE, "ce_datacontenttype") and value is not None:
            text = _text(value) if len(value) <= MAX_CONTENT_TYPE else None
            return text if text is not None and _MEDIA_TYPE.fullmatch(text) else None
    return None


def _time(timestamp_ms: int) -> str:
    """Return a time by RFC 3339."""
    seconds, millis = divmod(min(max(0, timestamp_ms), _LAST_MS), 1_000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{millis:03d}Z"


def _percent_encoded(value: str) -> str:
    """Return a value of an attribute as that of a header. Source: the HTTP binding, 3.1.3.2."""
    return _PERCENT.sub(lambda found: "".join(map("%{:02X}".format, found[0].encode())), value)


def _is_json(value: bytes) -> bool:
    try:
        msgspec.json.decode(value)
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return False
    return True


def _text(value: bytes) -> str | None:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None
