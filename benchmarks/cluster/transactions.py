"""Transactions in a cluster: acks=all, three replicas of the topics and of the coordinators' state."""

import math
from collections.abc import Iterator

from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks import clients
from benchmarks.cluster.clusters import BROKERS, ClusterKind, RunningCluster, running_cluster
from benchmarks.transactions import RECORDS, commit_transactions
from benchmarks.workers import run_together, work

_COUNT = 400
_SIZE = 1_000
_PRODUCERS = (1, 4)
_MOST_WARM_UPS = 12
_STEADY_IN_A_ROW = 2
_CLEARLY_LESS = 0.9


def measure_transactions(kind: ClusterKind, scale: float) -> Iterator[tuple[str, float]]:
    """Yield the transactions a second, and the CPU of each, after a warm-up: Kafka's Java compiles what is used
    often.
    """
    count = max(10, round(_COUNT * scale))
    with running_cluster(kind) as cluster:
        _warm_up(cluster, kind, count)
        for producers in _PRODUCERS:
            rate, cpu_ms = _commit(cluster, kind, f"measured-{producers}", producers, count)
            what = f"transactions of {RECORDS} records of 1 kB, producers: {producers}"
            yield f"{what}, transactions/s", rate
            yield f"{what}, CPU of all servers, ms/transaction", cpu_ms


def _warm_up(cluster: RunningCluster, kind: ClusterKind, count: int) -> None:
    """Commit until it has not cost the servers clearly less than ever before for some times in a row."""
    least, in_a_row = math.inf, 0
    for number in range(_MOST_WARM_UPS):
        _, cpu_ms = _commit(cluster, kind, f"warm-up-{number}", max(_PRODUCERS), count)
        in_a_row = 0 if cpu_ms < least * _CLEARLY_LESS else in_a_row + 1
        least = min(least, cpu_ms)
        if in_a_row == _STEADY_IN_A_ROW:
            return


def _commit(cluster: RunningCluster, kind: ClusterKind, topic: str, producers: int, count: int) -> tuple[float, float]:
    """Commit transactions from some producers, each to a partition of its own.

    Returns the transactions a second, and the CPU of all servers for one, in ms.
    """
    admin = AdminClient(clients.client(cluster.bootstrap_servers))
    config = kind.topic_settings | {"min.insync.replicas": "2"}
    new = NewTopic(topic, producers, BROKERS, config=config)
    admin.create_topics([new], operation_timeout=30)[topic].result(60)
    before = cluster.cpu_seconds()
    servers = cluster.bootstrap_servers
    works = [work(commit_transactions, servers, topic, number, count, _SIZE) for number in range(producers)]
    seconds = run_together(*works).seconds
    spent_ms = (cluster.cpu_seconds() - before) * 1000
    return producers * count / seconds, spent_ms / (producers * (count + 1))
