"""Three brokers whose files differ: a clean election loses nothing; operators see and change the cluster's values."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic

from tests.cluster.broker_cluster import BrokerCluster
from tests.cluster.workloads import read_all

TOPIC, MINIMUM = "flights", "min.insync.replicas"
OF_ALL_BROKERS = 3
PATIENCE_S = 60.0
ALONE, TOGETHER = ("--set", "topics.min_insync_replicas=1"), ("--set", "topics.min_insync_replicas=2")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[BrokerCluster]:
    """Broker 1 would commit alone by what it was started with. Broker 3 is the first, and the controller."""
    cluster = BrokerCluster(tmp_path, own_options={1: ALONE, 2: TOGETHER, 3: TOGETHER})
    try:
        yield cluster.start(2)
    finally:
        cluster.end()


def until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s, "the condition never holds"
        time.sleep(0.1)


def conveyor(*arguments: str) -> str:
    command = [sys.executable, "-m", "conveyor.cli.main", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=PATIENCE_S).stdout


def admin(cluster: BrokerCluster) -> AdminClient:
    return AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})


def acknowledged(cluster: BrokerCluster, values: list[str], timeout_s: float) -> set[str]:
    """Produce with acks=all, and return the values that were acknowledged."""
    taken: set[str] = set()

    def delivered(error: KafkaError | None, message: Message) -> None:
        value = message.value()
        if error is None and value is not None:
            taken.add(value.decode())

    producer = Producer(
        {"bootstrap.servers": cluster.bootstrap, "acks": "all", "message.timeout.ms": timeout_s * 1000, "log_level": 0}
    )
    for value in values:
        producer.produce(TOPIC, value, on_delivery=delivered)
    producer.flush()
    return taken


def isr(cluster: BrokerCluster) -> list[int]:
    partitions = admin(cluster).list_topics(TOPIC, timeout=30).topics[TOPIC].partitions
    return sorted(partitions[0].isrs) if partitions else []


def leader(cluster: BrokerCluster) -> int:
    partitions = admin(cluster).list_topics(TOPIC, timeout=30).topics[TOPIC].partitions
    return partitions[0].leader if partitions else -1


def minimum(cluster: BrokerCluster, kind: ConfigResource.Type, name: str) -> tuple[str, int]:
    resource, client = ConfigResource(kind, name), admin(cluster)
    entry = client.describe_configs([resource])[resource].result(30)[MINIMUM]
    return entry.value, entry.source


def test_records_that_a_leader_acknowledged_survive_a_clean_election(cluster: BrokerCluster) -> None:
    one, two, _ = cluster.nodes
    client = admin(cluster)
    client.create_topics([NewTopic(TOPIC, 1, replica_assignment=[[1, 2]])])[TOPIC].result(30)
    kept = acknowledged(cluster, ["before"], 60)
    assert kept == {"before"}
    two.kill()
    until(lambda: isr(cluster) == [1])
    kept |= acknowledged(cluster, [f"alone-{number}" for number in range(5)], 3)
    one.kill()
    two.start()
    until(lambda: leader(cluster) == 2)
    one.start()
    until(lambda: isr(cluster) == [1, 2])
    assert kept <= {value.decode() for value in read_all(cluster, TOPIC, 1).values()}


def test_operators_see_and_change_the_clusters_value(cluster: BrokerCluster) -> None:
    assert "setting not used name=min.insync.replicas value=1 of_cluster=2" in cluster.log(0)
    assert "setting not used" not in cluster.log(1) + cluster.log(2)
    for name in ("1", "2", "3"):
        assert minimum(cluster, ConfigResource.Type.BROKER, name) == ("2", OF_ALL_BROKERS)
    change = ConfigEntry(MINIMUM, "1", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.BROKER, "1", incremental_configs=[change])
    client = admin(cluster)
    with pytest.raises(KafkaException, match="has one value in the whole cluster"):
        client.incremental_alter_configs([resource])[resource].result(30)
    conveyor("cluster", "settings", "--config", f"{MINIMUM}=3", "--bootstrap", cluster.nodes[1].kafka)
    names = ("1", "2", "3")
    until(lambda: all(minimum(cluster, ConfigResource.Type.BROKER, name) == ("3", OF_ALL_BROKERS) for name in names))
