"""A cluster of three brokers, one of whose disks does not finish a flush: producers and operators notice."""

import json
from http.client import HTTPConnection
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from conveyor.testing import Cluster
from tests.unit.broker.held_disk import HeldDisk

TOPIC = "flights"
SETTINGS = {"disk.stall_timeout_ms": 1_000, "broker.replica_lag_time_max_ms": 2_000}


def produce(cluster: Cluster, value: str) -> None:
    """Produce with acks=all; returns when the record is acknowledged."""
    failures = []
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "acks": "all", "log_level": 0})
    producer.produce(TOPIC, value, on_delivery=lambda error, _: failures.append(error) if error else None)
    assert producer.flush(60) == 0
    assert not failures


def readiness(cluster: Cluster, node_id: int) -> Any:
    address = cluster.brokers[node_id].http_url.removeprefix("http://")
    connection = HTTPConnection(address, timeout=10)
    try:
        connection.request("GET", "/readyz")
        return json.loads(connection.getresponse().read())
    finally:
        connection.close()


def test_a_leader_whose_disk_hangs_is_replaced_and_returns() -> None:
    cluster = Cluster(brokers=3, settings=SETTINGS)
    disks = {node_id: HeldDisk() for node_id in cluster.brokers}
    for node_id, disk in disks.items():
        cluster.brokers[node_id].disk = disk
    with cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
        topic = NewTopic(TOPIC, 1, replication_factor=3, config={"min.insync.replicas": "2"})
        admin.create_topics([topic])[TOPIC].result(30)
        cluster.wait_until_in_sync()
        produce(cluster, "before")
        leader = cluster.leader(TOPIC, 0)
        assert leader is not None
        disks[leader].hold_syncs()
        try:
            produce(cluster, "while it hangs")
            assert cluster.leader(TOPIC, 0) != leader
            assert readiness(cluster, leader)["stalled_disk"].startswith("the disk does not finish a flush")
        finally:
            disks[leader].release()
        cluster.wait_until_in_sync()
        produce(cluster, "after")
        assert readiness(cluster, leader)["status"] == "ready"
