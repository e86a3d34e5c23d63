"""Three brokers: a topic with three replicas is served on through the death of its leader, and through that of two."""

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.cluster.broker_cluster import BrokerCluster, ClusterNode
from tests.cluster.workloads import read_all

TOPIC = "flights"


def produce(cluster: BrokerCluster, values: list[str]) -> None:
    """Produce with acks=all; all values are acknowledged on return."""
    failed = []
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True, "log_level": 0})
    for value in values:
        producer.produce(
            TOPIC, value, partition=0, on_delivery=lambda error, _: failed.append(error) if error else None
        )
    assert producer.flush(60) == 0
    assert not failed


def leader(cluster: BrokerCluster) -> ClusterNode:
    """Return the leader of the topic's partition, once it has one."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    while True:
        topic = admin.list_topics(TOPIC, timeout=30).topics[TOPIC]
        number: int = topic.partitions[0].leader if topic.partitions else -1
        if number >= 0:
            return cluster.nodes[number - 1]


def create(cluster: BrokerCluster) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    topic = NewTopic(TOPIC, 1, 3, config={"min.insync.replicas": "2"})
    admin.create_topics([topic])[TOPIC].result(30)


def values(cluster: BrokerCluster) -> list[str]:
    return [value.decode() for _, value in sorted(read_all(cluster, TOPIC, 1).items())]


def test_records_survive_the_death_of_each_leader(cluster: BrokerCluster) -> None:
    create(cluster)
    expected = []
    for number in range(4):
        batch = [f"{number}-{index}" for index in range(20)]
        produce(cluster, batch)
        expected += batch
        dead = leader(cluster)
        dead.kill()
        produce(cluster, [f"{number}-after"])
        expected.append(f"{number}-after")
        dead.start()
    assert values(cluster) == expected


def test_records_survive_the_death_of_all_brokers_at_once(cluster: BrokerCluster) -> None:
    create(cluster)
    produce(cluster, ["before"])
    for node in cluster.nodes:
        node.kill()
    for node in cluster.nodes:
        node.start()
    produce(cluster, ["after"])
    assert values(cluster) == ["before", "after"]


def test_a_rolling_restart_interrupts_nobody_for_long(cluster: BrokerCluster) -> None:
    create(cluster)
    for number, node in enumerate(cluster.nodes):
        produce(cluster, [f"{number}"])
        assert node.stop() == 0
        node.start()
    produce(cluster, ["3"])
    assert values(cluster) == ["0", "1", "2", "3"]
