"""Lists of messages that are not due: those that a subscription withholds, and the records of a delayed topic."""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from conveyor.broker.queues.scheduled_messages import ScheduledMessage, SchedulePage
from conveyor.http.endpoints.endpoint import Endpoint
from conveyor.http_api.http_call import HttpCall
from conveyor.http_api.rest.subscription_endpoints import subscription_of
from conveyor.kernel.access.declared_access import DESCRIBE, READ, group, topic
from conveyor.records.message import format_message_id


class ScheduledQuery(Struct, forbid_unknown_fields=True):
    """after: `next` of the previous page."""

    limit: Annotated[int, Meta(ge=1, le=1000)] = 100
    after: Annotated[str, Meta(max_length=60)] | None = None


class ScheduledMessageDocument(Struct):
    """A message that is not due. due_ms: when it is, in ms since 1970. reason: delay if its publisher has delayed it,
    backoff if it waits for its next delivery after a failed one. delivery_count: its failed deliveries.
    """

    message_id: str
    partition: int
    offset: int
    due_ms: int
    reason: Literal["delay", "backoff"]
    delivery_count: int


class ScheduledMessageList(Struct):
    """Messages, sorted by due time, partition and offset. next: `after` of the next page; null after the last one.

    complete: false while the broker reads messages that it may have to add, as after a restart.
    """

    messages: list[ScheduledMessageDocument]
    next: str | None
    complete: bool


async def list_scheduled_messages(call: HttpCall[ScheduledQuery, None]) -> ScheduledMessageList:
    """List the messages that a subscription withholds until they are due."""
    page = await call.broker.queues.scheduled.of_subscription(
        call.caller, subscription_of(call).name, call.query.after, call.query.limit
    )
    call.check_again(_SUBSCRIPTION)
    return _show(page)


async def list_delayed_records(call: HttpCall[ScheduledQuery, None]) -> ScheduledMessageList:
    """List the records of a delayed topic that are not due yet."""
    page = await call.broker.queues.scheduled.of_topic(
        call.caller, call.names["topic"], call.query.after, call.query.limit
    )
    call.check_again(_TOPIC)
    return _show(page)


_SUBSCRIPTION = (group(DESCRIBE, "subscription"), topic(READ, "subscription.topic"))
_TOPIC = (topic(READ, "topic"),)

ENDPOINTS = (
    Endpoint(
        method="GET",
        path="/subscriptions/{subscription}/scheduled",
        needs=_SUBSCRIPTION,
        function=list_scheduled_messages,
    ),
    Endpoint(method="GET", path="/topics/{topic}/scheduled", needs=_TOPIC, function=list_delayed_records),
)


def _show(page: SchedulePage) -> ScheduledMessageList:
    return ScheduledMessageList(list(map(_document, page.messages)), page.next, page.is_complete)


def _document(message: ScheduledMessage) -> ScheduledMessageDocument:
    return ScheduledMessageDocument(
        message_id=format_message_id(message.partition, message.offset),
        partition=message.partition,
        offset=message.offset,
        due_ms=message.due_ms,
        reason=message.reason,
        delivery_count=message.delivery_count,
    )
