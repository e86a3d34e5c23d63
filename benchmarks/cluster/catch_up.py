"""How fast a broker that was away copies what was written meanwhile, beside a plain copy of the same files."""

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks import clients
from benchmarks.cluster.clusters import BROKERS, ClusterKind, RunningCluster, running_cluster
from benchmarks.streams import produce
from benchmarks.workers import run_together, work

_TOPIC = "missed"
_PARTITIONS = 6
_SIZE = 1_000
_COUNT = 2_000_000
_AWAY = 3
_LIMIT_S = 600
_PAUSE_S = 0.02


def measure_catch_up(kind: ClusterKind, scale: float) -> Iterator[tuple[str, float]]:
    """Kill a broker that leads nothing by then, write 2 GB, start it, and wait until it is in sync everywhere."""
    with running_cluster(kind) as cluster:
        admin = AdminClient(clients.client(cluster.bootstrap_servers))
        config = kind.topic_settings | {"min.insync.replicas": "2"}
        admin.create_topics([NewTopic(_TOPIC, _PARTITIONS, BROKERS, config=config)], operation_timeout=30)[
            _TOPIC
        ].result(60)
        cluster.kill(_AWAY)
        _wait_for_replicas(cluster, admin, BROKERS - 1)
        share = round(_COUNT * scale / _PARTITIONS)
        run_together(
            *(work(produce, cluster.bootstrap_servers, _TOPIC, number, share, _SIZE) for number in range(_PARTITIONS))
        )
        copied_bytes, copy_seconds = _copy(cluster.directory)
        began = time.perf_counter()
        cluster.start(_AWAY)
        _wait_for_replicas(cluster, admin, BROKERS)
        seconds = time.perf_counter() - began
        yield "a restarted follower catches up, MB/s", copied_bytes / 1e6 / seconds
        yield "the same, relative to a copy of the files", copy_seconds / seconds


def _wait_for_replicas(cluster: RunningCluster, admin: AdminClient, count: int) -> None:
    """Wait until all partitions have as many in-sync replicas. Raises RuntimeError."""
    ends = time.monotonic() + _LIMIT_S
    while time.monotonic() < ends:
        partitions = admin.list_topics(_TOPIC, 30).topics[_TOPIC].partitions.values()
        if all(len(partition.isrs) == count and partition.leader > 0 for partition in partitions):
            return
        time.sleep(_PAUSE_S)
    raise RuntimeError(f"the partitions do not have {count} in-sync replicas after {_LIMIT_S} s")


def _copy(directory: Path) -> tuple[int, float]:
    """Copy the logs of the first broker, with an fsync for each file. Returns the bytes and the seconds."""
    files = sorted((directory / "broker-1").rglob(f"{_TOPIC}-*/*.log"))
    copies = directory / "copies"
    copies.mkdir()
    began = time.perf_counter()
    for number, file in enumerate(files):
        copy = copies / str(number)
        shutil.copyfile(file, copy)
        with copy.open("rb+") as copied:
            os.fsync(copied.fileno())
    seconds = time.perf_counter() - began
    copied_bytes = sum(file.stat().st_size for file in files)
    shutil.rmtree(copies)
    return copied_bytes, seconds
