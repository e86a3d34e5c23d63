"""The JSON document of a message."""

from typing import Annotated, Any, TypeAlias

from msgspec import UNSET, Meta, Struct, UnsetType

from conveyor.http_api.requests.payloads import Encoding, Headers, as_text, show_headers
from conveyor.records.message import Message

_STATES = (
    "available, leased, delayed, retrying, waiting (behind another of its key), dying (about to become a dead letter),"
    " acknowledged, filtered, expired, dead or cancelled."
)
MessageStateName: TypeAlias = Annotated[str, Meta(description=_STATES)]


class MessageDocument(Struct):
    """A message. payload and key are text, or base64 if `payload_encoding` or `key_encoding` is base64.

    payload: null for a message without one (a tombstone). headers: a repeated name has a list of values.
    """

    message_id: str
    payload: str | None
    key: str | None
    headers: Headers
    tag: str | None
    partition: int
    offset: int
    timestamp_ms: int
    payload_encoding: Encoding | UnsetType = UNSET
    key_encoding: Encoding | UnsetType = UNSET


def message_fields(message: Message) -> dict[str, Any]:
    """Return the fields of the document, for documents that have additional fields."""
    payload, payload_encoding = as_text(message.value)
    key, key_encoding = as_text(message.key)
    return {
        "message_id": message.message_id,
        "payload": payload,
        "key": key,
        "headers": show_headers(message.headers),
        "tag": message.tag if message.headers else None,
        "partition": message.partition,
        "offset": message.offset,
        "timestamp_ms": message.timestamp_ms,
        "payload_encoding": payload_encoding,
        "key_encoding": key_encoding,
    }


def show_message(message: Message) -> MessageDocument:
    """Return the document of one message."""
    return MessageDocument(**message_fields(message))
