"""Real clients and their admin tools on a cluster of three: topics, leaders, replicas, coordinators."""

import json
from collections.abc import Iterator
from contextlib import closing
from typing import Any
from urllib.request import urlopen

import pytest
from confluent_kafka import Consumer, ElectionType, KafkaException, Producer
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaAdminClient, TopicPartition

from conveyor.kernel.ids import NodeId
from conveyor.testing import Cluster, MemoryDisk
from tests.unit.cli.commands import Run, runner

QUIET: dict[str, Any] = {"log_level": 0, "reconnect.backoff.max.ms": 100, "retry.backoff.ms": 20}


@pytest.fixture
def cluster(conveyor_cluster: Cluster) -> Cluster:
    return conveyor_cluster


@pytest.fixture
def admin(cluster: Cluster) -> AdminClient:
    return AdminClient({"bootstrap.servers": cluster.bootstrap_servers, **QUIET})


def new_python_admin(cluster: Cluster) -> KafkaAdminClient:
    """Return a client that has yet to learn which brokers live: one made before a stop may ask the stopped broker."""
    return KafkaAdminClient(bootstrap_servers=cluster.bootstrap_servers.split(","))


@pytest.fixture
def python_admin(cluster: Cluster) -> Iterator[KafkaAdminClient]:
    with closing(new_python_admin(cluster)) as client:
        yield client


@pytest.fixture
def run(cluster: Cluster, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.setenv("CONVEYOR_BOOTSTRAP", cluster.bootstrap_servers)
    return runner(monkeypatch, capfd)


def create(admin: AdminClient, name: str, partitions: int = 3, replicas: int = 3) -> None:
    admin.create_topics([NewTopic(name, partitions, replicas)])[name].result(30)


def produce(cluster: Cluster, topic: str, partition: int, *values: str) -> None:
    """Produce with acks=all. Raises AssertionError unless all values are acknowledged."""
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "enable.idempotence": True, **QUIET})
    errors = []
    for value in values:
        producer.produce(topic, value, partition=partition, on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(30) == 0
    assert errors == [None] * len(values)


def consume(cluster: Cluster, topic: str, partition: int, count: int) -> list[str]:
    settings = {"group.id": "readers", "enable.auto.commit": False, **QUIET}
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap_servers, **settings})
    consumer.assign([Place(topic, partition, 0)])
    messages = consumer.consume(count, 30)
    consumer.close()
    return [(message.value() or b"").decode() for message in messages]


def assigned(python_admin: KafkaAdminClient, topic: str) -> list[tuple[int, list[int], list[int]]]:
    """Return leader, replicas and ISR of each partition."""
    [described] = python_admin.describe_topics([topic])
    partitions = sorted(described["partitions"], key=lambda item: item["partition_index"])
    return [(item["leader_id"], item["replica_nodes"], sorted(item["isr_nodes"])) for item in partitions]


def test_a_created_topic_has_its_leaders_at_once(
    cluster: Cluster, admin: AdminClient, python_admin: KafkaAdminClient
) -> None:
    create(admin, "t")
    shown = assigned(python_admin, "t")
    assert sorted(leader for leader, _, _ in shown) == [1, 2, 3]
    assert all(isr == [1, 2, 3] for _, _, isr in shown)


def test_a_created_topic_takes_records_without_a_retry(cluster: Cluster, admin: AdminClient) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "acks": 1, "retries": 0, **QUIET})
    errors: list[object] = []
    for round_number in range(10):
        create(admin, f"t-{round_number}")
        for number in range(3):
            producer.produce(
                f"t-{round_number}", b"a", partition=number, on_delivery=lambda error, _: errors.append(error)
            )
        assert producer.flush(10) == 0
    assert errors == [None] * 30


def test_more_replicas_than_brokers_are_refused(admin: AdminClient) -> None:
    with pytest.raises(KafkaException) as refused:
        create(admin, "t", replicas=4)
    assert refused.value.args[0].name() == "INVALID_REPLICATION_FACTOR"


def test_fenced_brokers_are_described(cluster: Cluster, admin: AdminClient) -> None:
    """Here a stopped one: Metadata lists a killed broker for some seconds more."""
    create(admin, "t")
    cluster.brokers[3].stop()
    for node_id in (1, 2):
        cluster.brokers[node_id].wait_until(lambda image: image.brokers[NodeId(3)].is_fenced, "broker 3 is not fenced")
    assert sorted(admin.list_topics(timeout=10).brokers) == [1, 2]
    with closing(new_python_admin(cluster)) as python_admin:
        brokers = python_admin.describe_cluster()["brokers"]
        assert {broker["broker_id"]: broker["is_fenced"] for broker in brokers} == {1: False, 2: False, 3: True}
        assert all(leader in (1, 2) and 3 not in isr for leader, _, isr in assigned(python_admin, "t"))


def test_preferred_leaders_are_elected_after_a_restart(cluster: Cluster, admin: AdminClient) -> None:
    create(admin, "t")
    produce(cluster, "t", 0, "a")
    cluster.restart(1)
    cluster.wait_until_in_sync()
    admin.elect_leaders(ElectionType.PREFERRED).result(30)
    with closing(new_python_admin(cluster)) as python_admin:
        assert all(leader == replicas[0] for leader, replicas, _ in assigned(python_admin, "t"))


def test_records_move_with_a_reassignment(cluster: Cluster, admin: AdminClient, python_admin: KafkaAdminClient) -> None:
    create(admin, "t", partitions=1, replicas=1)
    produce(cluster, "t", 0, "a", "b")
    [(first, _, _)] = assigned(python_admin, "t")
    others = sorted({1, 2, 3} - {first})
    assert python_admin.alter_partition_reassignments({TopicPartition("t", 0): others}) == {
        TopicPartition("t", 0): None
    }
    for broker in cluster.brokers.values():
        broker.wait_until(
            lambda image: list(image.topics["t"].partitions[0].replicas) == others, "the reassignment is not complete"
        )
    assert python_admin.list_partition_reassignments() == {}
    cluster.kill(first)
    assert consume(cluster, "t", 0, 2) == ["a", "b"]


def test_a_broker_is_drained_by_the_command(cluster: Cluster, admin: AdminClient, run: Run) -> None:
    create(admin, "t", partitions=4, replicas=2)
    for number in range(4):
        produce(cluster, "t", number, str(number))
    drained = run("cluster", "drain", "3", "--yes")
    assert drained.exit_code == 0, drained.error
    status = json.loads(run("cluster", "status", "--json").out)
    assert {row["broker"]: row["replicas"] for row in status["brokers"]}[3] == 0
    assert status["attention"] == []
    cluster.brokers[3].stop()
    assert [consume(cluster, "t", number, 1) for number in range(4)] == [["0"], ["1"], ["2"], ["3"]]
    shrunk = run("cluster", "reassign", "t", "--replicas", "1", "--yes")
    assert shrunk.exit_code == 0, shrunk.error


def test_a_lost_disk_is_replaced_and_its_only_replicas_begin_again(
    cluster: Cluster, admin: AdminClient, run: Run
) -> None:
    """As docs/operations.md says: what can be copied is copied, and the rest needs an election."""
    for topic, replicas in {"single": [3], "triple": [3, 1, 2]}.items():
        admin.create_topics([NewTopic(topic, 1, replica_assignment=[replicas])])[topic].result(30)
        produce(cluster, topic, 0, "record")
    cluster.kill(3)
    cluster.brokers[3].disk = MemoryDisk()
    cluster.brokers[3].start()
    cluster.brokers[1].wait_until(lambda image: len(image.topics["triple"].partitions[0].isr) == 3, "3 is not back")
    status = json.loads(run("cluster", "status", "--json").out)
    assert (status["leaderless"], status["under_replicated"]) == (1, 0)
    elected = run("cluster", "elect", "--unclean", "--yes")
    assert elected.exit_code == 0, elected.error
    assert json.loads(run("cluster", "status", "--json").out)["attention"] == []
    produce(cluster, "single", 0, "new record")
    assert consume(cluster, "single", 0, 1) == ["new record"]
    assert consume(cluster, "triple", 0, 1) == ["record"]


def test_the_command_rebalances(cluster: Cluster, admin: AdminClient, run: Run) -> None:
    topic = NewTopic("t", 6, replica_assignment=[[1, 2]] * 6)
    admin.create_topics([topic])["t"].result(30)
    assert run("cluster", "rebalance", "--yes").exit_code == 0
    brokers = json.loads(run("cluster", "brokers", "--json").out)
    assert [(row["leads"], row["replicas"]) for row in brokers] == [(2, 4)] * 3


def test_every_broker_shows_all_offsets_over_http(cluster: Cluster, admin: AdminClient) -> None:
    create(admin, "t")
    for number in range(3):
        produce(cluster, "t", number, *map(str, range(number)))
    for broker in cluster.brokers.values():
        with urlopen(f"{broker.http_url}/topics/t") as answer:
            states = json.load(answer)["partition_states"]
        assert [state["high_watermark"] for state in states] == [0, 1, 2]
        with urlopen(f"{broker.http_url}/readyz") as answer:
            assert json.load(answer)["status"] == "ready"


def test_a_group_goes_on_when_its_coordinator_is_gone(cluster: Cluster, admin: AdminClient) -> None:
    create(admin, "t", partitions=1)
    produce(cluster, "t", 0, "a", "b")
    settings = {"group.id": "g", "auto.offset.reset": "earliest", "enable.auto.commit": False, **QUIET}
    first = Consumer({"bootstrap.servers": cluster.bootstrap_servers, **settings})
    first.subscribe(["t"])
    [message] = first.consume(1, 30)
    first.commit(message=message, asynchronous=False)
    first.close()
    image = cluster.brokers[1].image()
    assert {len(partition.replicas) for partition in image.topics["__consumer_offsets"].partitions} == {3}
    for node_id in (1, 2, 3):
        cluster.restart(node_id)
        cluster.wait_until_in_sync()
    second = Consumer({"bootstrap.servers": cluster.bootstrap_servers, **settings})
    second.subscribe(["t"])
    [message] = second.consume(1, 60)
    second.close()
    assert message.value() == b"b"
