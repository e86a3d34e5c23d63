"""Coordinators of consumer groups follow the leaders of the offsets topic."""

from collections.abc import AsyncIterator

import pytest

from conveyor.broker.broker_node import BrokerNode
from conveyor.cluster.changes import PartitionChanged
from conveyor.cluster.image import NO_LEADER, OFFSETS_TOPIC, PartitionImage
from conveyor.groups.group_commands import FetchOffsets, ListGroups
from conveyor.kernel.coordinator_partition import partition_for_key
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.ids import LeaderEpoch
from tests.callers import CALLER
from tests.unit.broker.two_brokers import ONE, TWO, TwoBrokers, two_brokers

GROUP = "readers"


@pytest.fixture
async def brokers() -> AsyncIterator[TwoBrokers]:
    async with two_brokers({"groups.offsets_partitions": 4}) as both:
        yield both


async def fetch(broker: BrokerNode) -> object:
    return await broker.coordinators.groups.ask(CALLER, FetchOffsets(group_id=GROUP, partitions=None))


async def coordinator(brokers: TwoBrokers) -> tuple[BrokerNode, BrokerNode]:
    """Return the coordinator of the group, as both brokers see it, and the other broker."""
    node_id = (await brokers.one.coordinators.groups.find_coordinator(CALLER, GROUP)).node_id
    await brokers.settled()
    assert (await brokers.two.coordinators.groups.find_coordinator(CALLER, GROUP)).node_id == node_id
    return (brokers.one, brokers.two) if node_id == ONE else (brokers.two, brokers.one)


async def test_only_the_leader_coordinates_a_group(brokers: TwoBrokers) -> None:
    leads, follows = await coordinator(brokers)
    await fetch(leads)
    with pytest.raises(RequestError, match="is led by broker") as refused:
        await fetch(follows)
    assert refused.value.kind is ErrorKind.NOT_COORDINATOR
    assert await follows.coordinators.groups.list_groups(CALLER, ListGroups()) == []


async def test_coordinator_moves_with_the_leadership(brokers: TwoBrokers) -> None:
    leads, follows = await coordinator(brokers)
    await fetch(leads)
    number = partition_for_key(GROUP, 4)
    await brokers.move(OFFSETS_TOPIC, number, TWO if leads is brokers.one else ONE)
    with pytest.raises(RequestError) as refused:
        await fetch(leads)
    assert refused.value.kind is ErrorKind.NOT_COORDINATOR
    await fetch(follows)
    assert (await coordinator(brokers))[0] is follows


async def test_group_without_a_leader_has_no_coordinator(brokers: TwoBrokers) -> None:
    await coordinator(brokers)
    number = partition_for_key(GROUP, 4)
    before = brokers.one.metadata.image.topics[OFFSETS_TOPIC].partitions[number]
    epoch = LeaderEpoch(before.leader_epoch + 1)
    state = PartitionImage(NO_LEADER, epoch, before.replicas, before.isr, before.partition_epoch + 1)
    change = PartitionChanged(topic=OFFSETS_TOPIC, partition=number, state=state)
    await brokers.one.metadata.propose(lambda _: [change])
    with pytest.raises(RequestError, match="no broker leads") as refused:
        await brokers.two.coordinators.groups.find_coordinator(CALLER, GROUP)
    assert refused.value.kind is ErrorKind.COORDINATOR_NOT_AVAILABLE
