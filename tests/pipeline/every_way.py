"""Spark's source and sink, and both demonstrations, by every way to log in: `make secured`."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.certificates import Certificates
from tests.pipeline.test_exactly_once import check_kill_of_a_task, filled_stream
from tests.pipeline.test_stream_read import Stream, check_checkpoint
from tests.pipeline.test_write import check_copy, write
from tests.pipeline.topics import create_topic, read
from tests.secured_cluster import WAYS, Place, SecuredCluster, Way, connecting

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEMO_SECONDS = 900


@pytest.fixture(scope="module", params=WAYS, ids=lambda each: each.name)
def way(request: pytest.FixtureRequest) -> Way:
    chosen: Way = request.param
    return chosen


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, way: Way) -> Iterator[SecuredCluster]:
    folder = tmp_path_factory.mktemp(way.name)
    with SecuredCluster(Certificates(folder), folder) as running:
        yield running


@pytest.fixture
def place(cluster: SecuredCluster, way: Way, topic: str) -> Iterator[Place]:
    """Where clients connect who may read, write and copy the topic of the test, and no other one."""
    cluster.allow(way, topic, {"topic": "create,read,write"}, prefixed=True)
    cluster.allow(way, "spark.", {"transactional_id": "write", "group": "read"}, prefixed=True)
    with connecting(cluster.connection(way)):
        yield cluster.place(way)


def test_spark_copies_a_topic(spark: "SparkSession", place: Place, topic: str) -> None:
    check_copy(spark, place, topic)


def test_spark_streams_a_topic(spark: "SparkSession", place: Place, topic: str, tmp_path: Path) -> None:
    create_topic(place, topic, partitions=2)
    check_checkpoint(Stream(spark, place, topic, tmp_path), place, topic)


def test_spark_writes_exactly_once_over_the_kill_of_a_task(
    spark: "SparkSession", place: Place, topic: str, tmp_path: Path
) -> None:
    stream = filled_stream(spark, place, topic, tmp_path)
    check_kill_of_a_task(spark, place, topic, stream, tmp_path, "after add_marker")


def test_spark_is_refused_a_topic(spark: "SparkSession", cluster: SecuredCluster, place: Place, topic: str) -> None:
    with connecting(cluster.observer):
        create_topic(cluster, f"not-{topic}", partitions=1)
    with pytest.raises(Exception, match=r"(?i)topic.?authorization.?failed"):
        read(spark, place, f"not-{topic}").collect()
    with pytest.raises(Exception, match=r"(?i)topic.?authorization.?failed"):
        write(spark.createDataFrame([("a",)], "value string"), place, topic=f"not-{topic}")


@pytest.mark.parametrize("kind", ["delays", "etl"])
@pytest.mark.timeout(DEMO_SECONDS)
def test_the_demonstrations_run(cluster: SecuredCluster, way: Way, tmp_path: Path, kind: str) -> None:
    cluster.allow(way, "flights", {"topic": "create,read,write"}, prefixed=True)
    for topic in ("weather", "planes"):
        cluster.allow(way, topic, {"topic": "create,read,write"})
    cluster.allow(way, "spark.", {"transactional_id": "write", "group": "read"}, prefixed=True)
    command = [sys.executable, "-m", "conveyor.cli.main", "demo", "--to", str(tmp_path / "demo"), "--replicas", "3"]
    command += ["--bootstrap", cluster.bootstrap(way), *(["--etl"] if kind == "etl" else [])]
    config = {"CONVEYOR_CLIENT_CONFIG": str(cluster.client_config(way, tmp_path))}
    done = subprocess.run(command, env=os.environ | config, capture_output=True, text=True, timeout=DEMO_SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ok  " in done.stdout
    assert "FAILED" not in done.stdout
    cluster.delete_topics("weather", "planes")
