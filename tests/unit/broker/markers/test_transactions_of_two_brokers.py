"""Transactions whose coordinator and partitions are on different brokers."""

from collections.abc import AsyncIterator

import pytest

from conveyor.broker.broker_node import BrokerNode
from conveyor.cluster.image import TRANSACTIONS_TOPIC
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.ids import TopicPartition
from tests.callers import CALLER
from tests.unit.broker.markers.producers import ID, aborted_offsets, described, initialized, is_stable, until
from tests.unit.broker.two_brokers import ONE, TWO, TwoBrokers, two_brokers

LED_BY_ONE, LED_BY_TWO = TopicPartition("t", 0), TopicPartition("t", 1)


@pytest.fixture
async def brokers() -> AsyncIterator[TwoBrokers]:
    async with two_brokers({"transactions.state_partitions": 1, "transactions.state_replication_factor": 1}) as both:
        yield both


async def coordinator(brokers: TwoBrokers) -> tuple[BrokerNode, BrokerNode]:
    """Return the coordinator of the transactional id, and the other broker."""
    node_id = (await brokers.one.coordinators.transactions.find_coordinator(CALLER, ID)).node_id
    await brokers.settled()
    return (brokers.one, brokers.two) if node_id == ONE else (brokers.two, brokers.one)


@pytest.mark.parametrize("commit", [True, False])
async def test_markers_reach_the_leaders_of_all_partitions(brokers: TwoBrokers, commit: bool) -> None:
    leads, _ = await coordinator(brokers)
    client = await initialized(leads)
    await client.add(LED_BY_ONE, LED_BY_TWO)
    for broker, place in ((brokers.one, LED_BY_ONE), (brokers.two, LED_BY_TWO)):
        assert (await client.send(broker, place)).error is None
    await client.end(commit=commit)
    for broker, place in ((brokers.one, LED_BY_ONE), (brokers.two, LED_BY_TWO)):
        partition = broker.partitions.table.find(*place)
        await until(lambda partition=partition: is_stable(partition))  # type: ignore[misc]
        assert aborted_offsets(partition) == ([] if commit else [0])


async def test_another_broker_does_not_coordinate(brokers: TwoBrokers) -> None:
    leads, follows = await coordinator(brokers)
    await initialized(leads)
    with pytest.raises(RequestError) as refused:
        await described(follows)
    assert refused.value.kind is ErrorKind.NOT_COORDINATOR


async def test_batches_are_verified_by_the_present_coordinator(brokers: TwoBrokers) -> None:
    leads, follows = await coordinator(brokers)
    client = await initialized(leads)
    place = LED_BY_ONE if follows is brokers.one else LED_BY_TWO
    await client.add(place)
    await brokers.move(TRANSACTIONS_TOPIC, 0, TWO if leads is brokers.one else ONE)
    refused = (await client.send(follows, place)).error
    assert refused is not None, "the new coordinator begins with an empty log, so it does not know the producer"
    assert refused.kind is ErrorKind.INVALID_PRODUCER_ID_MAPPING
