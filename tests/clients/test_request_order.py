"""Requests that follow each other on one connection, without a wait for responses, take effect in order: on one broker,
and on every broker of a cluster, most of which ask the controller to change the metadata.
"""

from collections.abc import Callable, Iterator

import pytest

from conveyor.records.record import encode_batch
from conveyor.testing import Broker, Cluster
from tests.clients.raw_connection import Asked, RawConnection

PRODUCE, LIST_OFFSETS, METADATA, OFFSET_COMMIT, OFFSET_FETCH, FIND_COORDINATOR, CREATE_TOPICS = 0, 2, 3, 8, 9, 10, 19
DELETE_TOPICS, DELETE_RECORDS, DESCRIBE_CONFIGS, CREATE_PARTITIONS, DELETE_GROUPS = 20, 21, 32, 37, 42
INCREMENTAL_ALTER_CONFIGS, DESCRIBE_QUOTAS, ALTER_QUOTAS, DESCRIBE_GROUPS = 44, 48, 49, 15
VERSIONS = {
    PRODUCE: 9, LIST_OFFSETS: 6, METADATA: 12, OFFSET_COMMIT: 8, OFFSET_FETCH: 7, FIND_COORDINATOR: 3, CREATE_TOPICS: 7,
    DELETE_TOPICS: 5, DELETE_RECORDS: 2, DESCRIBE_CONFIGS: 4, CREATE_PARTITIONS: 3, DELETE_GROUPS: 2,
    INCREMENTAL_ALTER_CONFIGS: 1, DESCRIBE_QUOTAS: 1, ALTER_QUOTAS: 1, DESCRIBE_GROUPS: 5,
}  # fmt: skip
TOPIC, BROKER = 2, 4
UNKNOWN_TOPIC = 3
RECORDS = 10
ROUNDS = 5


@pytest.fixture(scope="module")
def addresses() -> Iterator[dict[str, list[str]]]:
    with Broker(memory=True) as broker, Cluster(brokers=3) as cluster:
        of_cluster = [member.bootstrap_servers for member in cluster.brokers.values()]
        yield {"one broker": [broker.bootstrap_servers], "a cluster": of_cluster}


@pytest.fixture(params=["one broker", "a cluster"])
def connections(request: pytest.FixtureRequest, addresses: dict[str, list[str]]) -> Iterator[list[RawConnection]]:
    """Yield a connection to each broker, in the order of their ids."""
    opened = [RawConnection(address, VERSIONS) for address in addresses[request.param]]
    yield opened
    for connection in opened:
        connection.close()


def creation(topic: str, count: int) -> Asked:
    wanted = {"name": topic, "num_partitions": 1, "replication_factor": count, "assignments": [], "configs": []}
    return CREATE_TOPICS, {"topics": [wanted], "timeout": 30_000, "validate_only": False}


def description(topic: str) -> Asked:
    wanted = {"topics": [{"topic_id": None, "name": topic}], "allow_auto_topic_creation": False}
    return METADATA, wanted | {"include_topic_authorized_operations": False}


def batch(topic: str) -> Asked:
    partition = {"index": 0, "records": encode_batch([(1, None, b"x", [])])}
    topics = [{"name": topic, "partition_data": [partition]}]
    return PRODUCE, {"transactional_id": None, "acks": -1, "timeout": 30_000, "topic_data": topics}


def first_offset(topic: str, timestamp: int = -2) -> Asked:
    partition = {"partition_index": 0, "timestamp": timestamp}
    topics = [{"name": topic, "partitions": [partition]}]
    return LIST_OFFSETS, {"replica_id": -1, "isolation_level": 0, "topics": topics}


def leader(connections: list[RawConnection], topic: str) -> RawConnection:
    """Create a topic on all brokers, and return the connection to its leader."""
    created, described = connections[0].pipeline(creation(topic, len(connections)), description(topic))
    assert int(created.topics[0].error_code) == 0
    return connections[int(described.topics[0].partitions[0].leader_id) - 1]


def coordinator(connections: list[RawConnection], group: str) -> RawConnection:
    """Return the connection to the broker that has loaded a group."""
    asked = {"groups": [group], "include_authorized_operations": False}
    while True:
        [found] = connections[0].pipeline((FIND_COORDINATOR, {"key": group, "key_type": 0}))
        if int(found.error_code) == 0:
            connection = connections[int(found.node_id) - 1]
            [described] = connection.pipeline((DESCRIBE_GROUPS, asked))
            if int(described.groups[0].error_code) == 0:
                return connection


def each(connections: list[RawConnection], check: Callable[[RawConnection, str], None], topic: str) -> None:
    for number, connection in enumerate(connections * ROUNDS):
        check(connection, f"{topic}-{number}")


def test_topics_are_described_after_their_creation_growth_and_deletion(
    connections: list[RawConnection], topic: str
) -> None:
    def check(connection: RawConnection, name: str) -> None:
        grown = {"name": name, "count": 4, "assignments": None}
        growth = CREATE_PARTITIONS, {"topics": [grown], "timeout": 30_000, "validate_only": False}
        deletion = DELETE_TOPICS, {"topic_names": [name], "timeout": 30_000}
        shown = description(name)
        steps = [creation(name, 1), shown, growth, shown, deletion, shown, creation(name, 1), shown]
        _, first, _, second, _, third, _, fourth = connection.pipeline(*steps)
        assert [len(answer.topics[0].partitions) for answer in (first, second, third, fourth)] == [1, 4, 0, 1]
        assert int(third.topics[0].error_code) == UNKNOWN_TOPIC
        assert first.topics[0].topic_id != fourth.topics[0].topic_id

    each(connections, check, topic)


def test_settings_and_quotas_are_described_as_changed(connections: list[RawConnection], topic: str) -> None:
    leader(connections, topic)

    def check(connection: RawConnection, name: str) -> None:
        value = str(1000 + int(name.rpartition("-")[2]))
        entry = {"name": "retention.ms", "config_operation": 0, "value": value}
        resource = {"resource_type": TOPIC, "resource_name": topic}
        change = {"resources": [resource | {"configs": [entry]}], "validate_only": False}
        asked = {"resources": [resource | {"configuration_keys": ["retention.ms"]}]}
        entity = [{"entity_type": "client-id", "entity_name": name}]
        quota = {"key": "request_percentage", "value": 50.0, "remove": False}
        quotas = {"entries": [{"entity": entity, "ops": [quota]}], "validate_only": False}
        wanted = {"components": [{"entity_type": "client-id", "match_type": 0, "match": name}], "strict": False}
        _, configs, _, found = connection.pipeline(
            (INCREMENTAL_ALTER_CONFIGS, change),
            (DESCRIBE_CONFIGS, asked),
            (ALTER_QUOTAS, quotas),
            (DESCRIBE_QUOTAS, wanted),
        )
        assert [entry.value for entry in configs.results[0].configs] == [value]
        assert [entry.values[0].value for entry in found.entries] == [50.0]

    each(connections, check, topic)


def test_a_brokers_settings_are_described_as_changed(connections: list[RawConnection]) -> None:
    for node_id, connection in enumerate(connections, 1):
        for value in ("7", "8", "9"):
            entry = {"name": "log.cleaner.min.cleanable.ratio", "config_operation": 0, "value": f"0.{value}"}
            resource = {"resource_type": BROKER, "resource_name": str(node_id)}
            change = {"resources": [resource | {"configs": [entry]}], "validate_only": False}
            asked = {"resources": [resource | {"configuration_keys": ["log.cleaner.min.cleanable.ratio"]}]}
            changed, configs = connection.pipeline((INCREMENTAL_ALTER_CONFIGS, change), (DESCRIBE_CONFIGS, asked))
            assert int(changed.responses[0].error_code) == 0
            assert [entry.value for entry in configs.results[0].configs] == [f"0.{value}"]


def test_deleted_records_are_gone_for_the_next_request(connections: list[RawConnection], topic: str) -> None:
    connection = leader(connections, topic)
    for end in range(RECORDS, 10 * RECORDS, RECORDS):
        *_, produced = connection.pipeline(*[batch(topic)] * RECORDS, first_offset(topic, -1))
        assert produced.topics[0].partitions[0].offset == end, "the end follows the records before it"
        partition = {"partition_index": 0, "offset": end - 1}
        deletion = {"topics": [{"name": topic, "partitions": [partition]}], "timeout": 30_000}
        deleted, first = connection.pipeline((DELETE_RECORDS, deletion), first_offset(topic))
        assert deleted.topics[0].partitions[0].low_watermark == end - 1
        assert first.topics[0].partitions[0].offset == end - 1


def test_committed_offsets_are_fetched_and_a_deleted_group_has_none(
    connections: list[RawConnection], topic: str
) -> None:
    leader(connections, topic)
    connection = coordinator(connections, topic)
    for offset in range(20):
        partition = {
            "partition_index": 0, "committed_offset": offset, "committed_leader_epoch": -1, "committed_metadata": "",
        }  # fmt: skip
        commit = {
            "group_id": topic, "generation_id_or_member_epoch": -1, "member_id": "", "group_instance_id": None,
            "topics": [{"name": topic, "partitions": [partition]}],
        }  # fmt: skip
        topics = [{"name": topic, "partition_indexes": [0]}]
        shown = OFFSET_FETCH, {"group_id": topic, "topics": topics, "require_stable": False}
        deletion = DELETE_GROUPS, {"groups_names": [topic]}
        committed, found, deleted, gone = connection.pipeline((OFFSET_COMMIT, commit), shown, deletion, shown)
        assert int(committed.topics[0].partitions[0].error_code) == 0
        assert found.topics[0].partitions[0].committed_offset == offset
        assert int(deleted.results[0].error_code) == 0
        assert gone.topics[0].partitions[0].committed_offset == -1


def test_requests_behind_one_that_waits_are_answered_once_it_is(connections: list[RawConnection], topic: str) -> None:
    """More requests than one connection may have unanswered, so that the broker stops reading and goes on."""
    connection = leader(connections, topic)
    deletion = {"topics": [{"name": topic, "partitions": []}], "timeout": 30_000}
    asked: list[Asked] = [(DELETE_RECORDS, deletion), first_offset(topic)] * 1_500
    assert len(connection.pipeline(*asked)) == 3_000
