"""Lease messages from a subscription, waiting if there are none; peek at messages without a lease."""

from typing import Annotated

from msgspec import Meta, Struct

from conveyor.cluster.quotas import CONSUMER_BYTE_RATE, MAX_CLIENT_ID
from conveyor.http.endpoints.endpoint import Endpoint, Responder
from conveyor.http_api.http_call import HttpCall
from conveyor.http_api.requests.durations import Duration
from conveyor.http_api.requests.lease_requests import LeaseOptions, LeaseTaking
from conveyor.http_api.requests.payloads import as_text, show_headers
from conveyor.http_api.rest.message_document import (
    ConsumerDocument,
    MessageDocument,
    MessageStateName,
    message_fields,
    show_consumer,
    show_publisher,
)
from conveyor.http_api.rest.subscription_endpoints import subscription_of
from conveyor.kernel.access.declared_access import DESCRIBE, READ, group, topic
from conveyor.queues.delivery.inspection import Peeked
from conveyor.queues.queue_commands import LeasedMessage
from conveyor.queues.subscription.policy import MAX_VISIBILITY_MS

MAX_LEASES = 1000
_MessageCount = Annotated[int, Meta(ge=1, le=MAX_LEASES)]


class Wait(Duration):
    """The longest time that a request waits for messages."""

    max_ms = 20_000


class Visibility(Duration):
    """The duration of a lease."""

    max_ms = MAX_VISIBILITY_MS


class LeaseQuery(Struct, forbid_unknown_fields=True):
    """wait: longest wait for the first message; default 0s. visibility: duration of the lease; default the policy's.
    client_id: what the client calls itself, which the state of a message shows as long as it holds the lease.
    """

    max_messages: _MessageCount = 1
    wait: Wait | None = None
    visibility: Visibility | None = None
    client_id: Annotated[str, Meta(max_length=MAX_CLIENT_ID)] = ""


class PeekQuery(Struct, forbid_unknown_fields=True):
    """max_messages: the largest number of messages."""

    max_messages: _MessageCount = 10


class LeaseDocument(MessageDocument, kw_only=True):
    """A leased message. Acknowledge it by `ack_id` or `message_id` before the lease expires. first_delivered_ms: when
    the message was first leased, or a later time after the leader of the partition has changed or restarted.
    """

    ack_id: str
    delivery_count: int
    lease_expires_at_ms: int
    first_delivered_ms: int


class LeaseList(Struct):
    """The leased messages; empty if none arrived in time."""

    messages: list[LeaseDocument]


class PeekDocument(MessageDocument, kw_only=True):
    """An unsettled message. due_ms: the time at which its state ends by itself, in ms since 1970. consumer: the client
    that holds its lease; null if nobody does.
    """

    state: MessageStateName
    delivery_count: int
    due_ms: int | None
    consumer: ConsumerDocument | None


class PeekList(Struct):
    """Unsettled messages."""

    messages: list[PeekDocument]


def lease_messages(call: HttpCall[LeaseQuery, None], reply: Responder[LeaseList]) -> None:
    """Lease messages. No other client gets them until this client settles them or the lease expires.

    With `wait`, the response is sent when the first message arrives. A client that disconnects while waiting leases
    nothing. 503 `not_leader`: no broker that leads a partition of the topic can be reached.
    """
    query, name = call.query, subscription_of(call).name
    wait_ms, client_id = int(query.wait or 0), query.client_id
    options = LeaseOptions(name, query.max_messages, wait_ms, query.visibility, client_id)
    LeaseTaking(call, options, _show_leases).take(reply)


async def peek_messages(call: HttpCall[PeekQuery, None]) -> PeekList:
    """Show the unsettled messages of a subscription without leasing them."""
    peeked = await call.broker.queues.inspection.peek(call.caller, subscription_of(call).name, call.query.max_messages)
    call.check_again(_PEEK)
    if call.exchange.meter is not None:
        call.count_shown(shown.message for shown in peeked)
    weight_bytes = sum(shown.message.weight_bytes for shown in peeked)
    return await call.show(weight_bytes, lambda: PeekList(list(map(_show_peeked, peeked))))


_SHORT, _LONG = "/subscriptions/{subscription}", "/topics/{topic}/subscriptions/{subscription}"

_LEASE = (group(READ, "subscription"), topic(READ, "subscription.topic"))
_PEEK = (group(DESCRIBE, "subscription"), topic(READ, "subscription.topic"))

ENDPOINTS = (
    *(
        Endpoint(
            method="GET",
            path=f"{path}/messages",
            needs=_LEASE,
            function=lease_messages,
            takes_head=False,
            quotas=(CONSUMER_BYTE_RATE,),
        )
        for path in (_SHORT, _LONG)
    ),
    *(
        Endpoint(
            method=method,
            path=f"{_SHORT}/peek",
            needs=_PEEK,
            function=peek_messages,
            quotas=(CONSUMER_BYTE_RATE,),
        )
        for method in ("GET", "POST")
    ),
)


def _show_leases(leases: list[LeasedMessage]) -> LeaseList:
    return LeaseList(list(map(_show_lease, leases)))


def _show_lease(lease: LeasedMessage) -> LeaseDocument:
    """Make the document field by field, not by reflection, because leases are this door's most frequent response."""
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
        show_publisher(message),
        ack_id=lease.ack_id,
        delivery_count=lease.delivery_count,
        lease_expires_at_ms=lease.expires_ms,
        first_delivered_ms=lease.first_delivered_ms,
    )


def _show_peeked(peeked: Peeked) -> PeekDocument:
    delivery_count = peeked.state.delivery_count
    assert delivery_count is not None, "only unsettled messages are shown"
    return PeekDocument(
        **message_fields(peeked.message),
        state=peeked.state.state,
        delivery_count=delivery_count,
        due_ms=peeked.state.due_ms,
        consumer=show_consumer(peeked.state),
    )
