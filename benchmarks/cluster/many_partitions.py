"""Thousands of partitions on three brokers: how fast they are created, and led again after a kill."""

import math
import time
from collections.abc import Iterator

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks import clients
from benchmarks.cluster.clusters import BROKERS, ClusterKind, RunningCluster, running_cluster
from benchmarks.cluster.new_leaders import leaders, seconds_until_acknowledged

_TOPIC = "many"
_FAILED_OVER = 1_000
_CREATED = 10_000
_LIMIT_S = 300
_PAUSE_S = 0.1
_VICTIM = 1
_MEBIBYTE = 1 << 20


def measure_failover(kind: ClusterKind, scale: float) -> Iterator[tuple[str, float]]:
    """Every broker leads 1,000 partitions, and one is killed. Each partition has a record before."""
    led = round(_FAILED_OVER * scale)
    with running_cluster(kind) as cluster:
        _create(kind, cluster, led * BROKERS)
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
    """One CreateTopics request, until every broker names a leader of each partition. Infinite beyond a limit."""
    count = round(_CREATED * scale)
    with running_cluster(kind) as cluster:
        try:
            yield f"{count:,} partitions created, s", _create(kind, cluster, count)
        except (RuntimeError, KafkaException):
            yield f"{count:,} partitions created, s", math.inf
        yield f"memory of the brokers with {count:,} partitions, MiB", cluster.broker_bytes() / _MEBIBYTE


def _create(kind: ClusterKind, cluster: RunningCluster, count: int) -> float:
    """Create the topic, and wait until every broker names the leaders. Returns the seconds. Raises RuntimeError."""
    began = time.perf_counter()
    admin = AdminClient(clients.client(cluster.bootstrap_servers))
    topic = NewTopic(_TOPIC, count, BROKERS, config=kind.topic_settings | {"min.insync.replicas": "2"})
    admin.create_topics([topic], operation_timeout=_LIMIT_S, request_timeout=_LIMIT_S)[_TOPIC].result(_LIMIT_S)
    for address in cluster.addresses:
        while not _are_led(address, count):
            if time.perf_counter() - began > _LIMIT_S:
                raise RuntimeError(f"{count} partitions are not led after {_LIMIT_S} s")
            time.sleep(_PAUSE_S)
    return time.perf_counter() - began


def _are_led(address: str, count: int) -> bool:
    try:
        named = leaders(address, [_TOPIC])
    except OSError:  # Busy, and asked again.
        return False
    return len(named) == count and min(named.values()) > 0
