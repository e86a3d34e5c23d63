"""Publish one message, whose payload is the request's body, or a batch of messages in JSON."""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Literal, Protocol, TypeVar

from msgspec import Meta, Struct, ValidationError, convert

from conveyor.broker.broker_node import BrokerNode
from conveyor.broker.produce.message_batches import Result
from conveyor.broker.produce.outgoing_message import OutgoingMessage
from conveyor.cluster.quotas import PRODUCER_BYTE_RATE
from conveyor.http.endpoints.endpoint import Endpoint, NoQuery, Responder
from conveyor.http.endpoints.fields import decode_field
from conveyor.http.endpoints.request_reader import body_parser
from conveyor.http.engine.http_request import Request
from conveyor.http.engine.problems import Problem, problem_of
from conveyor.http_api.http_call import HttpCall
from conveyor.http_api.requests.body_parts import batch_parts
from conveyor.http_api.requests.durations import Duration
from conveyor.http_api.requests.payloads import Encoding, HeaderValue, as_bytes, headers_count, read_headers
from conveyor.http_api.requests.times_and_positions import Timestamp
from conveyor.kernel.access.declared_access import WRITE, to_create, topic
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.records import message_attributes
from conveyor.records.record import Header

_BATCH_BYTES = 16 << 20
"""Limit of a batch's body."""
_MAX_PAYLOAD_BYTES = 32 << 20
"""Of a message over REST, whatever its topic permits: the broker, and its followers, handle a batch as a whole."""
MAX_MESSAGES = 10_000
"""Limit of messages in a batch."""
MAX_HEADERS = 100_000
"""Limit of headers in a batch. Each takes a few bytes of the request, and some 150 bytes of memory."""
_MESSAGE_BYTES, _HEADER_BYTES = 500, 150
"""Memory for each message of a batch with its attributes, and for each header, besides their texts."""
_HEADERS_AT_ONCE = 5_000
"""Headers and messages decoded in one tick of the event loop."""
_FREED_AT_ONCE = 1_000

_PREFIX = "conveyor-"
_Priority = Annotated[int, Meta(ge=0, le=message_attributes.PRIORITIES - 1)]
_Name = Annotated[str, Meta(min_length=1)]
_Partition = Annotated[int, Meta(ge=0, le=100_000)]


class PublishAttributes(Struct, forbid_unknown_fields=True, kw_only=True):
    """The attributes of a message, besides its payload."""

    key: str | None = None
    delay: Duration | None = None
    deliver_at: Timestamp | None = None
    priority: _Priority | None = None
    tag: _Name | None = None
    ttl: Duration | None = None
    dedup_id: _Name | None = None
    partition: _Partition | None = None


class PublishQuery(PublishAttributes, kw_only=True):
    """The attributes as query parameters. `header`: `name:value`, once for each header."""

    header: list[Annotated[str, Meta(pattern="^[^:]+:")]] = []


class NewMessage(PublishAttributes, kw_only=True):
    """One message of a batch. payload and key: text, or base64 if the `..._encoding` field is base64."""

    payload: str | None
    payload_encoding: Encoding | None = None
    key_encoding: Encoding | None = None
    headers: dict[_Name, HeaderValue | list[HeaderValue]] = {}


class NewMessages(Struct, forbid_unknown_fields=True):
    """A batch of messages."""

    messages: Annotated[list[NewMessage], Meta(min_length=1, max_length=MAX_MESSAGES)]


class HasMessages(Protocol):
    """A body with messages."""

    messages: list[Any]


Batch = TypeVar("Batch", bound=HasMessages)
NewDocument = TypeVar("NewDocument", bound=NewMessage)


class Receipt(Struct):
    """The position of a published message. duplicate: an earlier message with its dedup_id has this position."""

    message_id: str
    partition: int
    offset: int
    duplicate: bool = False


class BatchReceipt(Struct, omit_defaults=True):
    """The result for one message of a batch."""

    status: Literal["ok", "error"]
    message_id: str | None = None
    partition: int | None = None
    offset: int | None = None
    duplicate: bool = False
    error: Problem | None = None


class BatchReceipts(Struct):
    """The results of a batch, in the order of its messages."""

    results: list[BatchReceipt]


def publish_message(call: HttpCall[PublishQuery, bytes], reply: Responder[Receipt]) -> None:
    """Publish a message. The body is the payload, of any content type.

    Attributes are query parameters or request headers; query parameters take precedence. The response is sent when the
    message is durable.
    """
    attributes, headers = _request_headers(call.exchange.request)
    headers += [_header(text) for text in call.query.header]
    message = _outgoing(call.body, _merged(call.query, attributes), headers)
    if call.exchange.meter is not None:
        call.count_published([message])
    call.broker.produce.messages.submit(
        call.caller, call.names["topic"], [message], partial(reply, make=_receipt_of_one)
    )


def publish_batch(
    call: HttpCall[NoQuery, NewMessages], reply: Responder[BatchReceipts]
) -> Coroutine[Any, Any, BatchReceipts] | None:
    """Publish a batch of messages. Each has its own result. The response is sent when all are durable."""
    documents = call.body.messages
    if weigh(call, documents) > _HEADERS_AT_ONCE:
        return _publish_many(call)
    made = [_from_document(document) for document in documents]
    valid = [outgoing for outgoing in made if isinstance(outgoing, OutgoingMessage)]
    if call.exchange.meter is not None:
        call.count_published(valid)
    messages = call.broker.produce.messages
    messages.submit(call.caller, call.names["topic"], valid, partial(reply, make=partial(_receipts, made)))
    return None


async def _publish_many(call: HttpCall[NoQuery, NewMessages]) -> BatchReceipts:
    made = [outgoing async for _, outgoing in outgoing_messages(call.body.messages)]
    errors = [outgoing if isinstance(outgoing, RequestError) else None for outgoing in made]
    valid = [outgoing for outgoing in made if isinstance(outgoing, OutgoingMessage)]
    del made
    if call.exchange.meter is not None:
        await call.count_many_published(valid)
    published = await call.broker.produce.messages.publish(call.caller, call.names["topic"], valid)
    await free(valid)
    return _receipts(errors, published)


async def outgoing_messages(
    documents: list[NewDocument],
) -> AsyncIterator[tuple[NewDocument, OutgoingMessage | RequestError]]:
    """Yield each document with its message, or why it is not valid. Empties the list of documents."""
    documents.reverse()
    count = 0
    while documents:
        document = documents.pop()  # Freed one by one: freeing all headers at once would take too long.
        yield document, _from_document(document)
        count += 1 + headers_count(document.headers)
        if count > _HEADERS_AT_ONCE:
            count = 0
            await asyncio.sleep(0)


async def free(messages: list[Any]) -> None:
    """Empty a list of messages, some at a time."""
    while len(messages) > _FREED_AT_ONCE:
        del messages[-_FREED_AT_ONCE:]
        await asyncio.sleep(0)
    messages.clear()


def batch_reader(kind: type[Batch]) -> Callable[[bytes], Awaitable[Batch]]:
    """Return a function that decodes a batch part by part, up to the limits of messages and of headers, and raises
    RequestError.

    kind: a type with a list `messages`; its other fields have defaults.
    """
    parse = body_parser(kind)

    async def read(body: bytes) -> Batch:
        messages: list[Any] = []
        count = 0
        async for part in batch_parts(body):
            batch: Batch = _parsed(parse, part, len(messages))
            messages += batch.messages
            if len(messages) > MAX_MESSAGES:
                raise _wrong(f"in the request's body: Expected `array` of length <= {MAX_MESSAGES} - at `$.messages`")
            count += _headers_count(batch.messages)
            if count > MAX_HEADERS:
                raise _wrong(f"the messages have more than {MAX_HEADERS} headers: send them in several requests")
            await asyncio.sleep(0)
        batch.messages = messages  # The last part has all other fields.
        return batch

    return read


def _parsed(parse: Callable[[bytes], Any], part: bytes, index: int) -> Any:
    """Parse a part of a batch. index: of its first message. Raises RequestError, which names the right message."""
    try:
        return parse(part)
    except RequestError as error:
        where = re.sub(r"(?<=\$\.messages\[)\d+", lambda found: str(index + int(found.group())), error.message)
        raise RequestError(error.kind, where) from error


def weigh(call: HttpCall[Any, Any], documents: Sequence[Any]) -> int:
    """Count the memory for the messages of a batch until its reply. Returns the number of messages and headers."""
    count = _headers_count(documents)
    call.exchange.memory.weigh(len(documents) * _MESSAGE_BYTES + count * _HEADER_BYTES)
    return len(documents) + count


def _headers_count(documents: Sequence[Any]) -> int:
    return sum([headers_count(document.headers) for document in documents if document.headers])


read_batch = batch_reader(NewMessages)


def payload_limit(broker: BrokerNode, names: Mapping[str, str]) -> int:
    """Return the largest payload for the topic, in bytes."""
    try:
        most_bytes = broker.produce.messages.max_message_bytes(names["topic"])
    except RequestError:
        most_bytes = broker.settings.topics.max_message_bytes
    return min(most_bytes, _MAX_PAYLOAD_BYTES)


def batch_limit(_broker: BrokerNode, _names: Mapping[str, str]) -> int:
    return _BATCH_BYTES


REQUEST_HEADERS = (
    ("Conveyor-Key", "The message's key."),
    ("Conveyor-Delay", "As `delay`."),
    ("Conveyor-Deliver-At", "As `deliver_at`."),
    ("Conveyor-Priority", "As `priority`."),
    ("Conveyor-Tag", "As `tag`."),
    ("Conveyor-Ttl", "As `ttl`."),
    ("Conveyor-Dedup-Id", "As `dedup_id`."),
    ("Conveyor-Partition", "As `partition`."),
    ("Conveyor-Header", "`name: value`, once for each header."),
)

_PUBLISH = (topic(WRITE, "topic"), to_create("topic"))

ENDPOINTS = (
    Endpoint(
        method="POST",
        path="/topics/{topic}/messages",
        needs=_PUBLISH,
        function=publish_message,
        status=201,
        body_limit=payload_limit,
        problems=(409, 507),
        headers=REQUEST_HEADERS,
        quotas=(PRODUCER_BYTE_RATE,),
    ),
    Endpoint(
        method="POST",
        path="/topics/{topic}/messages:batch",
        needs=_PUBLISH,
        function=publish_batch,
        body_limit=batch_limit,
        read=read_batch,
        problems=(409,),
        quotas=(PRODUCER_BYTE_RATE,),
    ),
)

_FIELDS = {name.lower(): name[len(_PREFIX) :].lower().replace("-", "_") for name, _ in REQUEST_HEADERS}


def _request_headers(request: Request) -> tuple[PublishAttributes | None, list[Header]]:
    """Return the attributes and the message headers in a request's `Conveyor-` headers."""
    attributes: dict[str, str] = {}
    headers: list[Header] = []
    for name, value in request.headers():
        if not name.startswith(_PREFIX):
            continue
        field = _FIELDS.get(name)
        if field is None:
            header_names = ", ".join(header for header, _ in REQUEST_HEADERS)
            raise _wrong(f"unknown request header '{name.title()}': use one of {header_names}")
        if field == "header":
            headers.append(_header(value))
        elif field in attributes:
            raise _wrong(f"request header '{name}' is given more than once")
        else:
            attributes[field] = value
    if not attributes:
        return None, headers
    try:
        return convert(attributes, PublishAttributes, strict=False, dec_hook=decode_field), headers
    except (ValidationError, UnicodeEncodeError) as error:
        raise _wrong(f"in the Conveyor- request headers: {error}") from error


def _merged(first: PublishAttributes, second: PublishAttributes | None) -> PublishAttributes:
    """Return the first attributes, with missing ones taken from the second."""
    if second is None:
        return first
    given = {name: getattr(first, name) for name in PublishAttributes.__struct_fields__}
    return PublishAttributes(
        **{name: getattr(second, name) if value is None else value for name, value in given.items()}
    )


def _from_document(message: NewMessage) -> OutgoingMessage | RequestError:
    try:
        payload = as_bytes(message.payload, message.payload_encoding, "payload")
        key = None if message.key is None else as_bytes(message.key, message.key_encoding, "key")
        return _outgoing(payload, message, read_headers(message.headers) if message.headers else [], key)
    except RequestError as error:
        return error.detached()


def _outgoing(
    payload: bytes | None, attributes: PublishAttributes, headers: list[Header], key: bytes | None = None
) -> OutgoingMessage:
    """Make a message. Raises RequestError (INVALID_REQUEST) for attributes without effect, unlike the Kafka door."""
    if headers:
        message_attributes.check_attributes(headers)
    if key is None and attributes.key is not None:
        key = _bytes(attributes.key)
    return OutgoingMessage(payload, key, (*headers, *_attribute_headers(attributes)), attributes.partition)


def _attribute_headers(attributes: PublishAttributes) -> list[Header]:
    """Return the record headers of the attributes, as a Kafka producer would set them."""
    headers: list[Header] = []
    if attributes.delay is not None:
        headers.append((message_attributes.DELAY_MS, b"%d" % attributes.delay))
    if attributes.deliver_at is not None:
        headers.append((message_attributes.DELIVER_AT_MS, b"%d" % attributes.deliver_at))
    if attributes.ttl is not None:
        headers.append((message_attributes.TTL_MS, b"%d" % attributes.ttl))
    if attributes.priority is not None:
        headers.append((message_attributes.PRIORITY, b"%d" % attributes.priority))
    if attributes.tag is not None:
        headers.append((message_attributes.TAG, _bytes(attributes.tag)))
    if attributes.dedup_id is not None:
        headers.append((message_attributes.DEDUP_ID, _bytes(attributes.dedup_id)))
    return headers


def _header(text: str) -> Header:
    name, separator, value = text.partition(":")
    if not separator or not name or not name.isprintable():
        raise _wrong(f"{text!r} is not a header: write name:value")
    return name, _bytes(value.lstrip(" "))


def _bytes(text: str) -> bytes:
    """Return the bytes of a request header, UTF-8 or not."""
    return text.encode("utf-8", "surrogateescape")


def _receipt_of_one(results: Sequence[Result]) -> Receipt:
    """Raise RequestError."""
    (published,) = results
    if isinstance(published, RequestError):
        raise published
    return Receipt(published.message_id, published.partition, published.offset, published.duplicate)


def _receipts(made: Sequence[OutgoingMessage | RequestError | None], results: Sequence[Result]) -> BatchReceipts:
    """made: of each message of the request the error if it is not valid, and so has no result."""
    published = iter(results)
    return BatchReceipts([_receipt(error if isinstance(error, RequestError) else next(published)) for error in made])


def _receipt(published: Result) -> BatchReceipt:
    if isinstance(published, RequestError):
        return BatchReceipt("error", error=problem_of(published))
    return BatchReceipt("ok", published.message_id, published.partition, published.offset, published.duplicate)


def _wrong(detail: str) -> RequestError:
    return RequestError(ErrorKind.INVALID_REQUEST, detail)
