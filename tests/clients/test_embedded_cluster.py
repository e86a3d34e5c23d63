"""`Cluster`: several brokers in the test's process, which it kills, restarts and separates."""

import json
import subprocess
import sys
import threading

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import AdminClient, NewTopic

from conveyor.kernel.ids import NodeId
from conveyor.testing import Cluster

TOPIC = "flights"
QUIET = {"log_level": 0, "reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 100, "retry.backoff.ms": 20}


def create(cluster: Cluster, replicas: int = 3, partitions: int = 1) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, **QUIET})
    config = {"min.insync.replicas": str(min(2, replicas))}
    admin.create_topics([NewTopic(TOPIC, partitions, replicas, config=config)])[TOPIC].result(30)


def produce(cluster: Cluster, *values: str) -> None:
    """Produce with acks=all by a client that knows all brokers, and fail unless all values are acknowledged."""
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "enable.idempotence": True, **QUIET})
    errors = []
    for value in values:
        producer.produce(TOPIC, value, on_delivery=lambda error, _: errors.append(error) if error else None)
    assert producer.flush(30) == 0
    assert not errors


def consume(cluster: Cluster, count: int) -> list[str]:
    consumer = Consumer(
        {"bootstrap.servers": cluster.bootstrap_servers, "group.id": "readers", "enable.auto.commit": False, **QUIET}
    )
    consumer.assign([Place(TOPIC, 0, 0)])
    messages = consumer.consume(count, 30)
    consumer.close()
    return [(message.value() or b"").decode() for message in messages]


@pytest.fixture
def cluster(conveyor_cluster: Cluster) -> Cluster:
    return conveyor_cluster


def test_acknowledged_records_survive_their_leader(cluster: Cluster) -> None:
    create(cluster)
    produce(cluster, "before")
    leader = cluster.leader(TOPIC, 0)
    assert leader
    cluster.kill(leader)
    produce(cluster, "after")
    assert consume(cluster, 2) == ["before", "after"]
    assert cluster.leader(TOPIC, 0) not in (None, leader)


def test_a_restarted_broker_catches_up(cluster: Cluster) -> None:
    create(cluster)
    produce(cluster, "1")
    cluster.kill(1)
    produce(cluster, "2")
    cluster.restart(1)
    cluster.wait_until_in_sync()
    for node_id in (2, 3):
        cluster.kill(node_id)
        cluster.restart(node_id)
        cluster.wait_until_in_sync()
    assert consume(cluster, 2) == ["1", "2"]


def test_the_minority_of_a_partition_acknowledges_nothing(cluster: Cluster) -> None:
    create(cluster)
    produce(cluster, "1")
    leader = cluster.leader(TOPIC, 0)
    assert leader
    others = set(cluster.brokers) - {leader}
    cluster.partition({leader}, others)
    cluster.brokers[min(others)].wait_until(
        lambda image: image.topics[TOPIC].partitions[0].leader in others, "no other broker leads"
    )
    produce(cluster, "2")
    cluster.heal()
    cluster.wait_until_in_sync()
    assert consume(cluster, 2) == ["1", "2"]


def test_a_client_of_a_broker_that_is_partitioned_off_moves_to_the_others(cluster: Cluster) -> None:
    """The client is connected to all brokers, and has the metadata of before the partition."""
    create(cluster)
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "enable.idempotence": True, **QUIET})
    producer.produce(TOPIC, "1")
    assert producer.flush(30) == 0
    leader = cluster.leader(TOPIC, 0)
    assert leader
    cluster.partition({leader}, set(cluster.brokers) - {leader})
    producer.produce(TOPIC, "2")
    assert producer.flush(30) == 0
    assert consume(cluster, 2) == ["1", "2"]


def test_all_brokers_know_each_other_after_the_start(cluster: Cluster) -> None:
    assert all(broker.image().brokers.keys() == {1, 2, 3} for broker in cluster.brokers.values())


def test_a_broker_is_stopped_and_started_on_the_same_ports(cluster: Cluster) -> None:
    create(cluster)
    produce(cluster, "1")
    broker = cluster.brokers[2]
    address = broker.bootstrap_servers
    broker.stop()
    assert not broker.is_running
    broker.start()
    assert broker.bootstrap_servers == address
    cluster.wait_until_in_sync()
    assert consume(cluster, 1) == ["1"]


def test_nothing_is_left_running() -> None:
    before = set(threading.enumerate())
    with Cluster(brokers=2) as cluster:
        create(cluster, replicas=2)
        cluster.kill(1)
    names = {thread.name for thread in set(threading.enumerate()) - before}
    assert not {name for name in names if name.startswith(("conveyor", "disk"))}


def test_mistakes_are_explained() -> None:
    with pytest.raises(ValueError, match="at least one"):
        Cluster(brokers=0)
    with Cluster(brokers=2) as cluster:
        with pytest.raises(ValueError, match="must have each of the brokers"):
            cluster.partition({1})
        with pytest.raises(ValueError, match="is running"):
            cluster.brokers[1].start()
        cluster.kill(1)
        with pytest.raises(ValueError, match="is not running"):
            cluster.kill(1)
        for call in (cluster.kill, cluster.restart):
            with pytest.raises(ValueError, match=r"no broker 9: this cluster has the brokers \[1, 2\]"):
                call(9)
    for late_call in (cluster.heal, cluster.brokers[1].start):
        with pytest.raises(ValueError, match="does not run: start it first"):
            late_call()


def test_replicas_of_a_killed_broker_are_not_in_sync(cluster: Cluster) -> None:
    create(cluster)
    cluster.wait_until_in_sync()
    for node_id in (1, 2):
        cluster.kill(node_id)
        with pytest.raises(ValueError, match=rf"broker {node_id} does not run and has a replica of flights-0"):
            cluster.wait_until_in_sync()
        for broker in cluster.brokers.values():
            assert not broker.is_running or broker.image().brokers[NodeId(node_id)].is_fenced
        cluster.restart(node_id)
        cluster.wait_until_in_sync()
        for broker in cluster.brokers.values():
            assert broker.image().brokers[NodeId(node_id)].incarnation == cluster.brokers[node_id].incarnation
    for broker in cluster.brokers.values():
        broker.kill()
    with pytest.raises(ValueError, match="no broker is running"):
        cluster.wait_until_in_sync()


KILLED_UNDER_LOAD = """
import http.client, json, logging, threading
from conveyor.testing import Cluster

def ask(broker, method, path, body=None):
    connection = http.client.HTTPConnection(broker.http_url.removeprefix("http://"), timeout=10)
    try:
        connection.request(method, path, body)
        return connection.getresponse().read()
    except (OSError, http.client.HTTPException):
        return b""
    finally:
        connection.close()

def keep_asking(*request):
    while not is_over.is_set():
        ask(*request)
        answered.release()

logging.getLogger("conveyor").setLevel(logging.CRITICAL)
is_over, answered = threading.Event(), threading.Semaphore(0)
with Cluster() as cluster:
    ask(cluster.brokers[1], "POST", "/topics", json.dumps({"name": "t", "partitions": 3, "replicas": 3}))
    ask(cluster.brokers[1], "POST", "/topics/t/subscriptions", json.dumps({"name": "s"}))
    requests = [("GET", "/subscriptions/s/messages?wait=5s"), ("POST", "/topics/t/messages", "x")]
    clients = [
        threading.Thread(target=keep_asking, args=(broker, *request))
        for broker in cluster.brokers.values() for request in 2 * requests
    ]
    for client in clients:
        client.start()
    for _ in range(100):
        answered.acquire()
    for node_id in cluster.brokers:
        cluster.kill(node_id)
    is_over.set()
    for client in clients:
        client.join()
"""


def test_a_process_that_has_killed_busy_brokers_exits_in_silence() -> None:
    command = [sys.executable, "-W", "always", "-c", KILLED_UNDER_LOAD]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")


def wait_until_read_from(consumer: Consumer, statistics: list[str], broker: int) -> None:
    """Poll until the consumer fetches the partition from a broker."""
    for _ in range(600):
        consumer.poll(0.05)
        topics = json.loads(statistics[-1])["topics"] if statistics else {}
        if TOPIC in topics and topics[TOPIC]["partitions"]["0"]["broker"] == broker:
            return
    raise AssertionError(f"the consumer never fetches from broker {broker}")


def test_a_consumer_reads_from_the_replica_in_its_rack_and_returns_when_that_broker_fails() -> None:
    with Cluster(racks=("a", "b", "c"), settings={"broker.replica_selector": "rack"}) as cluster:
        create(cluster)
        cluster.wait_until_in_sync()
        leader = cluster.leader(TOPIC, 0)
        assert leader
        near = next(node_id for node_id in cluster.brokers if node_id != leader)
        statistics: list[str] = []
        consumer = Consumer(
            {
                "bootstrap.servers": cluster.bootstrap_servers, "group.id": "readers", "client.rack": "abc"[near - 1],
                "statistics.interval.ms": 50, "stats_cb": statistics.append, **QUIET,
            }
        )  # fmt: skip
        consumer.assign([Place(TOPIC, 0, 0)])
        produce(cluster, "one")
        assert [message.value() for message in consumer.consume(1, 30)] == [b"one"]
        wait_until_read_from(consumer, statistics, near)
        produce(cluster, "two")
        assert [message.value() for message in consumer.consume(1, 30)] == [b"two"]
        cluster.kill(near)
        produce(cluster, "three")
        assert [message.value() for message in consumer.consume(1, 60)] == [b"three"]
        consumer.close()
