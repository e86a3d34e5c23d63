"""Thousands of partitions on three brokers: how fast they are created, and led again after a kill."""

import math
import time
from collections.abc import Iterator

from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks import clients
from benchmarks.cluster.clusters import BROKERS, ClusterKind, RunningCluster, running_cluster
from benchmarks.cluster.new_leaders import leaders, seconds_until_acknowledged

_TOPIC = "many"
_FAILED_OVER = 1_000
_CREATED = 10_000
_TOPICS = 10
"""Kafka refuses to create 10,000 partitions in one request, so each topic has a request of its own."""

_LIMIT_S = 300
_PAUSE_S = 0.1
_VICTIM = 1
_MEBIBYTE = 1 << 20


def measure_failover(kind: ClusterKind, scale: float) -> Iterator[tuple[str, float]]:
    """Every broker leads 1,000 partitions, and one is killed. Each partition has a record before."""
    led = round(_FAILED_OVER * scale)
    with running_cluster(kind) as cluster:
        _create(kind, cluster, [_TOPIC], led * BROKERS)
        addresses = dict(enumerate(cluster.addresses, 1))
        seconds_until_acknowledged(addresses, _TOPIC, range(led * BROKERS), _LIMIT_S)
        found = leaders(cluster.addresses[0], [_TOPIC])
        lost = [number for (_, number), leader in found.items() if leader == _VICTIM]
        del addresses[_VICTIM]
        began = time.perf_counter()
        cluster.kill(_VICTIM)
        seconds_until_acknowledged(addresses, _TOPIC, lost, _LIMIT_S)
        yield f"{led:,} partitions of a killed broker acknowledge again, s", time.perf_counter() - began


def measure_creation(kind: ClusterKind, scale: float) -> Iterator[tuple[str, float]]:
    """Ten topics, until every broker names a leader of each partition. Infinite beyond a limit."""
    each = round(_CREATED / _TOPICS * scale)
    count = each * _TOPICS
    with running_cluster(kind) as cluster:
        try:
            seconds = _create(kind, cluster, [f"{_TOPIC}-{number}" for number in range(_TOPICS)], each)
        except RuntimeError:
            seconds = math.inf
        yield f"{count:,} partitions created, s", seconds
        yield f"memory of the brokers with {count:,} partitions, MiB", cluster.broker_bytes() / _MEBIBYTE


def _create(kind: ClusterKind, cluster: RunningCluster, names: list[str], each: int) -> float:
    """Create topics of so many partitions, and wait until every broker names the leaders.

    Returns the seconds. Raises RuntimeError when the limit is exceeded, KafkaException when a request is refused.
    """
    began = time.perf_counter()
    admin = AdminClient(clients.client(cluster.bootstrap_servers))
    config = kind.topic_settings | {"min.insync.replicas": "2"}
    for name in names:
        topic = NewTopic(name, each, BROKERS, config=config)
        admin.create_topics([topic], operation_timeout=_LIMIT_S, request_timeout=_LIMIT_S)[name].result(_LIMIT_S)
    for address in cluster.addresses:
        while not _are_led(address, names, each * len(names)):
            if time.perf_counter() - began > _LIMIT_S:
                raise RuntimeError(f"the partitions are not led after {_LIMIT_S} s")
            time.sleep(_PAUSE_S)
    return time.perf_counter() - began


def _are_led(address: str, names: list[str], count: int) -> bool:
    try:
        named = leaders(address, names)
    except OSError:  # Busy, and asked again.
        return False
    return len(named) == count and min(named.values()) > 0
