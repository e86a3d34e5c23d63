"""Kafka's applications by every way to log in: `make secured`.

Each has the rights that its documentation asks for. The test itself looks on as a user who may do everything.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.certificates import Certificates
from tests.clients import test_kafka_connect, test_kafka_streams, test_mirror_maker
from tests.clients.applications import Processes
from tests.clients.java_security import java_client, java_options
from tests.clients.test_kafka_connect import check_copies, check_exact_source
from tests.clients.test_kafka_streams import check_counts_over_a_kill
from tests.clients.test_kafka_streams_exactly_once import check_exact_counts
from tests.clients.test_mirror_maker import check_mirror
from tests.secured_cluster import SecuredCluster, Way, connecting


@pytest.fixture
def cluster(certificates: Certificates, tmp_path: Path, way: Way) -> Iterator[SecuredCluster]:
    """A cluster for each test: applications choose the names of their topics themselves."""
    with SecuredCluster(certificates, tmp_path, {"broker.compaction_check_ms": 50}) as running:
        yield running


@pytest.fixture
def client(cluster: SecuredCluster, way: Way, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """How the application connects; the test connects as the observer."""
    connection = cluster.connection(way)
    monkeypatch.setenv("JDK_JAVA_OPTIONS", java_options(connection))
    with connecting(cluster.observer):
        yield {"bootstrap.servers": cluster.bootstrap(way), **java_client(connection)}


def allow_word_count(cluster: SecuredCluster, way: Way) -> None:
    streams = test_kafka_streams
    cluster.allow(way, streams.INPUT, {"topic": "read"})
    cluster.allow(way, streams.OUTPUT, {"topic": "write"})
    cluster.allow(way, f"{streams.GROUP}-", {"topic": "create,read,write,delete"}, prefixed=True)
    cluster.allow(way, streams.GROUP, {"group": "read"})


def test_streams_counts_over_a_kill(cluster: SecuredCluster, way: Way, client: dict[str, str], tmp_path: Path) -> None:
    allow_word_count(cluster, way)
    check_counts_over_a_kill(cluster, tmp_path, client)


def test_streams_counts_exactly_once(cluster: SecuredCluster, way: Way, client: dict[str, str], tmp_path: Path) -> None:
    allow_word_count(cluster, way)
    cluster.allow(way, f"{test_kafka_streams.GROUP}-", {"transactional_id": "write"}, prefixed=True)
    check_exact_counts(cluster, tmp_path, client)


def connect_client(cluster: SecuredCluster, way: Way, client: dict[str, str]) -> dict[str, str]:
    """Allow what a worker and its connectors do. Returns the settings of the worker."""
    cluster.allow(way, "connect-", {"topic": "create,read,write,describe_configs"}, prefixed=True)
    cluster.allow(way, "connect", {"group": "read"}, prefixed=True)
    cluster.allow(way, test_kafka_connect.TOPIC, {"topic": "read,write"})
    of_connectors = {f"{kind}.{name}": value for kind in ("producer", "consumer") for name, value in client.items()}
    replicas = {f"{kind}.storage.replication.factor": "3" for kind in test_kafka_connect.INTERNAL}
    return client | of_connectors | replicas


def test_connect_copies_over_kills(
    cluster: SecuredCluster, way: Way, client: dict[str, str], processes: Processes
) -> None:
    check_copies(processes, cluster, connect_client(cluster, way, client))


def test_connects_source_produces_exactly_once(
    cluster: SecuredCluster, way: Way, client: dict[str, str], processes: Processes
) -> None:
    settings = connect_client(cluster, way, client)
    cluster.allow(way, "connect-", {"transactional_id": "write"}, prefixed=True)
    check_exact_source(processes, cluster, settings)


@pytest.mark.parametrize("killed", ["source", "target"])
def test_mirror_maker_mirrors_over_a_kill(
    cluster: SecuredCluster,
    way: Way,
    client: dict[str, str],
    processes: Processes,
    certificates: Certificates,
    killed: str,
) -> None:
    folder = processes.folder / "target"
    folder.mkdir()
    with SecuredCluster(certificates, folder) as target:
        allow_mirror(cluster, target, way)
        del client["bootstrap.servers"]
        settings = {f"{side}.{name}": value for side in ("source", "target") for name, value in client.items()}
        settings |= {
            "source.bootstrap.servers": cluster.bootstrap(way),
            "target.bootstrap.servers": target.bootstrap(way),
            "sync.topic.acls.enabled": "false",
            "replication.factor": "3",
            **{f"{each}.replication.factor": "3" for each in test_mirror_maker.INTERNAL + test_mirror_maker.STORAGES},
        }
        check_mirror(processes, {"source": cluster, "target": target}, killed, settings)


def allow_mirror(source: SecuredCluster, target: SecuredCluster, way: Way) -> None:
    mirror = test_mirror_maker
    source.allow(way, mirror.TOPIC, {"topic": "read,describe_configs"})
    source.allow(way, mirror.GROUP, {"group": "describe"})
    # Its copies: of the topic, of the heartbeats, and the checkpoints.
    target.allow(way, "source.", {"topic": "create,read,write,alter,alter_configs"}, prefixed=True)
    target.allow(way, mirror.GROUP, {"group": "read"})
    for cluster in (source, target):
        cluster.allow(way, "mm2-", {"topic": "create,read,write,describe_configs"}, prefixed=True)
        cluster.allow(way, "heartbeats", {"topic": "create,read,write,describe_configs"})
        for group in ("source-mm2", "target-mm2"):
            cluster.allow(way, group, {"group": "read"})
