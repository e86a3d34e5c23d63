"""Admin clients ask about the cluster: brokers, log directories, leaders, producers, topics in pages."""

from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import ElectionType, KafkaError, KafkaException, Producer, TopicCollection, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    OffsetSpec,
    ResourcePatternType,
    ResourceType,
)
from kafka import KafkaAdminClient
from kafka import TopicPartition as Partition
from kafka.admin import ACLFilter, ACLOperation, ACLPermissionType, ACLResourcePatternType, ResourcePatternFilter
from kafka.admin import ResourceType as ACLResource
from kafka.errors import (
    InvalidUpdateVersionError,
    LogDirNotFoundError,
    NoError,
    SecurityDisabledError,
    UnknownTopicOrPartitionError,
)
from kio.schema.errors import ErrorCode

from conveyor.testing import Broker, Cluster
from tests.clients.raw_connection import RawConnection

PARTITIONS = 3
RECORDS = 5
DESCRIBE_QUORUM = 55
ANY_RESOURCE = ResourcePatternFilter(ACLResource.ANY, None, ACLResourcePatternType.ANY)


@pytest.fixture
def confluent(broker: Broker, topic: str) -> AdminClient:
    """librdkafka's admin client, on a broker whose topic has records in partition 1."""
    client = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    client.create_topics([NewTopic(topic, PARTITIONS)])[topic].result(20)
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "enable.idempotence": True})
    for number in range(RECORDS):
        producer.produce(topic, value=b"%d" % number, partition=1, timestamp=1000 + number)
    assert producer.flush(20) == 0
    return client


@pytest.fixture
def admin(broker: Broker, confluent: AdminClient) -> Iterator[KafkaAdminClient]:
    """kafka-python's admin client, on the same broker."""
    client = KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    yield client
    client.close()


def test_confluent_describes_the_cluster(broker: Broker, confluent: AdminClient) -> None:
    cluster = confluent.describe_cluster(include_authorized_operations=True).result(20)
    assert [f"{node.host}:{node.port}" for node in cluster.nodes] == [broker.bootstrap_servers]
    assert cluster.controller.id == cluster.nodes[0].id == 1
    assert cluster.cluster_id


def test_confluent_describes_topics(confluent: AdminClient, topic: str) -> None:
    described = confluent.describe_topics(TopicCollection([topic]))[topic].result(20)
    assert [each.leader.id for each in described.partitions] == [1] * PARTITIONS


def test_confluent_lists_offsets(confluent: AdminClient, topic: str) -> None:
    asked = {
        TopicPartition(topic, 0): OffsetSpec.latest(),
        TopicPartition(topic, 1): OffsetSpec.latest(),
        TopicPartition(topic, 2): OffsetSpec.earliest(),
    }
    found = confluent.list_offsets(asked)
    assert [found[each].result(20).offset for each in asked] == [0, RECORDS, 0]
    at_time = TopicPartition(topic, 1)
    assert confluent.list_offsets({at_time: OffsetSpec.for_timestamp(1003)})[at_time].result(20).offset == 3
    assert confluent.list_offsets({at_time: OffsetSpec.max_timestamp()})[at_time].result(20).offset == 4


@pytest.mark.parametrize("kind", [ElectionType.PREFERRED, ElectionType.UNCLEAN])
def test_confluent_elects_nobody(confluent: AdminClient, topic: str, kind: ElectionType) -> None:
    asked = [TopicPartition(topic, 0), TopicPartition(topic, 9)]
    elected = confluent.elect_leaders(kind, asked).result(20)
    codes = {each.partition: None if error is None else error.code() for each, error in elected.items()}
    assert codes == {0: 84, 9: 3}


def test_confluent_elects_nobody_anywhere(confluent: AdminClient) -> None:
    assert not confluent.elect_leaders(ElectionType.PREFERRED, None).result(20)


def test_confluent_is_told_of_a_topic_that_is_not_there(confluent: AdminClient) -> None:
    with pytest.raises(KafkaException):
        confluent.describe_topics(TopicCollection(["nothing"]))["nothing"].result(20)


def test_kafka_python_describes_the_cluster(broker: Broker, admin: KafkaAdminClient) -> None:
    cluster = admin.describe_cluster()
    [node] = cluster["brokers"]
    assert f"{node['host']}:{node['port']}" == broker.bootstrap_servers
    assert (cluster["controller_id"], node["broker_id"], node["is_fenced"]) == (1, 1, False)
    assert len(cluster["authorized_operations"]) == 7


def test_confluent_is_refused_acls(confluent: AdminClient, topic: str) -> None:
    principal = ("User:u", "*", AclOperation.READ, AclPermissionType.ALLOW)
    acl = AclBinding(ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, *principal)
    wanted = AclBindingFilter(ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, *principal)
    for asked in (confluent.create_acls([acl])[acl], confluent.delete_acls([wanted])[wanted]):
        with pytest.raises(KafkaException) as refused:
            asked.result(20)
        assert refused.value.args[0].code() == KafkaError.SECURITY_DISABLED


def test_kafka_python_is_told_that_there_are_no_acls(admin: KafkaAdminClient) -> None:
    with pytest.raises(SecurityDisabledError):
        admin.describe_acls(ACLFilter(None, None, ACLOperation.ANY, ACLPermissionType.ANY, ANY_RESOURCE))


def test_kafka_python_describes_log_directories(admin: KafkaAdminClient, topic: str) -> None:
    for asked in (None, {topic: [0, 1, 2]}, [topic]):
        [described] = admin.describe_log_dirs(asked)
        [directory] = described["log_dirs"]
        sizes = {
            each["partition_index"]: each["partition_size"]
            for found in directory["topics"]
            if found["name"] == topic
            for each in found["partitions"]
        }
        assert (sizes[0], sizes[2]) == (0, 0)
        assert sizes[1] > 0


def test_kafka_python_elects_nobody(admin: KafkaAdminClient, topic: str) -> None:
    answer = admin.elect_leaders(0, {topic: [0, 1]})
    codes = [each.error_code for found in answer.replica_election_results for each in found.partition_result]
    assert codes == [84, 84]
    with pytest.raises(UnknownTopicOrPartitionError):
        admin.elect_leaders(0, {"nothing": [0]})


def test_kafka_python_describes_producers(admin: KafkaAdminClient, topic: str) -> None:
    described = admin.describe_producers([Partition(topic, number) for number in (0, 1)])
    assert described[Partition(topic, 0)].active_producers == []
    [producer] = described[Partition(topic, 1)].active_producers
    assert (producer.producer_epoch, producer.last_sequence) == (0, RECORDS - 1)


def test_kafka_python_describes_topics_in_pages(admin: KafkaAdminClient, topic: str) -> None:
    first = admin.describe_topic_partitions([topic], response_partition_limit=2)
    assert first["next_cursor"] == {"topic_name": topic, "partition_index": 2}
    last = admin.describe_topic_partitions([topic], response_partition_limit=2, cursor=first["next_cursor"])
    numbers = [each["partition_index"] for page in (first, last) for each in page["topics"][0]["partitions"]]
    assert (numbers, last["next_cursor"]) == (list(range(PARTITIONS)), None)


def test_kafka_python_moves_replicas_to_the_directory_where_they_are(admin: KafkaAdminClient, topic: str) -> None:
    directory = admin.describe_log_dirs()[0]["log_dirs"][0]["log_dir"]
    moved = admin.alter_replica_log_dirs({(topic, 0, 1): directory, (topic, 1, 1): "/nowhere", ("no", 0, 1): directory})
    assert {place.topic: error for place, error in moved.items() if place.partition != 1} == {
        topic: NoError, "no": UnknownTopicOrPartitionError,
    }  # fmt: skip
    assert [error for place, error in moved.items() if place.partition == 1] == [LogDirNotFoundError]


def test_kafka_python_updates_no_feature(admin: KafkaAdminClient) -> None:
    assert admin.describe_features()["transaction.version"]["finalized"] == (2, 2)
    assert admin.update_features({"transaction.version": 2}) == {"transaction.version": "OK"}
    with pytest.raises(InvalidUpdateVersionError):
        admin.update_features({"metadata.version": 30})


def test_kafka_python_describes_the_quorum(admin: KafkaAdminClient) -> None:
    [topic] = admin.describe_metadata_quorum()["topics"]
    [partition] = topic["partitions"]
    [voter] = partition["current_voters"]
    assert (partition["leader_id"], voter["replica_id"], partition["observers"]) == (1, 1, [])
    assert partition["high_watermark"] == voter["log_end_offset"] > 0


def test_each_broker_describes_the_quorum_as_it_has_observed_it() -> None:
    with Cluster(brokers=3) as cluster:
        answers = {node_id: quorum(broker.bootstrap_servers) for node_id, broker in cluster.brokers.items()}
    described = {node_id: answer.topics[0].partitions[0] for node_id, answer in answers.items()}
    [(leader, epoch)] = {(partition.leader_id, partition.leader_epoch) for partition in described.values()}
    assert epoch >= 1
    for node_id, partition in described.items():
        assert [voter.replica_id for voter in partition.current_voters] == [leader]
        assert [observer.replica_id for observer in partition.observers] == ([] if node_id == leader else [node_id])
        assert partition.high_watermark == partition.current_voters[0].log_end_offset > 0
        assert [node.node_id for node in answers[node_id].nodes] == [leader]


def quorum(address: str) -> Any:
    """Return the answer of a broker that has observed a controller."""
    topic = {"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}
    connection = RawConnection(address, {DESCRIBE_QUORUM: 2})
    while True:
        [answer] = connection.pipeline((DESCRIBE_QUORUM, {"topics": [topic]}))
        if answer.topics[0].partitions[0].error_code is ErrorCode.none:
            connection.close()
            return answer
