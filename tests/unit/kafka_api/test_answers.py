"""The responses of each API to valid requests and to requests that fail."""

import asyncio
from typing import Any
from uuid import UUID

import pytest
from crc32c import crc32c

from conveyor.cluster.placement import Placement
from conveyor.records.batch import CRC_START, HEADER, HEADER_BYTES, MAGIC_END, read_header
from tests.unit.broker.parts import BATCH, Storage, running_parts
from tests.unit.kafka_api.client import MemoryClient
from tests.unit.kafka_api.requests import (
    CREATE_TOPICS,
    DELETE_TOPICS,
    FIND_COORDINATOR,
    INIT_PRODUCER_ID,
    METADATA,
    PRODUCE,
    produce,
    request,
    response,
)

DESCRIBE_GROUPS = 15
CREATE_PARTITIONS = 37
NOT_ASKED = -(1 << 31)
ALL_TOPIC_OPERATIONS, ALL_CLUSTER_OPERATIONS, ALL_GROUP_OPERATIONS = 3576, 8096, 3400
LAST_WITH_CLUSTER_OPERATIONS = 10

ANY_AUTHORISATION = {
    "include_cluster_authorized_operations": False,
    "include_topic_authorized_operations": False,
    "allow_auto_topic_creation": True,
}


def creatable(name: str, **more: Any) -> dict[str, Any]:
    wanted = {"name": name, "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
    return wanted | more


async def create(client: MemoryClient, *topics: dict[str, Any], validate_only: bool = False) -> list[int]:
    answer = await client.ask(CREATE_TOPICS, 7, topics=topics, timeout=1000, validate_only=validate_only)
    return [int(topic.error_code) for topic in answer.topics]


async def test_create_topics(client: MemoryClient) -> None:
    assert await create(client, creatable("new")) == [0]
    assert "new" in client.broker.metadata.image.topics


async def test_create_topics_answers_a_repeated_name_once(client: MemoryClient) -> None:
    assert await create(client, creatable("twice"), creatable("new"), creatable("twice")) == [42, 0]


async def test_create_topics_with_validate_only_creates_nothing(client: MemoryClient) -> None:
    assert await create(client, creatable("new"), validate_only=True) == [0]
    assert "new" not in client.broker.metadata.image.topics


async def test_create_topics_with_validate_only_adds_up_the_partitions_of_a_request(client: MemoryClient) -> None:
    wanted = [creatable(name, num_partitions=count) for name, count in (("a", 15_000), ("b", 6_000), ("c", 4_000))]
    assert await create(client, *wanted, validate_only=True) == [0, 37, 0]
    assert await create(client, *wanted, validate_only=True) == [0, 37, 0], "nothing remains of a check"


async def test_create_topics_with_validate_only_counts_the_partitions_of_delayed_topics(storage: Storage) -> None:
    async with running_parts({"broker.max_partitions": 20}, storage) as broker:
        client = MemoryClient(broker)
        assert await create(client, creatable("target", num_partitions=5)) == [0]
        delayed = [{"name": "delay.target", "value": "target"}]
        wanted = [creatable(name, num_partitions=-1, configs=delayed) for name in ("a", "b")]
        assert await create(client, *wanted, validate_only=True) == [0, 37]


async def test_create_partitions_with_validate_only_adds_up_the_partitions_of_a_request(client: MemoryClient) -> None:
    assert await create(client, creatable("a"), creatable("b")) == [0, 0]
    counts = {"t": 15_000, "a": 6_000, "b": 4_000}
    wanted = [{"name": name, "count": count, "assignments": None} for name, count in counts.items()]
    answer = await client.ask(CREATE_PARTITIONS, 3, topics=wanted, timeout=1000, validate_only=True)
    assert [int(result.error_code) for result in answer.results] == [0, 37, 0]
    assert client.broker.metadata.image.partition_count == 3


async def test_requests_that_are_only_validated_choose_no_replicas(
    client: MemoryClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An assignment costs microseconds for each partition, and a request of a few bytes can ask for thousands."""
    monkeypatch.delattr(Placement, "__init__")
    assert await create(client, creatable("new", num_partitions=9_000), validate_only=True) == [0]
    wanted = {"name": "t", "count": 9_000, "assignments": None}
    answer = await client.ask(CREATE_PARTITIONS, 3, topics=[wanted], timeout=1000, validate_only=True)
    assert int(answer.results[0].error_code) == 0


async def test_create_topics_returns_the_settings(client: MemoryClient) -> None:
    given = creatable("new", configs=[{"name": "segment.bytes", "value": "4096"}])
    answer = await client.ask(CREATE_TOPICS, 7, topics=[given], timeout=1000, validate_only=False)
    settings = {config.name: (config.value, int(config.config_source)) for config in answer.topics[0].configs}
    assert settings["segment.bytes"] == ("4096", 1)
    assert settings["flush.policy"] == ("ack", 5)


@pytest.mark.parametrize("by_id", [False, True])
async def test_delete_topics_by_name_or_id(client: MemoryClient, by_id: bool) -> None:
    identity = client.broker.metadata.image.topics["t"].topic_id
    topic = {"name": None, "topic_id": identity} if by_id else {"name": "t", "topic_id": None}
    answer = await client.ask(DELETE_TOPICS, 6, topics=[topic], timeout=1000)
    [deleted] = answer.responses
    assert (int(deleted.error_code), deleted.name, deleted.topic_id) == (0, "t", identity)


async def test_metadata(client: MemoryClient) -> None:
    asked = {"topics": [{"name": "t", "topic_id": None}]} | ANY_AUTHORISATION
    answer = await client.ask(METADATA, 9, **asked)
    assert [int(topic.error_code) for topic in answer.topics] == [0]
    [broker] = answer.brokers
    assert (broker.node_id, broker.host, broker.port) == (1, "broker.example", 9092)


@pytest.mark.parametrize(("version", "topics"), [(0, ()), (1, None)])
async def test_metadata_of_all_topics(client: MemoryClient, version: int, topics: object) -> None:
    answer = await client.ask(METADATA, version, topics=topics)
    assert [topic.name for topic in answer.topics] == ["t"]


@pytest.mark.parametrize("asks_cluster", [False, True])
@pytest.mark.parametrize("asks_topics", [False, True])
@pytest.mark.parametrize("version", [8, 9, 10, 11, 12, 13])
async def test_metadata_returns_operations_on_request(
    client: MemoryClient, version: int, asks_topics: bool, asks_cluster: bool
) -> None:
    answer = await client.ask(
        METADATA,
        version,
        topics=[{"name": "t", "topic_id": None}, {"name": "missing", "topic_id": None}],
        include_topic_authorized_operations=asks_topics,
        include_cluster_authorized_operations=asks_cluster,
        allow_auto_topic_creation=False,
    )
    operations = {topic.topic_authorized_operations for topic in answer.topics}
    assert operations == {ALL_TOPIC_OPERATIONS if asks_topics else NOT_ASKED}
    if version <= LAST_WITH_CLUSTER_OPERATIONS:
        assert answer.cluster_authorized_operations == (ALL_CLUSTER_OPERATIONS if asks_cluster else NOT_ASKED)


async def test_metadata_has_no_operations_for_an_unknown_id(client: MemoryClient) -> None:
    unknown = {"name": None, "topic_id": UUID(int=7)}
    asked = {"include_topic_authorized_operations": True, "allow_auto_topic_creation": False}
    [topic] = (await client.ask(METADATA, 12, topics=[unknown], **asked)).topics
    assert (int(topic.error_code), topic.topic_authorized_operations) == (100, NOT_ASKED)


@pytest.mark.parametrize(
    ("version", "asks", "code", "operations"),
    [
        (3, False, 0, NOT_ASKED),
        (3, True, 0, ALL_GROUP_OPERATIONS),
        (5, True, 0, ALL_GROUP_OPERATIONS),
        (6, True, 69, NOT_ASKED),
    ],
)
async def test_dead_groups_have_operations_in_versions_without_the_error(
    client: MemoryClient, version: int, asks: bool, code: int, operations: int
) -> None:
    [group] = (await client.ask(DESCRIBE_GROUPS, version, groups=["g"], include_authorized_operations=asks)).groups
    assert (int(group.error_code), group.group_state, group.authorized_operations) == (code, "Dead", operations)


async def test_create_topics_refuses_a_name_that_collides(client: MemoryClient) -> None:
    assert await create(client, creatable("col.a"), creatable("col_a"), creatable("col-a")) == [0, 17, 0]


async def test_produce_refuses_a_count_that_the_batch_cannot_hold(client: MemoryClient) -> None:
    header = read_header(BATCH)._replace(records_count=1000, last_offset_delta=999)
    batch = bytearray(HEADER.pack(*header) + BATCH[HEADER_BYTES:])
    batch[MAGIC_END:CRC_START] = crc32c(memoryview(batch)[CRC_START:]).to_bytes(4, "big")
    client.send(produce(1, bytes(batch)))
    answer = response(PRODUCE, 9, await client.answers.get())
    assert int(answer.responses[0].partition_responses[0].error_code) == 87
    assert client.broker.partitions.table.find("t", 0).term.high_watermark == 0


async def test_metadata_shows_a_partition_that_is_offline(client: MemoryClient, storage: Storage) -> None:
    storage.disk.faults.fail("append")
    client.send(produce(1, BATCH))
    await client.answers.get()
    asked = {"topics": [{"name": "t", "topic_id": None}]} | ANY_AUTHORISATION
    answer = await client.ask(METADATA, 9, **asked)
    [partition] = answer.topics[0].partitions
    assert (int(partition.error_code), partition.leader_id, partition.offline_replicas) == (5, -1, (1,))


async def test_produce(client: MemoryClient) -> None:
    client.send(produce(1, BATCH))
    answer = response(PRODUCE, 9, await client.answers.get())
    assert int(answer.responses[0].partition_responses[0].error_code) == 0


async def test_produce_refuses_invalid_acks(client: MemoryClient) -> None:
    client.send(produce(1, BATCH, acks=2))
    answer = response(PRODUCE, 9, await client.answers.get())
    [refused] = answer.responses[0].partition_responses
    assert (int(refused.error_code), refused.error_message) == (21, "acks is 0, 1 or all (-1), not 2")


LONG = "x" * 32_767
PARTITION = [{"index": 0, "records": BATCH}]
LONG_NAMES: list[tuple[int, int, dict[str, Any]]] = [
    (PRODUCE, 8, {"acks": 1, "timeout": 0, "topic_data": [{"name": LONG, "partition_data": PARTITION}]}),
    (33, 1, {"resources": [{"resource_type": 2, "resource_name": LONG, "configs": []}], "validate_only": False}),
    (37, 0, {"topics": [{"name": LONG, "count": 2, "assignments": None}], "timeout": 0, "validate_only": False}),
    (43, 0, {"topic_partitions": [{"topic": LONG, "partitions": [0]}], "timeout": 0}),
    (48, 0, {"components": [{"entity_type": LONG, "match_type": 0, "match": ""}], "strict": False}),
    (49, 0, {"entries": [{"entity": [{"entity_type": LONG, "entity_name": ""}], "ops": []}], "validate_only": False}),
]


@pytest.mark.parametrize(("key", "version", "values"), LONG_NAMES)
async def test_error_that_quotes_a_long_name_fits_into_its_response(
    client: MemoryClient, key: int, version: int, values: dict[str, Any]
) -> None:
    client.send(request(key, version, **values))
    while client.answers.empty() and not client.failures:  # noqa: ASYNC110 - no event tells
        await asyncio.sleep(0)
    assert not client.failures


@pytest.mark.parametrize(("key", "key_type", "code"), [("group", 0, 0), ("transaction", 1, 0), ("share group", 2, 42)])
async def test_find_coordinator(client: MemoryClient, key: str, key_type: int, code: int) -> None:
    one = await client.ask(FIND_COORDINATOR, 3, key=key, key_type=key_type)
    several = await client.ask(FIND_COORDINATOR, 4, coordinator_keys=(key,), key_type=key_type)
    assert int(one.error_code) == int(several.coordinators[0].error_code) == code
    assert one.node_id == (1 if code == 0 else -1)


@pytest.mark.parametrize(
    ("asked", "code"),
    [({}, 0), ({"producer_id": 5}, 42), ({"producer_id": 5, "producer_epoch": 0}, 0)],
)
async def test_init_producer_id(client: MemoryClient, asked: dict[str, Any], code: int) -> None:
    values = {"transactional_id": None, "transaction_timeout": 1, "producer_id": -1, "producer_epoch": -1} | asked
    answer = await client.ask(INIT_PRODUCER_ID, 4, **values)
    assert int(answer.error_code) == code
    assert answer.producer_epoch == (0 if code == 0 else -1)
