"""The JSON document of a message."""

from typing import Annotated, Any, TypeAlias

from msgspec import UNSET, Meta, Struct, UnsetType

from conveyor.http_api.requests.payloads import Encoding, Headers, as_text, show_headers
from conveyor.queues.queue_commands import MessageState
from conveyor.records.message import Message

_STATES = (
    "available, leased, pending (acknowledged in an open transaction), delayed, retrying, waiting (behind another of"
    " its key), dying (about to become a dead letter), acknowledged, filtered, expired, dead, dropped (a dead letter"
    " that was dropped) or cancelled."
)
MessageStateName: TypeAlias = Annotated[str, Meta(description=_STATES)]


class MessageDocument(Struct):
    """A message. payload and key are text, or base64 if `payload_encoding` or `key_encoding` is base64.

    payload: null for a message without one (a tombstone). headers: a repeated name has a list of values. publisher: the
    user who has published it, as `User:alice`, if that is known: the broker sets it, and no client can.
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
    publisher: str | UnsetType = UNSET


class ConsumerDocument(Struct):
    """The client that holds the lease of a message. principal: who it is, as `User:alice`. client_id: what it called
    itself when it leased the message; may be empty. address: of its host.
    """

    principal: str
    client_id: str
    address: str


def show_consumer(state: MessageState) -> ConsumerDocument | None:
    """Return the document of the client that holds a message; None if nobody does."""
    holder = state.consumer
    return None if holder is None else ConsumerDocument(holder.principal, holder.client_id, holder.address)


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
        "publisher": show_publisher(message),
    }


def show_publisher(message: Message) -> str | UnsetType:
    publisher = message.publisher if message.headers else None
    return UNSET if publisher is None else publisher


def show_message(message: Message) -> MessageDocument:
    """Return the document of one message."""
    return MessageDocument(**message_fields(message))
