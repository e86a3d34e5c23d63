"""Subscriptions of topics that transactions write to: they deliver committed messages only."""

import pytest

from conveyor.broker.broker_node import BrokerNode
from conveyor.cluster.topic_creation import TopicRequest
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.ids import TopicPartition
from conveyor.queues.subscription.policy import StartPosition
from tests.callers import CALLER
from tests.unit.broker.markers.producers import PLACE, TransactionalClient, initialized, is_stable, until
from tests.unit.broker.parts import Storage, running_parts

EARLIEST = StartPosition(kind="earliest")


async def ended(broker: BrokerNode, client: TransactionalClient, *, commit: bool) -> None:
    """End the transaction, and wait for its markers."""
    await client.end(commit=commit)
    await until(lambda: is_stable(broker.partitions.table.find(*PLACE)))


async def transaction(broker: BrokerNode, client: TransactionalClient, count: int, *, commit: bool) -> None:
    """Send messages in a transaction, and end it."""
    await client.add(PLACE)
    for _ in range(count):
        assert (await client.send(broker)).error is None
    await ended(broker, client, commit=commit)


async def leased(broker: BrokerNode, wait_ms: int = 0) -> list[int]:
    """Lease all there is. Returns the offsets."""
    return [lease.message.offset for lease in await broker.queues.leases.lease(CALLER, "s", 100, wait_ms, None)]


async def unsettled(broker: BrokerNode) -> int:
    return (await broker.queues.statistics.stats(CALLER, "s")).unsettled


async def test_messages_are_delivered_when_their_transaction_is_committed(broker: BrokerNode) -> None:
    await broker.queues.lifecycle.create(CALLER, "t", "s", EARLIEST, {})
    client = await initialized(broker)
    await client.add(PLACE)
    for _ in range(2):
        assert (await client.send(broker)).error is None
    assert (await leased(broker), await unsettled(broker), await broker.queues.inspection.peek(CALLER, "s", 9)) == (
        [],
        0,
        [],
    )
    await ended(broker, client, commit=True)
    assert await unsettled(broker) == 2
    assert [peeked.message.offset for peeked in await broker.queues.inspection.peek(CALLER, "s", 9)] == [0, 1]
    assert await leased(broker, 20_000) == [0, 1]


async def test_messages_of_an_aborted_transaction_are_never_delivered(broker: BrokerNode) -> None:
    await broker.queues.lifecycle.create(CALLER, "t", "s", EARLIEST, {})
    client = await initialized(broker)
    await transaction(broker, client, 2, commit=False)
    await transaction(broker, client, 1, commit=True)
    assert await leased(broker, 20_000) == [3]
    assert await unsettled(broker) == 1


async def test_aborted_messages_are_not_found(broker: BrokerNode) -> None:
    await broker.queues.lifecycle.create(CALLER, "t", "s", EARLIEST, {})
    client = await initialized(broker)
    await client.add(PLACE)
    assert (await client.send(broker)).error is None
    for _ in range(2):  # open, then aborted
        for find in (broker.fetch.browser.get, broker.queues.inspection.message_states):
            with pytest.raises(RequestError) as refused:
                await find(CALLER, "t", "0-0")
            assert refused.value.kind is ErrorKind.UNKNOWN_MESSAGE
        assert await broker.fetch.browser.browse(CALLER, "t", 0, EARLIEST, 10) == []
        if not is_stable(broker.partitions.table.find(*PLACE)):
            await ended(broker, client, commit=False)
    await transaction(broker, client, 1, commit=True)
    assert [message.offset for message in await broker.fetch.browser.browse(CALLER, "t", 0, EARLIEST, 10)] == [2]
    assert (await broker.fetch.browser.get(CALLER, "t", "0-2")).offset == 2


async def test_a_subscription_to_the_newest_messages_gets_those_of_an_open_transaction(broker: BrokerNode) -> None:
    client = await initialized(broker)
    await client.add(PLACE)
    assert (await client.send(broker)).error is None
    await broker.queues.lifecycle.create(CALLER, "t", "s", StartPosition(kind="latest"), {})
    assert await leased(broker) == []
    await ended(broker, client, commit=True)
    assert await leased(broker, 20_000) == [0]


async def test_retention_keeps_what_was_not_delivered_yet(broker: BrokerNode) -> None:
    await broker.queues.lifecycle.create(CALLER, "t", "s", EARLIEST, {})
    client = await initialized(broker)
    await client.add(PLACE)
    assert (await client.send(broker)).error is None
    queue = broker.coordinators.queues.find(TopicPartition(*PLACE))
    assert queue is not None
    assert queue.retention_limits() == (0, 0)
    await ended(broker, client, commit=False)
    await until(lambda: queue.retention_limits().kept_offset is None)
    assert queue.retention_limits().settled_offset == 2


async def test_a_restarted_broker_delivers_the_same() -> None:
    storage = Storage()
    async with running_parts(storage=storage) as broker:
        await broker.topics.create(CALLER, TopicRequest(name="t"))
        await broker.queues.lifecycle.create(CALLER, "t", "s", EARLIEST, {})
        client = await initialized(broker)
        await transaction(broker, client, 1, commit=False)
        await transaction(broker, client, 1, commit=True)
        await client.add(PLACE)
        assert (await client.send(broker)).error is None
    async with running_parts(storage=storage) as broker:
        assert await leased(broker) == [2]
        assert await unsettled(broker) == 1
