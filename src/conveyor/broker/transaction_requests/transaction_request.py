"""A request that runs in a transaction, and its form between brokers."""

import asyncio
import hashlib
import zlib
from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple

import msgspec

from conveyor.broker.produce.outgoing_message import OutgoingMessage, PublishedMessage
from conveyor.broker.remote.calls import Call
from conveyor.broker.remote.wire_errors import ValueDecoder, encode_value

_AT_ONCE = 5_000
"""Messages and headers encoded or decoded in one tick of the event loop."""

TopicMessage = tuple[str, OutgoingMessage]
"""A topic and a message for it."""


class Acknowledgement(NamedTuple):
    """Messages to acknowledge for a subscription. targets: ack ids or message ids."""

    subscription: str
    targets: list[str]


class TransactionRequest(NamedTuple):
    """Messages to publish and to acknowledge. id: chosen by the client; None if it will not repeat the request."""

    id: str | None
    messages: list[TopicMessage]
    acknowledgements: list[Acknowledgement]


class RunTransaction(msgspec.Struct, frozen=True, array_like=True):
    """Run a request at the coordinator of a partition of `__transaction_state`.

    messages: in parts, each of which is encoded on its own, so that none blocks the event loop for long.
    """

    number: int
    request_id: str | None
    digest: bytes
    messages: list[bytes]
    acknowledgements: list[Acknowledgement]


RUN: Call[RunTransaction, list[PublishedMessage]] = Call(
    "transactions.run", RunTransaction, list[PublishedMessage], is_repeatable=False
)
_decode_messages = ValueDecoder(list[TopicMessage]).decode
_decode_published = ValueDecoder(list[PublishedMessage]).decode


async def encoded_messages(messages: Sequence[TopicMessage]) -> AsyncIterator[bytes]:
    """Yield the messages in parts."""
    part: list[TopicMessage] = []
    count = 0
    for message in messages:
        part.append(message)
        count += 1 + len(message[1].headers)
        if count >= _AT_ONCE:
            yield encode_value(part)
            part, count = [], 0
            await asyncio.sleep(0)
    if part:
        yield encode_value(part)


async def decoded_messages(parts: Sequence[bytes]) -> list[TopicMessage]:
    messages: list[TopicMessage] = []
    for part in parts:
        messages += _decode_messages(part)
        await asyncio.sleep(0)
    return messages


async def digest_of(request: TransactionRequest) -> bytes:
    """Return the SHA-256 of what the request asks for."""
    digest = hashlib.sha256()
    async for part in encoded_messages(request.messages):
        digest.update(part)
    digest.update(encode_value(request.acknowledgements))
    return digest.digest()


def encode_published(published: Sequence[PublishedMessage]) -> bytes:
    """Return the content of an answer that is kept: a large one takes a third of its size."""
    return zlib.compress(encode_value(published), 1)


def decode_published(content: bytes) -> list[PublishedMessage]:
    published: list[PublishedMessage] = _decode_published(zlib.decompress(content))
    return published
