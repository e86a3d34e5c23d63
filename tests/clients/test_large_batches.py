"""Batches and calls that are larger than any request of a client, among real brokers whose settings differ.

The limit of requests is as low as the test allows, so that little data is above it, and above twice as much.
"""

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from threading import Barrier
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from conveyor.testing import Cluster
from tests.clients.raw_connection import RawConnection
from tests.clients.rest_client import Rest
from tests.unit.kafka_api.requests import FIND_COORDINATOR, JOIN_GROUP

LIMIT_BYTES = 20_000
LOW = {"network.max_request_bytes": LIMIT_BYTES, "topics.max_message_bytes": LIMIT_BYTES}
HIGH = {"network.max_request_bytes": 2_000_000, "topics.max_message_bytes": 2_000_000}
TEXT = {"Content-Type": "text/plain"}
LARGE = b"y" * 1_500_000
SYNC_GROUP = 14
VERSIONS = {FIND_COORDINATOR: 4, JOIN_GROUP: 5, SYNC_GROUP: 5}
GROUP = {"group_id": "g", "group_instance_id": None}


def new_cluster(*settings: Mapping[str, object]) -> Cluster:
    """A cluster of brokers with these settings, where a broker commits alone."""
    of_all = {"topics.min_insync_replicas": 1, "groups.offsets_partitions": 1, "groups.offsets_replication_factor": 2}
    cluster = Cluster(brokers=len(settings), settings={**of_all, "groups.initial_rebalance_delay_ms": 500})
    for broker, own in zip(cluster.brokers.values(), settings, strict=True):
        broker._settings |= own
    return cluster


@pytest.fixture
def low() -> Iterator[Cluster]:
    with new_cluster(LOW, LOW) as cluster:
        yield cluster


def create(cluster: Cluster, replicas: int, max_message_bytes: int) -> int:
    """Create the topic `t`. Returns the leader of its partition."""
    config = {"max.message.bytes": str(max_message_bytes)}
    ask(cluster, 1, "POST", "/topics", {"name": "t", "partitions": 1, "replicas": replicas, "config": config})
    cluster.wait_until_in_sync()
    leader = cluster.leader("t", 0)
    assert leader is not None
    return leader


def ask(cluster: Cluster, node_id: int, method: str, path: str, body: object = None) -> Any:
    with closing(Rest(cluster.brokers[node_id])) as rest:
        answer = rest.ask(method, path, body, headers=TEXT if isinstance(body, bytes) else None)
    assert answer.status in (200, 201), answer.body
    return answer.json


def publish(cluster: Cluster, node_id: int, value: bytes) -> None:
    ask(cluster, node_id, "POST", "/topics/t/messages", value)


def sizes(cluster: Cluster, count: int) -> list[int]:
    """Return the sizes of the messages in the topic."""
    consumer = Consumer(
        {"bootstrap.servers": cluster.bootstrap_servers, "group.id": "r", "receive.message.max.bytes": 1 << 26}
    )
    with closing(consumer):
        consumer.assign([TopicPartition("t", 0, 0)])
        found: list[int] = []
        while len(found) < count:
            for message in consumer.consume(count, 30):
                assert message.error() is None
                found.append(len(message.value() or b""))
        return found


def test_batch_above_the_limit_of_requests_is_replicated_and_survives_restarts(low: Cluster) -> None:
    leader = create(low, 2, 4_000_000)
    publish(low, leader, b"small")
    publish(low, leader, LARGE)
    low.wait_until_in_sync()
    for _ in range(2):
        low.restart(leader)
        low.wait_until_in_sync()
    publish(low, 3 - leader, b"after")
    low.kill(leader)
    low.brokers[3 - leader].wait_until(
        lambda image: image.topics["t"].partitions[0].leader == 3 - leader, "the follower leads"
    )
    assert sizes(low, 3) == [5, len(LARGE), 5]


def test_lower_limit_is_set_over_a_log_with_larger_batches() -> None:
    with new_cluster(HIGH, HIGH) as cluster:
        leader = create(cluster, 2, 2_000_000)
        follower = 3 - leader
        cluster.kill(follower)
        publish(cluster, leader, LARGE)
        cluster.kill(leader)
        for node_id in (leader, follower):
            cluster.brokers[node_id]._settings |= LOW
        cluster.restart(leader)
        cluster.restart(follower)
        cluster.wait_until_in_sync()
        assert sizes(cluster, 1) == [len(LARGE)]


@pytest.mark.parametrize("leader", [1, 2])
def test_brokers_with_different_limits_replicate_and_lead_in_turn(leader: int) -> None:
    with new_cluster(HIGH, LOW) as cluster:
        first = create(cluster, 2, 2_000_000)
        publish(cluster, leader, LARGE)
        cluster.wait_until_in_sync()
        cluster.restart(first)
        cluster.wait_until_in_sync()
        publish(cluster, 3 - leader, b"after")
        assert sizes(cluster, 2) == [len(LARGE), 5]


def test_lease_of_more_than_a_request_is_answered_by_another_broker(low: Cluster) -> None:
    leader = create(low, 1, 100_000)
    ask(low, leader, "POST", "/topics/t/subscriptions", {"name": "s", "start": "earliest"})
    for _ in range(10):
        publish(low, leader, b"z" * 15_000)
    leased = ask(low, 3 - leader, "GET", "/subscriptions/s/messages?max_messages=10")["messages"]
    assert [len(message["payload"]) for message in leased] == [15_000] * 10
    assert all(ask(low, node_id, "GET", "/readyz")["status"] == "ready" for node_id in (1, 2))


def test_group_whose_record_is_larger_than_a_request_is_replicated(low: Cluster) -> None:
    address = coordinator(low)
    barrier = Barrier(4)
    with ThreadPoolExecutor(4) as members:
        synced = [future.result(60) for future in [members.submit(be_member, address, barrier) for _ in range(4)]]
    assert synced == [0] * 4
    low.wait_until_in_sync()
    low.restart(1)
    low.restart(2)
    low.wait_until_in_sync()
    assert all(ask(low, node_id, "GET", "/readyz")["status"] == "ready" for node_id in (1, 2))


def coordinator(cluster: Cluster) -> str:
    """Return the address of the coordinator of the group `g`, once there is one."""
    fields = {"key_type": 0, "coordinator_keys": ("g",)}
    with closing(RawConnection(cluster.brokers[1].bootstrap_servers, VERSIONS)) as connection:
        while True:
            found = connection.pipeline((FIND_COORDINATOR, fields))[0].coordinators[0]
            if not found.error_code:
                return f"{found.host}:{found.port}"


def be_member(address: str, barrier: Barrier) -> int:
    """Join the group with as much metadata as a request may have, and sync. Returns the error code of the last."""
    with closing(RawConnection(address, VERSIONS)) as connection:
        limits = {"session_timeout": 30_000, "rebalance_timeout": 30_000, "protocol_type": "consumer", **GROUP}
        small, large = ([{"name": "range", "metadata": bytes(size)}] for size in (1, LIMIT_BYTES - 1_000))
        (first,) = connection.pipeline((JOIN_GROUP, {**limits, "member_id": "", "protocols": small}))
        barrier.wait(60)
        (joined,) = connection.pipeline((JOIN_GROUP, {**limits, "member_id": first.member_id, "protocols": large}))
        own = {"generation_id": joined.generation_id, "member_id": first.member_id, **GROUP}
        assignments = [{"member_id": member.member_id, "assignment": b"a"} for member in joined.members]
        (synced,) = connection.pipeline(
            (SYNC_GROUP, {**own, "protocol_type": "consumer", "protocol_name": "range", "assignments": assignments})
        )
        return int(synced.error_code)
