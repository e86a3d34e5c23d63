"""A client of each kind produces and reads while one of three brokers is always being restarted."""

import gc
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients.all_clients import CLIENTS
from tests.clients.rolling.all_moves import check_moves
from tests.clients.rolling.rolling_cluster import RollingCluster

RESTARTS = 6

# A connection through the brokers' proxies may be half open when its broker is killed.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[RollingCluster]:
    cluster = RollingCluster(tmp_path, every_s=0)
    try:
        yield cluster.start()
    finally:
        cluster.end()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()


@pytest.mark.timeout(900)
def test_clients_follow_their_leaders(cluster: RollingCluster) -> None:
    """Of the group protocols each client plays the newest that it has."""
    clients = [(client, client.protocols[-1]) for client in CLIENTS if client.follows_leaders]
    check_moves(cluster, clients, RESTARTS)
