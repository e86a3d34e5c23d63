"""FindCoordinator of a broker that is one of three: the leader of the group's partition coordinates the group."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from conveyor.cluster.image import NO_LEADER, OFFSETS_TOPIC
from tests.unit.broker.other_brokers import join_two, put_partition
from tests.unit.broker.parts import Storage, running_parts
from tests.unit.cluster.controller.clusters import partition as assigned
from tests.unit.kafka_api.client import MemoryClient
from tests.unit.kafka_api.requests import FIND_COORDINATOR

COORDINATOR_NOT_AVAILABLE = 15


@pytest.fixture
async def client(storage: Storage) -> AsyncIterator[MemoryClient]:
    settings = {"groups.offsets_partitions": 1, "broker.metadata": "zookeeper://zk:2181"}
    async with running_parts(settings, storage) as broker:
        yield MemoryClient(broker)


async def coordinator(client: MemoryClient) -> Any:
    return (await client.ask(FIND_COORDINATOR, 4, key_type=0, coordinator_keys=("g",))).coordinators[0]


async def test_there_is_no_coordinator_before_there_are_enough_brokers(client: MemoryClient) -> None:
    refused = await coordinator(client)
    assert (int(refused.error_code), refused.node_id) == (COORDINATOR_NOT_AVAILABLE, -1)
    assert "groups.offsets_replication_factor" in refused.error_message
    await join_two(client.broker)
    found = await coordinator(client)
    assert (int(found.error_code), found.node_id, found.host) == (0, 1, "broker.example")
    assert len(client.broker.topics.existing(OFFSETS_TOPIC).partitions[0].isr) == 3


async def test_the_coordinator_is_the_leader(client: MemoryClient) -> None:
    await join_two(client.broker)
    await coordinator(client)
    await put_partition(client.broker, OFFSETS_TOPIC, 0, assigned((2, 1, 3)))
    found = await coordinator(client)
    assert (int(found.error_code), found.node_id, found.host) == (0, 2, "broker2.example")
    await put_partition(client.broker, OFFSETS_TOPIC, 0, assigned((2, 1, 3), (2,), NO_LEADER, leader_epoch=6))
    assert int((await coordinator(client)).error_code) == COORDINATOR_NOT_AVAILABLE
