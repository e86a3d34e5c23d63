"""The cost of work for one subscription does not depend on the number of others. The test counts calls, not time."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from conveyor.broker.broker_node import BrokerNode
from conveyor.broker.produce.outgoing_message import OutgoingMessage
from conveyor.cluster.topic_creation import TopicRequest
from conveyor.queues.subscription.policy import StartPosition
from tests.callers import CALLER, answer_of
from tests.unit.broker.parts import Storage, calls_of, running_parts

pytestmark = pytest.mark.slow

EARLIEST = StartPosition(kind="earliest")
FEW, MANY = 10, 400
TOLERATED = 1.2


@pytest.fixture
async def broker(storage: Storage) -> AsyncIterator[BrokerNode]:
    """A broker with a topic of two partitions, and a topic of one partition for other subscriptions."""
    async with running_parts(storage=storage) as running:
        await running.topics.create(CALLER, TopicRequest(name="t", partitions=2))
        await running.topics.create(CALLER, TopicRequest(name="other", partitions=1))
        yield running


async def subscribe(broker: BrokerNode, start: int, end: int) -> None:
    for number in range(start, end):
        await broker.queues.lifecycle.create(CALLER, "t", f"s-{number}", EARLIEST, {})
        await broker.queues.lifecycle.create(CALLER, "other", f"other-{number}", EARLIEST, {})


async def life(broker: BrokerNode, name: str) -> None:
    """Create, change, use and delete a subscription."""
    await broker.queues.lifecycle.create(CALLER, "t", name, EARLIEST, {})
    await broker.queues.lifecycle.change(CALLER, name, {"max_deliveries": 3})
    first, second = await broker.queues.leases.lease(CALLER, name, 2, 0, None)
    assert await answer_of(broker.queues.settlements.ack, CALLER, name, [first.ack_id]) == [None]
    assert await answer_of(broker.queues.settlements.nack, CALLER, name, [second.ack_id], 1_000) == [None]
    await broker.queues.statistics.stats(CALLER, name)
    await broker.queues.lifecycle.delete(CALLER, name)


async def cheapest_life(broker: BrokerNode) -> int:
    """Return the lowest cost of several runs, because one run may include a flush of another partition."""
    return min([await calls_of(life(broker, f"life-{number}")) for number in range(5)])


async def test_a_subscription_costs_the_same_however_many_others_there_are(broker: BrokerNode) -> None:
    await broker.produce.messages.publish(
        CALLER, "t", [OutgoingMessage(b"payload", partition=number) for number in (0, 1)]
    )
    await subscribe(broker, 0, FEW)
    few = await cheapest_life(broker)
    await subscribe(broker, FEW, MANY)
    many = await cheapest_life(broker)
    assert many < TOLERATED * few


async def test_requests_that_wait_cost_the_commands_of_others_nothing(broker: BrokerNode) -> None:
    await broker.produce.messages.publish(
        CALLER, "t", [OutgoingMessage(b"payload", partition=number) for number in (0, 1)]
    )
    await subscribe(broker, 0, FEW)
    few = await cheapest_life(broker)
    await subscribe(broker, FEW, MANY)
    for number in range(MANY):
        await broker.queues.lifecycle.purge(CALLER, f"s-{number}")
    waiting = [
        asyncio.ensure_future(broker.queues.leases.lease(CALLER, f"s-{number}", 1, 20_000, None))
        for number in range(MANY)
    ]
    await asyncio.sleep(0)
    many = await cheapest_life(broker)
    assert many < TOLERATED * few
    broker.queues.leases.stop()
    assert await asyncio.gather(*waiting) == [[]] * MANY


async def test_a_message_costs_the_same_however_many_partitions_have_one(broker: BrokerNode) -> None:
    costs = []
    for topic, partitions in (("narrow", FEW), ("wide", MANY)):
        await broker.topics.create(CALLER, TopicRequest(name=topic, partitions=partitions))
        await broker.queues.lifecycle.create(CALLER, topic, f"of-{topic}", EARLIEST, {})
        await broker.produce.messages.publish(
            CALLER, topic, [OutgoingMessage(b"payload", partition=number) for number in range(partitions)]
        )
        leased = broker.queues.leases.lease(CALLER, f"of-{topic}", partitions, 0, None)
        costs.append(await calls_of(leased) / partitions)
    assert costs[1] < TOLERATED * costs[0]
