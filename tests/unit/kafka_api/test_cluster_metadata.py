"""Brokers, leaders and replicas in the responses of a broker that is one of three."""

from typing import Any

import pytest
from msgspec.structs import replace

from conveyor.broker.topics.shown_brokers import SHOWN_AFTER_DEATH_MS
from conveyor.cluster.image import NO_LEADER
from conveyor.cluster.topic_creation import TopicRequest
from conveyor.kernel.ids import LeaderEpoch, NodeId
from tests.callers import CALLER
from tests.unit.broker.other_brokers import join, join_two, other_broker, put_partition
from tests.unit.broker.parts import Storage, publish
from tests.unit.cluster.controller.clusters import partition as assigned
from tests.unit.kafka_api.client import MemoryClient
from tests.unit.kafka_api.requests import METADATA
from tests.unit.replication.parts import led

DESCRIBE_CLUSTER, DESCRIBE_TOPICS = 60, 75
LEADER_NOT_AVAILABLE = 5


@pytest.fixture
async def client(client: MemoryClient) -> MemoryClient:
    """Yield a client of a broker that is one of three, with topic `t` on all of them."""
    await join_two(client.broker)
    await put_partition(client.broker, "t", 0, assigned((2, 1, 3)))
    return client


async def metadata(client: MemoryClient, version: int = 12) -> Any:
    operations = dict.fromkeys(("include_cluster_authorized_operations", "include_topic_authorized_operations"), False)
    return await client.ask(METADATA, version, topics=None, allow_auto_topic_creation=False, **operations)


async def described(client: MemoryClient) -> Any:
    answer = await client.ask(DESCRIBE_TOPICS, 0, topics=[{"name": "t"}], response_partition_limit=10, cursor=None)
    return answer.topics[0].partitions[0]


async def brokers(client: MemoryClient, *, with_fenced: bool) -> list[tuple[int, bool]]:
    answer = await client.ask(
        DESCRIBE_CLUSTER,
        2,
        include_cluster_authorized_operations=False,
        endpoint_type=1,
        include_fenced_brokers=with_fenced,
    )
    return [(broker.broker_id, broker.is_fenced) for broker in answer.brokers]


async def test_metadata_lists_all_brokers(client: MemoryClient) -> None:
    answer = await metadata(client)
    assert [(node.node_id, node.host, node.rack) for node in answer.brokers] == [
        (1, "broker.example", None),
        (2, "broker2.example", "r2"),
        (3, "broker3.example", "r2"),
    ]
    [partition] = answer.topics[0].partitions
    assert (partition.leader_id, partition.leader_epoch, int(partition.error_code)) == (2, 5, 0)
    assert (partition.replica_nodes, partition.isr_nodes, partition.offline_replicas) == ((2, 1, 3), (2, 1, 3), ())


async def test_metadata_lists_no_fenced_brokers_but_their_replicas_as_offline(
    client: MemoryClient, storage: Storage
) -> None:
    await join(client.broker, other_broker(3, is_fenced=True))
    storage.clock.advance(ms=SHOWN_AFTER_DEATH_MS)
    answer = await metadata(client)
    assert [node.node_id for node in answer.brokers] == [1, 2]
    [partition] = answer.topics[0].partitions
    assert (partition.replica_nodes, partition.offline_replicas) == ((2, 1, 3), (3,))
    assert (await described(client)).offline_replicas == (3,)


async def test_metadata_lists_a_broker_for_some_time_after_its_death(client: MemoryClient, storage: Storage) -> None:
    await join(client.broker, other_broker(3, is_fenced=True))
    storage.clock.advance(ms=SHOWN_AFTER_DEATH_MS - 1)
    answer = await metadata(client)
    assert [node.node_id for node in answer.brokers] == [1, 2, 3]
    assert answer.topics[0].partitions[0].offline_replicas == (3,)
    storage.clock.advance(ms=1)
    assert [node.node_id for node in (await metadata(client)).brokers] == [1, 2]


async def test_metadata_lists_no_broker_that_was_stopped(client: MemoryClient) -> None:
    await join(client.broker, other_broker(3, is_stopping=True))
    await join(client.broker, other_broker(3, is_fenced=True))
    assert [node.node_id for node in (await metadata(client)).brokers] == [1, 2]


async def test_metadata_lists_a_broker_that_has_come_back(client: MemoryClient, storage: Storage) -> None:
    await join(client.broker, other_broker(3, is_fenced=True))
    await join(client.broker, other_broker(3))
    storage.clock.advance(ms=SHOWN_AFTER_DEATH_MS)
    assert [node.node_id for node in (await metadata(client)).brokers] == [1, 2, 3]


async def test_the_controller_is_a_live_broker(client: MemoryClient) -> None:
    image = await join(client.broker, other_broker(0, is_fenced=True))
    assert image.controller_id == 1
    assert (await metadata(client)).controller_id == 1
    assert (await join(client.broker, other_broker(0))).controller_id == 0


async def test_a_partition_without_a_leader_is_not_available(client: MemoryClient) -> None:
    leaderless = assigned((2, 3, 1), (2,), NO_LEADER, elr=(3,), last_known_leader=NodeId(2))
    await put_partition(client.broker, "t", 0, leaderless)
    [partition] = (await metadata(client)).topics[0].partitions
    assert (partition.leader_id, int(partition.error_code)) == (-1, LEADER_NOT_AVAILABLE)
    assert partition.isr_nodes == (2,)
    shown = await described(client)
    assert (shown.leader_id, int(shown.error_code)) == (-1, 0)
    assert (shown.eligible_leader_replicas, shown.last_known_elr) == ((3,), (2,))


async def test_a_partition_with_a_leader_has_no_last_known_one(client: MemoryClient) -> None:
    shown = await described(client)
    assert (shown.leader_id, shown.eligible_leader_replicas, shown.last_known_elr) == (2, (), ())


async def test_this_brokers_failed_replica_is_offline_and_the_leader_elsewhere_is_shown(
    client: MemoryClient, storage: Storage
) -> None:
    await client.broker.topics.create(CALLER, TopicRequest(name="p"))
    storage.disk.faults.fail("append")
    await publish(client.broker, ("p", 0))
    storage.disk.faults.heal()
    await put_partition(client.broker, "p", 0, assigned((2, 1, 3)))
    [partition] = next(topic for topic in (await metadata(client)).topics if topic.name == "p").partitions
    assert (partition.leader_id, partition.offline_replicas) == (2, (1,))


async def test_a_leader_that_has_resigned_shows_no_leader(client: MemoryClient) -> None:
    await put_partition(client.broker, "t", 0, replace(assigned((1, 2, 3)), leader_epoch=LeaderEpoch(6)))
    client.broker.partitions.table.find("t", 0).assume(led(client.broker.partitions.table.find("t", 0)).role.resigned())
    [partition] = (await metadata(client)).topics[0].partitions
    assert (partition.leader_id, int(partition.error_code)) == (-1, LEADER_NOT_AVAILABLE)


async def test_fenced_brokers_are_described_on_request(client: MemoryClient) -> None:
    await join(client.broker, other_broker(3, is_fenced=True))
    assert await brokers(client, with_fenced=False) == [(1, False), (2, False)]
    assert await brokers(client, with_fenced=True) == [(1, False), (2, False), (3, True)]
