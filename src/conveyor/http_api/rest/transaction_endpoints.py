"""Transactions: begin one, publish in it (see `publish_endpoints`), commit or abort it; or all in one request."""

from collections.abc import Mapping
from typing import Annotated, Literal

from msgspec import Meta, Struct

from conveyor.broker.broker_node import BrokerNode
from conveyor.broker.handles.handle_transactions import DEFAULT_TIMEOUT_MS
from conveyor.broker.produce.outgoing_message import OutgoingMessage
from conveyor.http_api.engine.endpoint import Endpoint, HttpCall, NoQuery
from conveyor.http_api.requests.durations import Duration
from conveyor.http_api.rest.publish_endpoints import (
    BATCH_BYTES,
    MAX_MESSAGES,
    NewMessage,
    Receipt,
    batch_reader,
    free,
    outgoing_messages,
)
from conveyor.kernel.errors import RequestError


class NewTransaction(Struct, forbid_unknown_fields=True):
    """timeout: the broker aborts the transaction if it has not ended after this time; default 60s."""

    timeout: Duration | None = None


class BegunTransaction(Struct):
    """An open transaction. Pass its id as `transaction` to publish in it."""

    transaction_id: str
    timeout_ms: int


class FinishedTransaction(Struct):
    """A transaction that has ended."""

    transaction_id: str
    state: Literal["committed", "aborted"]


class NewTopicMessage(NewMessage, kw_only=True):
    """One message of a batch for several topics."""

    topic: Annotated[str, Meta(min_length=1)]


class NewTopicMessages(Struct, forbid_unknown_fields=True):
    """A batch of messages for several topics."""

    messages: Annotated[list[NewTopicMessage], Meta(min_length=1, max_length=MAX_MESSAGES)]


class Receipts(Struct):
    """The positions of the messages, in the order of the request."""

    results: list[Receipt]


async def begin_transaction(call: HttpCall[NoQuery, NewTransaction]) -> BegunTransaction:
    """Begin a transaction. Its messages count once it is committed, all of them or none."""
    timeout_ms = DEFAULT_TIMEOUT_MS if call.body.timeout is None else int(call.body.timeout)
    return BegunTransaction(await call.broker.handle_transactions.begin(timeout_ms), timeout_ms)


async def commit_transaction(call: HttpCall[NoQuery, None]) -> FinishedTransaction:
    """Commit a transaction. The request can be repeated for a minute if its response was lost."""
    transaction_id = call.names["transaction"]
    await call.broker.handle_transactions.finish(transaction_id, commit=True)
    return FinishedTransaction(transaction_id, "committed")


async def abort_transaction(call: HttpCall[NoQuery, None]) -> FinishedTransaction:
    """Abort a transaction: none of its messages counts. The request can be repeated for a minute."""
    transaction_id = call.names["transaction"]
    await call.broker.handle_transactions.finish(transaction_id, commit=False)
    return FinishedTransaction(transaction_id, "aborted")


async def publish_all_or_none(call: HttpCall[NoQuery, NewTopicMessages]) -> Receipts:
    """Publish a batch of messages for several topics: all of them, or none.

    The response is an error if any message is refused; no message is then published.
    """
    messages: list[tuple[str, OutgoingMessage]] = []
    index = 0
    async for document, outgoing in outgoing_messages(call.body.messages):
        if isinstance(outgoing, RequestError):
            reason = f"no message was published, because message {index} is not valid: {outgoing.message}"
            raise RequestError(outgoing.kind, reason) from outgoing
        messages.append((document.topic, outgoing))
        index += 1
    published = await call.broker.handle_transactions.publish_all_or_none(messages)
    await free(messages)
    return Receipts([Receipt(each.message_id, each.partition, each.offset, each.duplicate) for each in published])


def all_or_none_limit(broker: BrokerNode, _names: Mapping[str, str]) -> int:
    return max(BATCH_BYTES, 2 * broker.settings.topics.max_message_bytes)


ENDPOINTS = (
    Endpoint(
        method="POST",
        path="/messages:batch",
        function=publish_all_or_none,
        body_limit=all_or_none_limit,
        read=batch_reader(NewTopicMessages),
        problems=(404, 409, 429, 504, 507),
    ),
    Endpoint(method="POST", path="/transactions", function=begin_transaction, status=201, problems=(429, 504)),
    Endpoint(method="POST", path="/transactions/{transaction}/commit", function=commit_transaction, problems=(409,)),
    Endpoint(method="POST", path="/transactions/{transaction}/abort", function=abort_transaction, problems=(409,)),
)
