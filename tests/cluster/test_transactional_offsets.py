"""Offsets in a transaction, while the broker that coordinates their group dies."""

import pytest
from confluent_kafka import OFFSET_INVALID, Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.cluster.broker_cluster import BrokerCluster, ClusterNode

TOPIC = "flights"
GROUP = "readers"
PATIENCE_SECONDS = 60


class Reader:
    """A member of no group, which asks for the group's offset."""

    def __init__(self, cluster: BrokerCluster, isolation_level: str) -> None:
        settings = {"bootstrap.servers": cluster.bootstrap, "group.id": GROUP, "log_level": 0}
        self.consumer = Consumer(settings | {"isolation.level": isolation_level})

    def committed(self, seconds: float = PATIENCE_SECONDS) -> int:
        [place] = self.consumer.committed([TopicPartition(TOPIC, 0)], seconds)
        assert place.error is None
        return int(place.offset)


def coordinator(cluster: BrokerCluster) -> ClusterNode:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    group = admin.describe_consumer_groups([GROUP], request_timeout=PATIENCE_SECONDS)[GROUP].result()
    return cluster.nodes[int(group.coordinator.id) - 1]


def test_pending_offsets_survive_the_death_of_their_coordinator(cluster: BrokerCluster) -> None:
    """The next coordinator knows them, and applies the marker that it gets."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    topic = NewTopic(TOPIC, 1, 3, config={"min.insync.replicas": "2"})
    admin.create_topics([topic])[TOPIC].result(30)
    stable, any_offset = Reader(cluster, "read_committed"), Reader(cluster, "read_uncommitted")
    settings = {"bootstrap.servers": cluster.bootstrap, "transactional.id": "worker", "log_level": 0}
    producer = Producer(settings)
    producer.init_transactions(PATIENCE_SECONDS)
    before = OFFSET_INVALID
    for offset, commits in ((1, True), (2, False)):
        producer.begin_transaction()
        producer.produce(TOPIC, str(offset), partition=0)
        metadata = stable.consumer.consumer_group_metadata()
        producer.send_offsets_to_transaction([TopicPartition(TOPIC, 0, offset)], metadata, PATIENCE_SECONDS)
        dead = coordinator(cluster)
        dead.kill()
        assert any_offset.committed() == before
        with pytest.raises(KafkaException):
            stable.committed(seconds=0.5)
        if commits:
            producer.commit_transaction(PATIENCE_SECONDS)
            before = offset
        else:
            producer.abort_transaction(PATIENCE_SECONDS)
        assert stable.committed() == before
        dead.start()
