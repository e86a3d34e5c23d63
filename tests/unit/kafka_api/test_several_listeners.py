"""Each client is told the addresses of the listener that it has dialled, of all brokers that have one of its name."""

from typing import Any

import pytest

from conveyor.cluster.image import OFFSETS_TOPIC, BrokerEndpoint
from conveyor.cluster.topic_creation import TopicRequest
from tests.callers import CALLER
from tests.unit.broker.other_brokers import join, other_broker, put_partition
from tests.unit.cluster.controller.clusters import partition as assigned
from tests.unit.kafka_api.client import MemoryClient
from tests.unit.kafka_api.requests import FIND_COORDINATOR, METADATA

DESCRIBE_CLUSTER, DESCRIBE_TOPICS = 60, 75
LEADER_NOT_AVAILABLE, COORDINATOR_NOT_AVAILABLE, LISTENER_NOT_FOUND = 5, 15, 72
INSIDE = BrokerEndpoint("broker2.example", 9092)
OUTSIDE = BrokerEndpoint("outside.example", 443)


@pytest.fixture
async def client(client: MemoryClient) -> MemoryClient:
    """Yield a client of the listener OUT. Broker 2 has it; broker 1 has PLAINTEXT alone; 3 is of an older build."""
    await join(client.broker, other_broker(2, listeners={"PLAINTEXT": INSIDE, "OUT": OUTSIDE}), other_broker(3))
    await put_partition(client.broker, "t", 0, assigned((2, 1, 3)))
    await client.broker.topics.create(CALLER, TopicRequest(name="inside"))
    await put_partition(client.broker, "inside", 0, assigned((1, 2, 3)))
    return MemoryClient(client.broker, "OUT")


async def metadata(client: MemoryClient, topic: str, version: int = 12) -> Any:
    values: dict[str, Any] = {"allow_auto_topic_creation": False, "topics": [{"name": topic, "topic_id": None}]}
    operations = dict.fromkeys(("include_cluster_authorized_operations", "include_topic_authorized_operations"), False)
    return await client.ask(METADATA, version, **values, **operations)


async def test_brokers_without_the_listener_are_not_shown(client: MemoryClient) -> None:
    places = [(2, "outside.example", 443), (3, "broker3.example", 9092)]
    answer = await metadata(client, "t")
    assert [(node.node_id, node.host, node.port) for node in answer.brokers] == places
    assert answer.topics[0].partitions[0].leader_id == 2
    cluster = await client.ask(
        DESCRIBE_CLUSTER, 2, include_cluster_authorized_operations=False, endpoint_type=1, include_fenced_brokers=True
    )
    assert [(broker.broker_id, broker.host, broker.port) for broker in cluster.brokers] == places
    inside = await metadata(MemoryClient(client.broker), "t")
    assert [(node.node_id, node.host) for node in inside.brokers] == [
        (1, "broker.example"), (2, "broker2.example"), (3, "broker3.example"),
    ]  # fmt: skip


@pytest.mark.parametrize(("version", "code"), [(5, LEADER_NOT_AVAILABLE), (6, LISTENER_NOT_FOUND)])
async def test_leader_without_the_listener_is_none(client: MemoryClient, version: int, code: int) -> None:
    partition = (await metadata(client, "inside", version)).topics[0].partitions[0]
    assert (int(partition.error_code), partition.leader_id, partition.replica_nodes) == (code, -1, (1, 2, 3))
    answer = await client.ask(DESCRIBE_TOPICS, 0, topics=[{"name": "inside"}], response_partition_limit=10, cursor=None)
    assert answer.topics[0].partitions[0].leader_id == -1


async def test_coordinator_without_the_listener_is_not_available(client: MemoryClient) -> None:
    await client.ask(FIND_COORDINATOR, 4, key_type=0, coordinator_keys=("g",))
    for number in range(len(client.broker.topics.existing(OFFSETS_TOPIC).partitions)):
        await put_partition(client.broker, OFFSETS_TOPIC, number, assigned((2, 1, 3) if number % 2 else (1, 2, 3)))
    answer = await client.ask(FIND_COORDINATOR, 4, key_type=0, coordinator_keys=tuple(map(str, range(20))))
    found = {(int(each.error_code), each.host, each.port) for each in answer.coordinators}
    assert found == {(0, "outside.example", 443), (COORDINATOR_NOT_AVAILABLE, "", -1)}
    assert "broker 1, the coordinator, has no listener OUT" in {each.error_message for each in answer.coordinators}
