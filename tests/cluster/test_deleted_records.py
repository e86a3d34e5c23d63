"""Records whose deletion was acknowledged do not come back with the next leader."""

import time

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.cluster.broker_cluster import BrokerCluster

TOPIC = "flights"
RECORDS, KEPT_FROM = 10, 7
PATIENCE_S = 60.0


@pytest.fixture
def admin(cluster: BrokerCluster) -> AdminClient:
    """A topic with ten records, which brokers 1 and 2 hold; broker 1 leads it."""
    client = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    topic = NewTopic(TOPIC, 1, replica_assignment=[[1, 2]], config={"min.insync.replicas": "2"})
    client.create_topics([topic])[TOPIC].result(30)
    failed = []
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all", "log_level": 0})
    for number in range(RECORDS):
        producer.produce(
            TOPIC, b"%d" % number, partition=0, on_delivery=lambda error, _: failed.append(error) if error else None
        )
    assert producer.flush(60) == 0
    assert not failed
    return client


def isr(admin: AdminClient) -> list[int]:
    partitions = admin.list_topics(TOPIC, timeout=30).topics[TOPIC].partitions
    return sorted(partitions[0].isrs) if partitions else []


def wait_for_isr(admin: AdminClient, *expected: int) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while isr(admin) != list(expected):
        assert time.monotonic() < deadline_s, f"the ISR is {isr(admin)}"
        time.sleep(0.1)


def deleted(admin: AdminClient) -> KafkaError | None:
    """Delete the first records; returns the error."""
    before = TopicPartition(TOPIC, 0, KEPT_FROM)
    try:
        assert admin.delete_records([before], request_timeout=10)[before].result(30).low_watermark == KEPT_FROM
    except KafkaException as failure:
        error: KafkaError = failure.args[0]
        return error
    return None


def first_offset(cluster: BrokerCluster) -> int:
    """Return the start of the partition, whose ISR is complete, so that its leader has committed all records."""
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "anyone", "log_level": 0})
    try:
        first, end = consumer.get_watermark_offsets(TopicPartition(TOPIC, 0), timeout=PATIENCE_S)
    finally:
        consumer.close()
    assert end == RECORDS
    return int(first)


def wait_for_leader(admin: AdminClient, leader: int) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while leader_of(admin) != leader:
        assert time.monotonic() < deadline_s, f"broker {leader} does not lead"
        time.sleep(0.1)


def leader_of(admin: AdminClient) -> int | None:
    """Return the leader; None if the broker that librdkafka has asked is dead, because it asks no other one then."""
    try:
        return int(admin.list_topics(TOPIC, timeout=5).topics[TOPIC].partitions[0].leader)
    except KafkaException:
        return None


def test_an_acknowledged_deletion_survives_the_election_of_an_eligible_replica(
    cluster: BrokerCluster, admin: AdminClient
) -> None:
    one, two, _ = cluster.nodes
    two.kill()
    wait_for_isr(admin, 1)
    error = deleted(admin)
    one.kill()
    two.start()
    wait_for_leader(admin, 2)
    one.start()
    wait_for_isr(admin, 1, 2)
    assert error is not None or first_offset(cluster) == KEPT_FROM
    assert error is None or error.code() == KafkaError.NOT_ENOUGH_REPLICAS
    assert deleted(admin) is None


def test_every_replica_that_may_lead_next_has_deleted(cluster: BrokerCluster, admin: AdminClient) -> None:
    one, two, _ = cluster.nodes
    assert deleted(admin) is None
    for leader, successor in ((one, 2), (two, 1)):
        leader.kill()
        wait_for_leader(admin, successor)
        leader.start()
        wait_for_isr(admin, 1, 2)
        assert first_offset(cluster) == KEPT_FROM
