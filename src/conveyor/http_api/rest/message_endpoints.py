"""Messages in a topic: looked at without a lease, their state in each subscription, taken back while delayed."""

from typing import Annotated

from msgspec import Meta, Struct, field

from conveyor.http_api.engine.endpoint import Call, Endpoint, NoQuery
from conveyor.http_api.requests.start_position import Position
from conveyor.http_api.rest.message_document import MessageDocument, MessageStateName, show_message
from conveyor.queues.subscription.policy import Start

_MAX_LOOKED_AT = 1000


class BrowseQuery(Struct, forbid_unknown_fields=True):
    """from: where to begin; earliest if it does not say. partition: all of them if it does not say."""

    position: Position | None = field(default=None, name="from")
    partition: Annotated[int, Meta(ge=0, le=100_000)] | None = None
    limit: Annotated[int, Meta(ge=1, le=_MAX_LOOKED_AT)] = 100


class MessageList(Struct):
    """Messages, by partition and offset."""

    messages: list[MessageDocument]


class MessageStateDocument(Struct):
    """What became of a message in one subscription. due_ms: when that ends by itself, in ms since 1970."""

    state: MessageStateName
    delivery_count: int
    due_ms: int | None


class MessageStates(Struct):
    """What became of a message, by subscription."""

    message_id: str
    subscriptions: dict[str, MessageStateDocument]


async def browse_messages(call: Call[BrowseQuery, None]) -> MessageList:
    """Look at a topic's messages. Nothing is leased, nothing changes."""
    query = call.query
    position = Start(kind="earliest") if query.position is None else query.position.place
    found = await call.broker.messages.browse(call.names["topic"], query.partition, position, query.limit)
    return MessageList([show_message(each) for each in found])


async def show_one_message(call: Call[NoQuery, None]) -> MessageDocument:
    """Show a message."""
    return show_message(await call.broker.messages.get(call.names["topic"], call.names["message_id"]))


async def show_message_states(call: Call[NoQuery, None]) -> MessageStates:
    """Tell what became of a message in each subscription."""
    topic, message_id = call.names["topic"], call.names["message_id"]
    await call.broker.messages.get(topic, message_id)
    states = await call.broker.queues.message_states(topic, message_id)
    shown = {name: MessageStateDocument(each.state, each.delivery_count, each.due_ms) for name, each in states.items()}
    return MessageStates(message_id, shown)


async def cancel_message(call: Call[NoQuery, None]) -> None:
    """Take a delayed message back, before it is due: nobody is given it."""
    await call.broker.queues.cancel(call.names["topic"], call.names["message_id"])


_PATH = "/topics/{topic}/messages"
_ONE = f"{_PATH}/{{message_id}}"

ENDPOINTS = (
    Endpoint(method="GET", path=_PATH, function=browse_messages, problems=(416,)),
    Endpoint(method="GET", path=_ONE, function=show_one_message),
    Endpoint(method="DELETE", path=_ONE, function=cancel_message, status=204, problems=(409,)),
    Endpoint(method="GET", path=f"{_ONE}/ack", function=show_message_states),
)
