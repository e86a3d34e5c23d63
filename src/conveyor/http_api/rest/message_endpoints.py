"""Messages of a topic: browse, show one, show its state in each subscription, cancel a delayed one."""

from functools import partial
from operator import itemgetter
from typing import Annotated

from msgspec import Meta, Struct, field

from conveyor.cluster.quotas import CONSUMER_BYTE_RATE
from conveyor.http.endpoints.endpoint import Endpoint, NoQuery
from conveyor.http_api.http_call import HttpCall
from conveyor.http_api.requests.times_and_positions import BrowseStart
from conveyor.http_api.rest.message_document import (
    ConsumerDocument,
    MessageDocument,
    MessageStateName,
    show_consumer,
    show_message,
)
from conveyor.kernel.access.acl import ResourceType
from conveyor.kernel.access.declared_access import DELETE, DESCRIBE, READ, group, topic
from conveyor.queues.subscription.policy import StartPosition

_MAX_LOOKED_AT = 1000


class BrowseQuery(Struct, forbid_unknown_fields=True):
    """from: where to start; default earliest. partition: default all."""

    position: BrowseStart | None = field(default=None, name="from")
    partition: Annotated[int, Meta(ge=0, le=100_000)] | None = None
    limit: Annotated[int, Meta(ge=1, le=_MAX_LOOKED_AT)] = 100


class MessageList(Struct):
    """Messages, sorted by partition and offset."""

    messages: list[MessageDocument]


class MessageStateDocument(Struct):
    """The state of a message in one subscription. Times are in ms since 1970. due_ms: the time at which the state ends
    by itself. consumer: the client that holds its lease; null if nobody does. settled_ms: when the message was settled.
    delivery_count and settled_ms of a settled message are null unless its settlement is among the last 256 of the
    subscription in the partition.
    """

    state: MessageStateName
    delivery_count: int | None
    due_ms: int | None
    consumer: ConsumerDocument | None
    settled_ms: int | None


class MessageStates(Struct):
    """The state of a message in each subscription."""

    message_id: str
    subscriptions: dict[str, MessageStateDocument]


async def browse_messages(call: HttpCall[BrowseQuery, None]) -> MessageList:
    """Show messages of a topic without leasing them."""
    query = call.query
    position = StartPosition(kind="earliest") if query.position is None else query.position.place
    messages = await call.broker.fetch.browser.browse(
        call.caller, call.names["topic"], query.partition, position, query.limit
    )
    if call.exchange.meter is not None:
        call.count_shown(messages)
    weight_bytes = sum(message.weight_bytes for message in messages)
    return await call.show(weight_bytes, lambda: MessageList(list(map(show_message, messages))))


async def show_one_message(call: HttpCall[NoQuery, None]) -> MessageDocument:
    """Show a message."""
    message = await call.broker.fetch.browser.get(call.caller, call.names["topic"], call.names["message_id"])
    if call.exchange.meter is not None:
        call.count_shown([message])
    return await call.show(message.weight_bytes, partial(show_message, message))


async def show_message_states(call: HttpCall[NoQuery, None]) -> MessageStates:
    """Show the state of a message in each subscription."""
    topic, message_id = call.names["topic"], call.names["message_id"]
    await call.broker.fetch.browser.get(call.caller, topic, message_id)
    states = await call.broker.queues.inspection.message_states(call.caller, topic, message_id)
    permitted = await call.permitted(DESCRIBE, ResourceType.GROUP, states.items(), name_of=itemgetter(0))
    shown = {
        name: MessageStateDocument(
            state.state, state.delivery_count, state.due_ms, show_consumer(state), state.settled_ms
        )
        for name, state in permitted
    }
    return MessageStates(message_id, shown)


async def cancel_message(call: HttpCall[NoQuery, None]) -> None:
    """Cancel a delayed message before it is due: it is never delivered."""
    await call.broker.queues.delayed_messages.cancel(call.caller, call.names["topic"], call.names["message_id"])


_PATH = "/topics/{topic}/messages"
_ONE = f"{_PATH}/{{message_id}}"

ENDPOINTS = (
    Endpoint(
        method="GET",
        path=_PATH,
        needs=(topic(READ, "topic"),),
        function=browse_messages,
        problems=(416,),
        quotas=(CONSUMER_BYTE_RATE,),
    ),
    Endpoint(
        method="GET",
        path=_ONE,
        needs=(topic(READ, "topic"),),
        function=show_one_message,
        quotas=(CONSUMER_BYTE_RATE,),
    ),
    Endpoint(
        method="DELETE",
        path=_ONE,
        needs=(topic(DELETE, "topic"),),
        function=cancel_message,
        status=204,
        problems=(409,),
    ),
    Endpoint(
        method="GET", path=f"{_ONE}/ack", needs=(topic(READ, "topic"), group(DESCRIBE)), function=show_message_states
    ),
)
