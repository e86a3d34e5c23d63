"""Leasing messages from a subscription, waiting for them if there are none; and looking at them without a lease."""

from functools import partial
from typing import Annotated

from msgspec import Meta, Struct

from conveyor.broker.queues.queues import Lease
from conveyor.http_api.engine.endpoint import Call, Endpoint
from conveyor.http_api.requests.durations import Duration
from conveyor.http_api.requests.payloads import as_text, show_headers
from conveyor.http_api.rest.message_document import MessageDocument, MessageStateName, message_fields
from conveyor.http_api.rest.subscription_endpoints import named
from conveyor.queues.delivery.inspection import Peeked
from conveyor.queues.subscription.policy import MAX_VISIBILITY_MS

MAX_LEASES = 1000
_MessageCount = Annotated[int, Meta(ge=1, le=MAX_LEASES)]


class Wait(Duration):
    """How long a request waits for messages."""

    most_ms = 20_000


class Visibility(Duration):
    """How long a lease lasts."""

    most_ms = MAX_VISIBILITY_MS


class LeaseQuery(Struct, forbid_unknown_fields=True):
    """wait: for the first message, not at all if it does not say. visibility: of the lease, else the subscription's."""

    max_messages: _MessageCount = 1
    wait: Wait | None = None
    visibility: Visibility | None = None


class PeekQuery(Struct, forbid_unknown_fields=True):
    """max_messages: how many are shown at most."""

    max_messages: _MessageCount = 10


class LeaseDocument(MessageDocument, kw_only=True):
    """A message that is leased: acknowledge it by `ack_id`, or by `message_id`, before the lease expires."""

    ack_id: str
    delivery_count: int
    lease_expires_at_ms: int


class LeaseList(Struct):
    """The messages that were leased; none if there were none in time."""

    messages: list[LeaseDocument]


class PeekDocument(MessageDocument, kw_only=True):
    """A message that is not settled. due_ms: when its state ends by itself, in ms since 1970."""

    state: MessageStateName
    delivery_count: int
    due_ms: int | None


class PeekList(Struct):
    """Messages that are not settled."""

    messages: list[PeekDocument]


async def lease_messages(call: Call[LeaseQuery, None]) -> LeaseList:
    """Lease messages: they are this client's until it settles them, or the lease expires.

    With `wait` the answer comes with the first message. A client that goes away meanwhile has leased nothing.
    """
    query, queues, name = call.query, call.broker.queues, named(call).name
    leases = await queues.lease(name, query.max_messages, 0, query.visibility)
    if not leases and query.wait:
        work = partial(queues.lease, name, query.max_messages, int(query.wait), query.visibility)
        leases = await call.door.polls.wait(work, [], partial(queues.give_back, name))
    return LeaseList(list(map(_show_lease, leases)))


async def peek_messages(call: Call[PeekQuery, None]) -> PeekList:
    """Look at the messages of a subscription that are not settled. Nothing is leased."""
    peeked = await call.broker.queues.peek(named(call).name, call.query.max_messages)
    return PeekList(list(map(_show_peeked, peeked)))


_SHORT, _LONG = "/subscriptions/{subscription}", "/topics/{topic}/subscriptions/{subscription}"

ENDPOINTS = (
    Endpoint(method="GET", path=f"{_SHORT}/messages", function=lease_messages, takes_head=False),
    Endpoint(method="GET", path=f"{_LONG}/messages", function=lease_messages, takes_head=False),
    Endpoint(method="GET", path=f"{_SHORT}/peek", function=peek_messages),
    Endpoint(method="POST", path=f"{_SHORT}/peek", function=peek_messages),
)


def _show_lease(lease: Lease) -> LeaseDocument:
    """Written out: a lease's messages are what this door shows most."""
    message = lease.message
    payload, payload_encoding = as_text(message.value)
    key, key_encoding = as_text(message.key)
    return LeaseDocument(
        message.message_id,
        payload,
        key,
        show_headers(message.headers) if message.headers else {},
        message.tag if message.headers else None,
        message.partition,
        message.offset,
        message.timestamp_ms,
        payload_encoding,
        key_encoding,
        ack_id=lease.ack_id,
        delivery_count=lease.delivery_count,
        lease_expires_at_ms=lease.expires_ms,
    )


def _show_peeked(peeked: Peeked) -> PeekDocument:
    return PeekDocument(
        **message_fields(peeked.message),
        state=peeked.state.state,
        delivery_count=peeked.state.delivery_count,
        due_ms=peeked.state.due_ms,
    )
