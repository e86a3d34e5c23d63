"""A subscription whose creation cannot reach all partitions: others may use it by then."""

import pytest

from conveyor.broker.broker_node import BrokerNode
from conveyor.broker.produce.outgoing_message import OutgoingMessage
from conveyor.broker.queues.queue_calls import QueueCalls
from conveyor.cluster.topic_creation import TopicRequest
from conveyor.kernel.access.caller import Caller
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.queues.subscription.policy import StartPosition, Subscription
from tests.callers import CALLER

LATEST = StartPosition(kind="latest")


async def test_subscription_stays_and_is_begun_by_the_next_creation(
    broker: BrokerNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    await broker.topics.create(CALLER, TopicRequest(name="three", partitions=3))
    begin = QueueCalls.begin

    async def begin_but_in_the_last(calls: QueueCalls, caller: Caller, subscription: Subscription, number: int) -> None:
        if number == 2:
            raise RequestError(ErrorKind.PARTITION_OFFLINE, "its leader cannot be reached")
        await begin(calls, caller, subscription, number)

    monkeypatch.setattr(QueueCalls, "begin", begin_but_in_the_last)
    for _ in range(2):
        with pytest.raises(
            RequestError, match="'s' exists, and has not begun in all partitions yet: its lead"
        ) as error:
            await broker.queues.lifecycle.create(CALLER, "three", "s", LATEST, {})
        assert error.value.kind is ErrorKind.PARTITION_OFFLINE
    monkeypatch.setattr(QueueCalls, "begin", begin)
    with pytest.raises(RequestError) as error:
        await broker.queues.lifecycle.create(CALLER, "three", "s", LATEST, {})
    assert error.value.kind is ErrorKind.SUBSCRIPTION_ALREADY_EXISTS
    await broker.produce.messages.publish(CALLER, "three", [OutgoingMessage(value=b"m")] * 9)
    leases = await broker.queues.leases.lease(CALLER, "s", 9, 0, None)
    assert len(leases) == 9, "all messages from the answer on"
