"""The responses of the APIs about the cluster: log directories, elections, brokers, producers, pages of topics."""

from typing import Any

import pytest

from conveyor.cluster.topic_creation import TopicRequest
from conveyor.kernel.errors import ProtocolViolation
from conveyor.records.record import encode_batch
from tests.callers import CALLER
from tests.unit.broker.parts import BATCH, NOW_MS, Storage, publish
from tests.unit.kafka_api.client import MemoryClient
from tests.unit.kafka_api.requests import PRODUCE, framed, request

ALTER_LOG_DIRS, DESCRIBE_QUORUM, UPDATE_FEATURES = 34, 55, 57
DESCRIBE_LOG_DIRS, ELECT_LEADERS, DESCRIBE_CLUSTER, DESCRIBE_PRODUCERS, DESCRIBE_TOPICS = 35, 43, 60, 61, 75
PREFERRED, UNCLEAN = 0, 1


@pytest.fixture
async def client(client: MemoryClient) -> MemoryClient:
    """Yield a client whose broker also has a topic `p` with three partitions."""
    await client.broker.topics.create(CALLER, TopicRequest(name="p", partitions=3))
    return client


async def go_offline(client: MemoryClient, storage: Storage, topic: str, number: int) -> None:
    """Take the partition offline by a failing write."""
    storage.disk.faults.fail("append")
    await publish(client.broker, (topic, number))


async def sizes(client: MemoryClient, asked: list[dict[str, Any]] | None) -> dict[tuple[str, int], int]:
    answer = await client.ask(DESCRIBE_LOG_DIRS, 5, topics=asked)
    [directory] = answer.results
    assert (int(answer.error_code), int(directory.error_code)) == (0, 0)
    return {
        (topic.name, partition.partition_index): partition.partition_size
        for topic in directory.topics
        for partition in topic.partitions
    }


async def test_log_directories_of_all_partitions(client: MemoryClient) -> None:
    await publish(client.broker, ("p", 1), ("p", 1))
    expected = {("t", 0): 0, ("p", 0): 0, ("p", 1): 2 * len(BATCH), ("p", 2): 0}
    assert await sizes(client, None) == expected


async def test_log_directory_is_named_with_its_size(client: MemoryClient, storage: Storage) -> None:
    """A disk in memory has no size: -1, as before v4."""
    described = (await client.ask(DESCRIBE_LOG_DIRS, 4, topics=[])).results[0]
    assert (described.error_code, described.log_dir, described.total_bytes, described.usable_bytes) == (
        0,
        "logs",
        -1,
        -1,
    )
    storage.disk.faults.fail("volume")
    assert (await client.ask(DESCRIBE_LOG_DIRS, 1, topics=[])).results[0].error_code == 56
    storage.disk.faults.heal()


async def test_log_directories_omit_missing_partitions(client: MemoryClient) -> None:
    asked: list[dict[str, Any]] = [{"topic": "p", "partitions": (2, 9)}, {"topic": "nothing", "partitions": (0,)}]
    assert await sizes(client, asked) == {("p", 2): 0}
    assert await sizes(client, []) == {}


async def elections(
    client: MemoryClient, asked: dict[str, tuple[int, ...]] | None, kind: int
) -> list[tuple[str, int, int]]:
    topics = None if asked is None else [{"topic": name, "partitions": numbers} for name, numbers in asked.items()]
    answer = await client.ask(ELECT_LEADERS, 2, election_type=kind, topic_partitions=topics, timeout=1000)
    return [
        (topic.topic, partition.partition_id, int(partition.error_code))
        for topic in answer.replica_election_results
        for partition in topic.partition_result
    ]


@pytest.mark.parametrize("kind", [PREFERRED, UNCLEAN])
async def test_elections_are_not_needed(client: MemoryClient, kind: int) -> None:
    asked = {"p": (0, 2, 3, -1), "nothing": (0,)}
    expected = [("p", 0, 84), ("p", 2, 84), ("p", 3, 3), ("p", -1, 3), ("nothing", 0, 3)]
    assert await elections(client, asked, kind) == expected


@pytest.mark.parametrize(("kind", "code"), [(PREFERRED, 80), (UNCLEAN, 83)])
async def test_elections_for_all_partitions_omit_unneeded_ones(
    client: MemoryClient, storage: Storage, kind: int, code: int
) -> None:
    assert await elections(client, None, kind) == []
    await go_offline(client, storage, "p", 1)
    assert await elections(client, None, kind) == [("p", 1, code)]


async def test_elections_of_an_unknown_type_are_refused(client: MemoryClient) -> None:
    topics = [{"topic": "p", "partitions": (0,)}]
    answer = await client.ask(ELECT_LEADERS, 1, election_type=7, topic_partitions=topics, timeout=1000)
    assert int(answer.error_code) == 42
    assert await elections(client, {"p": (0,)}, 7) == [("p", 0, 42)]


async def describe_cluster(client: MemoryClient, endpoint_type: int, *, operations: bool = False) -> Any:
    return await client.ask(
        DESCRIBE_CLUSTER,
        2,
        include_cluster_authorized_operations=operations,
        endpoint_type=endpoint_type,
        include_fenced_brokers=True,
    )


async def test_the_cluster_is_described(client: MemoryClient) -> None:
    image = client.broker.metadata.image
    answer = await describe_cluster(client, 1)
    assert (answer.cluster_id, answer.controller_id) == (image.cluster_id, 1)
    assert [
        (broker.broker_id, broker.host, broker.port, broker.rack, broker.is_fenced) for broker in answer.brokers
    ] == [(1, "broker.example", 9092, None, False)]
    assert answer.cluster_authorized_operations == -(1 << 31)
    assert (await describe_cluster(client, 1, operations=True)).cluster_authorized_operations == 8096


@pytest.mark.parametrize(("endpoint_type", "code"), [(2, 114), (0, 115), (9, 115)])
async def test_only_brokers_are_described(client: MemoryClient, endpoint_type: int, code: int) -> None:
    answer = await describe_cluster(client, endpoint_type)
    assert (int(answer.error_code), answer.brokers) == (code, ())
    assert str(endpoint_type) in answer.error_message


async def producers(client: MemoryClient, topic: str, number: int) -> Any:
    answer = await client.ask(DESCRIBE_PRODUCERS, 0, topics=[{"name": topic, "partition_indexes": (number,)}])
    return answer.topics[0].partitions[0]


async def test_producers_are_described_by_their_last_batch(client: MemoryClient) -> None:
    for producer_id, sequence in ((9, 0), (8, 0), (9, 3)):
        batch = encode_batch(
            [(NOW_MS, b"key", b"value", [])] * 3, producer_id=producer_id, producer_epoch=2, base_sequence=sequence
        )
        topics = [{"name": "p", "partition_data": [{"index": 1, "records": batch}]}]
        await client.ask(PRODUCE, 9, acks=-1, timeout=1000, topic_data=topics)
    described = await producers(client, "p", 1)
    assert int(described.error_code) == 0
    assert sorted(
        (producer.producer_id, producer.producer_epoch, producer.last_sequence)
        for producer in described.active_producers
    ) == [
        (8, 2, 2),
        (9, 2, 5),
    ]
    assert {producer.last_timestamp for producer in described.active_producers} == {NOW_MS}
    assert {producer.current_txn_start_offset for producer in described.active_producers} == {-1}
    assert (await producers(client, "p", 0)).active_producers == ()


@pytest.mark.parametrize(("topic", "number", "code"), [("p", 3, 3), ("nothing", 0, 3), ("no spaces", 0, 17)])
async def test_producers_of_a_missing_partition(client: MemoryClient, topic: str, number: int, code: int) -> None:
    assert int((await producers(client, topic, number)).error_code) == code


async def test_producers_of_an_offline_partition(client: MemoryClient, storage: Storage) -> None:
    await go_offline(client, storage, "p", 0)
    assert int((await producers(client, "p", 0)).error_code) == 56


async def describe_topics(client: MemoryClient, names: list[str], cursor: tuple[str, int] | None, limit: int) -> Any:
    start = None if cursor is None else {"topic_name": cursor[0], "partition_index": cursor[1]}
    topics = [{"name": name} for name in names]
    return await client.ask(DESCRIBE_TOPICS, 0, topics=topics, response_partition_limit=limit, cursor=start)


async def test_topics_are_described_in_pages(client: MemoryClient) -> None:
    first = await describe_topics(client, [], None, 2)
    assert [(topic.name, [part.partition_index for part in topic.partitions]) for topic in first.topics] == [
        ("p", [0, 1])
    ]
    assert (first.next_cursor.topic_name, first.next_cursor.partition_index) == ("p", 2)
    last = await describe_topics(client, [], ("p", 2), 2)
    assert [(topic.name, [part.partition_index for part in topic.partitions]) for topic in last.topics] == [
        ("p", [2]),
        ("t", [0]),
    ]
    assert last.next_cursor is None


async def test_a_topic_is_described(client: MemoryClient, storage: Storage) -> None:
    await go_offline(client, storage, "p", 1)
    [topic] = (await describe_topics(client, ["p"], None, 2000)).topics
    assert (topic.topic_id, topic.is_internal) == (client.broker.metadata.image.topics["p"].topic_id, False)
    assert topic.topic_authorized_operations == 3576
    assert [
        (partition.leader_id, partition.replica_nodes, partition.offline_replicas) for partition in topic.partitions
    ] == [
        (1, (1,), ()),
        (-1, (1,), (1,)),
        (1, (1,), ()),
    ]


@pytest.mark.parametrize("limit", [0, -5])
async def test_a_page_has_at_least_one_partition(client: MemoryClient, limit: int) -> None:
    answer = await describe_topics(client, [], None, limit)
    assert [len(topic.partitions) for topic in answer.topics] == [1]


async def test_missing_topics(client: MemoryClient) -> None:
    answer = await describe_topics(client, ["no spaces", "nothing", "t"], None, 2000)
    assert [(topic.name, int(topic.error_code)) for topic in answer.topics] == [
        ("no spaces", 17),
        ("nothing", 3),
        ("t", 0),
    ]
    assert {topic.topic_authorized_operations for topic in answer.topics} == {3576}


async def test_a_cursor_of_another_topic_is_refused(client: MemoryClient) -> None:
    answer = await describe_topics(client, ["t"], ("p", 0), 2000)
    assert ([int(topic.error_code) for topic in answer.topics], answer.next_cursor) == ([42], None)


async def test_a_cursor_that_is_cut_off_is_a_violation(client: MemoryClient) -> None:
    cursor = {"topic_name": "p", "partition_index": 0}
    whole = request(DESCRIBE_TOPICS, 0, topics=[], response_partition_limit=1, cursor=cursor)
    for size in range(len(whole) - 9, len(whole)):
        with pytest.raises(ProtocolViolation):
            MemoryClient(client.broker).connection.receive(framed(whole[:size]))


async def moved(client: MemoryClient, *dirs: tuple[str, str, tuple[int, ...]]) -> dict[tuple[str, int], int]:
    """Return the error code of each partition. dirs: the path, topic and partitions of each item."""
    wanted = [{"path": path, "topics": [{"name": topic, "partitions": numbers}]} for path, topic, numbers in dirs]
    answer = await client.ask(ALTER_LOG_DIRS, 2, dirs=wanted)
    places = [(topic.topic_name, result.partition_index) for topic in answer.results for result in topic.partitions]
    assert len(set(places)) == len(places), "each partition is answered once"
    return {
        (topic.topic_name, result.partition_index): int(result.error_code)
        for topic in answer.results
        for result in topic.partitions
    }


async def test_replicas_are_in_the_only_log_directory(client: MemoryClient, storage: Storage) -> None:
    described = (await client.ask(DESCRIBE_LOG_DIRS, 4, topics=[])).results[0]
    here, nowhere = described.log_dir, "/nowhere"
    await go_offline(client, storage, "p", 2)
    assert await moved(client, (here, "p", (0, 2, 7)), (here, "nothing", (0,)), (nowhere, "t", (0,))) == {
        ("p", 0): 0, ("p", 2): 56, ("p", 7): 3, ("nothing", 0): 3, ("t", 0): 57,
    }  # fmt: skip
    assert await moved(client, (nowhere, "t", (0,)), (here, "t", (0, 0))) == {("t", 0): 0}
    storage.disk.faults.fail("volume")
    assert await moved(client, (here, "t", (0,))) == {("t", 0): 56}


async def test_one_broker_is_the_quorum_of_its_metadata_log(client: MemoryClient) -> None:
    asked = [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]
    answer = await client.ask(DESCRIBE_QUORUM, 2, topics=asked)
    [partition] = answer.topics[0].partitions
    end_offset = client.broker.metadata.image.seq
    assert (partition.leader_id, partition.leader_epoch, partition.high_watermark) == (1, 0, end_offset)
    [voter] = partition.current_voters
    assert (voter.replica_id, voter.log_end_offset, voter.last_fetch_timestamp) == (1, end_offset, NOW_MS)
    assert partition.observers == ()
    [node] = answer.nodes
    own = client.broker.metadata.image.brokers[node.node_id]
    assert [(listener.name, listener.host, listener.port) for listener in node.listeners] == [
        ("PLAINTEXT", own.host, own.port)
    ]


async def updated(client: MemoryClient, version: int, *updates: tuple[str, int]) -> Any:
    wanted = [
        {"feature": name, "max_version_level": level, "allow_downgrade": True, "upgrade_type": 2}
        for name, level in updates
    ]
    return await client.ask(UPDATE_FEATURES, version, timeout=1000, feature_updates=wanted, validate_only=True)


async def test_features_stay_as_they_are(client: MemoryClient) -> None:
    present = ("transaction.version", 2)
    answer = await updated(client, 1, present, present)
    assert (int(answer.error_code), answer.error_message) == (0, None)
    assert [(result.feature, int(result.error_code)) for result in answer.results] == [("transaction.version", 0)] * 2
    answer = await updated(client, 1, present, ("transaction.version", 1), ("nothing", 1))
    assert (int(answer.error_code), answer.results) == (95, ())
    assert answer.error_message == "transaction.version cannot become 1: it is 2 and does not change"
    assert int((await updated(client, 2)).error_code) == 0
