"""Messages that the broker's tests publish."""

from conveyor.broker.broker_node import BrokerNode
from conveyor.broker.produce.outgoing_message import OutgoingMessage, PublishedMessage
from tests.callers import CALLER


def message(value: bytes | None = b"value", **fields: object) -> OutgoingMessage:
    return OutgoingMessage(value=value, **fields)  # type: ignore[arg-type]


async def put(broker: BrokerNode, *messages: OutgoingMessage, topic: str = "t") -> list[PublishedMessage]:
    """Publish messages. All of them must be accepted."""
    results = await broker.produce.messages.publish(CALLER, topic, messages)
    published = [result for result in results if isinstance(result, PublishedMessage)]
    assert len(published) == len(results)
    return published
