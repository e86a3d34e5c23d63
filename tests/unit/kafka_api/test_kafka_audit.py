"""The audit has each request of a Kafka client that is permitted or refused, by the name of its API, item by item."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from conveyor.broker.broker_node import BrokerNode
from conveyor.cluster.image import AUDIT_TOPIC
from conveyor.cluster.topic_creation import TopicRequest
from conveyor.kernel.access.acl import CLUSTER_NAME, ResourceType
from conveyor.kernel.access.declared_access import ALTER, CREATE, READ, WRITE
from tests.callers import CALLER
from tests.unit.broker.clients.audit_records import audit_of, written_records
from tests.unit.broker.parts import Storage, running_parts
from tests.unit.kafka_api.client import MemoryClient
from tests.unit.kafka_api.requests import CREATE_TOPICS, FETCH, METADATA, PRODUCE, fetch, response
from tests.unit.kafka_api.test_access import SETTINGS, allow, client_of, produced

HEARTBEAT, LIST_GROUPS, DELETE_TOPICS, INIT_PRODUCER, CREATE_ACLS = 12, 16, 20, 22, 30
INCREMENTAL_ALTER, CONSUMER_HEARTBEAT, DESCRIBE_TOPIC_PARTITIONS = 44, 68, 75
TOPIC, CLUSTER = ResourceType.TOPIC, ResourceType.CLUSTER


@pytest.fixture
async def broker(storage: Storage) -> AsyncIterator[BrokerNode]:
    """Yield a broker with the topics `open` and `secret`."""
    async with running_parts(SETTINGS, storage) as running:
        for name in ("open", "secret"):
            await running.topics.create(CALLER, TopicRequest(name=name))
        yield running


@pytest.fixture
def alice(broker: BrokerNode) -> MemoryClient:
    return client_of(broker, "alice")


async def shown(broker: BrokerNode, storage: Storage, decisions: int) -> set[str]:
    """Return the events in short."""
    return {
        f"{event['request']}: {event['operation']} {event['resource_type']} {event['resource']}"
        f" {'allowed' if event['allowed'] else 'denied'}"
        for event in await written_records(broker, storage.clock, decisions)
    }


async def test_each_topic_of_a_request_is_an_event(broker: BrokerNode, alice: MemoryClient, storage: Storage) -> None:
    await allow(broker, TOPIC, "open", WRITE, READ)
    await alice.ask(PRODUCE, 9, **produced("open", "secret", "missing"))
    alice.send(fetch(1, topic="open", wait_ms=0), fetch(2, topic="secret", wait_ms=0))
    await alice.next_id()
    await alice.next_id()
    assert await shown(broker, storage, audit_of(broker).waiting_count) == {
        "Produce: Write Topic open allowed", "Produce: Write Topic secret denied",
        "Produce: Write Topic missing denied", "Fetch: Read Topic open allowed", "Fetch: Read Topic secret denied",
    }  # fmt: skip


async def test_topics_that_a_right_on_the_cluster_creates_are_events(
    broker: BrokerNode, alice: MemoryClient, storage: Storage
) -> None:
    topic = {"num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
    topics = [{"name": name, **topic} for name in ("new", "newer")]
    await alice.ask(CREATE_TOPICS, 4, topics=topics, timeout=0, validate_only=False)
    await allow(broker, CLUSTER, CLUSTER_NAME, CREATE)
    await alice.ask(CREATE_TOPICS, 4, topics=topics, timeout=0, validate_only=False)
    events = await written_records(broker, storage.clock, 4)
    assert [(event["resource"], event["allowed"], event["rule"]) for event in events] == [
        ("new", False, "no ACL allows it"),
        ("newer", False, "no ACL allows it"),
        ("new", True, "Allow User:alice from * to Create Cluster kafka-cluster"),
        ("newer", True, "Allow User:alice from * to Create Cluster kafka-cluster"),
    ]


async def test_topic_that_is_created_on_demand_is_an_event(
    broker: BrokerNode, alice: MemoryClient, storage: Storage
) -> None:
    await allow(broker, TOPIC, "mine", WRITE, CREATE)
    for name in ("mine", "yours"):
        await alice.ask(METADATA, 4, topics=[{"name": name}], allow_auto_topic_creation=True)
    await client_of(broker, "root").ask(METADATA, 4, topics=[{"name": "roots"}], allow_auto_topic_creation=True)
    assert await shown(broker, storage, 5) == {
        "Metadata: Describe Topic mine allowed", "Metadata: Create Topic mine allowed",
        "Metadata: Describe Topic yours denied", "Metadata: Describe Topic roots allowed",
        "Metadata: Create Topic roots allowed",
    }  # fmt: skip


async def test_lists_make_no_events(broker: BrokerNode, alice: MemoryClient) -> None:
    wanted = {"include_cluster_authorized_operations": True, "include_topic_authorized_operations": True}
    await alice.ask(METADATA, 8, topics=None, allow_auto_topic_creation=False, **wanted)
    await alice.ask(LIST_GROUPS, 4, states_filter=[])
    await alice.ask(DESCRIBE_TOPIC_PARTITIONS, 0, topics=[], response_partition_limit=10, cursor=None)
    assert audit_of(broker).waiting_count == 0


@pytest.mark.parametrize(
    ("api_key", "version", "values", "event"),
    [
        (DELETE_TOPICS, 4, {"topic_names": ["secret"], "timeout": 0}, "DeleteTopics: Delete Topic secret"),
        (
            HEARTBEAT,
            3,
            {"group_id": "g", "generation_id": 1, "member_id": "m", "group_instance_id": None},
            "Heartbeat: Read Group g",
        ),
        (
            INIT_PRODUCER,
            4,
            {"transactional_id": None, "transaction_timeout": 0, "producer_id": -1, "producer_epoch": -1},
            "InitProducerId: IdempotentWrite Cluster kafka-cluster",
        ),
        (CREATE_ACLS, 2, {"creations": []}, "CreateAcls: Alter Cluster kafka-cluster"),
        (
            INCREMENTAL_ALTER,
            0,
            {
                "resources": [{"resource_type": 4, "resource_name": "1", "configs": []}],
                "validate_only": True,
            },
            "IncrementalAlterConfigs: AlterConfigs Cluster kafka-cluster",
        ),
        (
            DESCRIBE_TOPIC_PARTITIONS,
            0,
            {"topics": [{"name": "secret"}], "response_partition_limit": 10, "cursor": None},
            "DescribeTopicPartitions: Describe Topic secret",
        ),
    ],
)
async def test_requests_of_all_kinds_are_events_whether_refused_or_not(
    broker: BrokerNode,
    alice: MemoryClient,
    storage: Storage,
    api_key: int,
    version: int,
    values: dict[str, Any],
    event: str,
) -> None:
    await alice.ask(api_key, version, **values)
    await client_of(broker, "root").ask(api_key, version, **values)
    assert await shown(broker, storage, 2) == {f"{event} denied", f"{event} allowed"}


async def test_administrators_of_the_cluster_are_audited_every_time(
    broker: BrokerNode, alice: MemoryClient, storage: Storage
) -> None:
    await allow(broker, CLUSTER, CLUSTER_NAME, ALTER)
    for _ in range(3):
        await alice.ask(CREATE_ACLS, 2, creations=[])
    assert len(await written_records(broker, storage.clock, 3)) == 3


async def test_who_may_read_the_topic_reads_it(broker: BrokerNode, alice: MemoryClient, storage: Storage) -> None:
    await alice.ask(PRODUCE, 9, **produced("secret"))
    await written_records(broker, storage.clock, 1)
    alice.send(fetch(1, topic=AUDIT_TOPIC, wait_ms=0))
    [topic] = response(FETCH, 4, await alice.answers.get()).responses
    assert topic.partitions[0].error_code is ErrorCode.topic_authorization_failed
    await allow(broker, TOPIC, AUDIT_TOPIC, READ, WRITE)
    alice.send(fetch(2, topic=AUDIT_TOPIC, wait_ms=0))
    [topic] = response(FETCH, 4, await alice.answers.get()).responses
    assert b'"resource":"secret"' in topic.partitions[0].records
    [refused] = (await alice.ask(PRODUCE, 9, **produced(AUDIT_TOPIC))).responses
    assert refused.partition_responses[0].error_code is ErrorCode.invalid_topic_exception


async def test_a_pattern_is_shown_by_its_prefix(broker: BrokerNode, alice: MemoryClient, storage: Storage) -> None:
    beat = {"group_id": "g", "member_id": "m", "member_epoch": 0, "rebalance_timeout": 60_000, "topic_partitions": []}
    await allow(broker, ResourceType.GROUP, "g", READ)
    await alice.ask(CONSUMER_HEARTBEAT, 1, **beat, subscribed_topic_names=[], subscribed_topic_regex="sec.*")
    assert await shown(broker, storage, 2) == {
        "ConsumerGroupHeartbeat: Read Group g allowed", "ConsumerGroupHeartbeat: Describe Topic sec* denied",
    }  # fmt: skip
