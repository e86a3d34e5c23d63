"""A cluster of three broker processes on a ZooKeeper."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.broker_cluster import BrokerCluster


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[BrokerCluster]:
    cluster = BrokerCluster(tmp_path)
    try:
        yield cluster.start()
    finally:
        cluster.end()
