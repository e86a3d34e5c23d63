"""`python -m benchmarks.cluster`: three brokers, three replicas, acks=all, min.insync.replicas=2; Kafka's beside them.

The systems take turns, and each turn has a new cluster. The load generators run on the same cores.
"""

import argparse
import statistics
import time
from collections.abc import Iterator
from itertools import pairwise

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from rich.console import Console
from rich.table import Table

from benchmarks import clients
from benchmarks.cluster.catch_up import measure_catch_up
from benchmarks.cluster.clusters import ClusterKind, ConveyorCluster, KafkaCluster, RunningCluster, running_cluster
from benchmarks.cluster.many_partitions import measure_creation, measure_failover
from benchmarks.cluster.transactions import measure_transactions
from benchmarks.kafka.release import NotFetchedError, fetch
from benchmarks.streams import produce
from benchmarks.workers import run_together, work

_SIZE = 1_000
_COUNT = 200_000
_WARM_UP = 100_000
_LATENCIES = 2_000
_PARTITIONS = 6
_REPLICAS = 3
_AFTER_KILL_S = 20.0
_MEBIBYTE = 1 << 20

Figures = dict[str, list[float]]
"""The figure of each round, by what was measured."""


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cluster", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="how many records are sent; 1.0 is the default")
    parser.add_argument("--only", choices=_GROUPS, nargs="+", default=list(_GROUPS), help="groups of rows")
    arguments = parser.parse_args()
    console = Console()
    kinds: list[ClusterKind] = [ConveyorCluster("os"), ConveyorCluster("ack")]
    try:
        kinds.append(KafkaCluster(fetch()))
    except NotFetchedError as reason:
        console.print(f"Kafka cannot be fetched, so Conveyor is measured alone: {reason}", markup=False)
    measured: dict[str, Figures] = {}
    for number in range(arguments.rounds):
        for kind in kinds[number % len(kinds) :] + kinds[: number % len(kinds)]:
            figures = measured.setdefault(f"{kind.name} {kind.policy}", {})
            for group in arguments.only:
                with console.status(f"round {number + 1}: {kind.name} {kind.policy}, {group}"):
                    for what, figure in _GROUPS[group](kind, arguments.scale):
                        figures.setdefault(what, []).append(figure)
                        console.print(f"{kind.name} {kind.policy}: {what}: {figure:,.2f}", markup=False)
    console.print(_table(measured))


def _measure_load(kind: ClusterKind, scale: float) -> Iterator[tuple[str, float]]:
    with running_cluster(kind) as cluster:
        yield "idle memory of three brokers, MiB", cluster.broker_bytes() / _MEBIBYTE
        admin = AdminClient(clients.client(cluster.bootstrap_servers))
        config = kind.topic_settings | {"min.insync.replicas": "2"}
        topic = NewTopic("load", _PARTITIONS, _REPLICAS, config=config)
        admin.create_topics([topic], operation_timeout=30)["load"].result(60)
        _send(cluster, round(_WARM_UP * scale))
        cpu_before = cluster.cpu_seconds()
        count = round(_COUNT * scale)
        seconds = _send(cluster, count)
        megabytes = 2 * count * _SIZE / 1e6
        yield "produce 1 kB, MB/s", megabytes / seconds
        yield "CPU of all servers, ms/MB", (cluster.cpu_seconds() - cpu_before) * 1000 / megabytes
        latencies = sorted(_latencies(cluster))
        yield "one record, p50 ms", latencies[len(latencies) // 2]
        yield "one record, p99 ms", latencies[len(latencies) * 99 // 100]
        yield "without acknowledgements after kill -9 of the leader, s", _gap_after_kill(cluster, admin)


def _send(cluster: RunningCluster, count: int) -> float:
    """Send records from two producers. Returns the seconds."""
    return run_together(
        *(work(produce, cluster.bootstrap_servers, "load", partition, count, _SIZE) for partition in range(2))
    ).seconds


def _producer(cluster: RunningCluster) -> Producer:
    return Producer(
        clients.client(
            cluster.bootstrap_servers,
            acks="all",
            linger_ms=0,
            retry_backoff_ms=20,
            retry_backoff_max_ms=100,
            reconnect_backoff_ms=20,
            reconnect_backoff_max_ms=100,
            message_timeout_ms=120_000,
        )
        | {"log_level": 0}
    )


def _latencies(cluster: RunningCluster) -> Iterator[float]:
    """Yield the milliseconds until each of many records, sent one after another, is acknowledged."""
    producer = _producer(cluster)
    for _ in range(_LATENCIES):
        started = time.perf_counter()
        producer.produce("load", bytes(_SIZE), partition=0)
        producer.flush(30)
        yield (time.perf_counter() - started) * 1000


def _gap_after_kill(cluster: RunningCluster, admin: AdminClient) -> float:
    """Return the longest time between two acknowledgements after the leader is killed. The producer is connected to
    all brokers.
    """
    acknowledged = [time.perf_counter()]
    producer = _producer(cluster)

    def send_for(seconds: float) -> None:
        ends = time.perf_counter() + seconds
        while time.perf_counter() < ends:
            producer.produce("load", bytes(_SIZE), partition=0)
            if producer.flush(60):
                raise RuntimeError("a record was not acknowledged within a minute")
            acknowledged.append(time.perf_counter())

    for partition in range(_PARTITIONS):
        producer.produce("load", bytes(_SIZE), partition=partition)
    send_for(1)
    leader = admin.list_topics("load", 30).topics["load"].partitions[0].leader
    del acknowledged[:-1]
    cluster.kill(leader)
    send_for(_AFTER_KILL_S)
    return max(after - before for before, after in pairwise(acknowledged))


_GROUPS = {
    "load": _measure_load,
    "failover": measure_failover,
    "creation": measure_creation,
    "catch-up": measure_catch_up,
    "transactions": measure_transactions,
}


def _table(measured: dict[str, Figures]) -> Table:
    """Return the medians of all rounds."""
    table = Table(title="Three brokers on this machine, medians")
    table.add_column("what")
    for name in measured:
        table.add_column(name, justify="right")
    for what in next(iter(measured.values())):
        medians = [statistics.median(figures[what]) for figures in measured.values()]
        table.add_row(what, *(f"{median:,.2f}" for median in medians))
    return table


if __name__ == "__main__":
    main()
