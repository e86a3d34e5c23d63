"""The pytest plugin with the fixtures `conveyor_broker` and `conveyor_cluster`, new ones for each test."""

from collections.abc import Iterator

import pytest

import conveyor.testing


@pytest.fixture
def conveyor_broker() -> "Iterator[conveyor.testing.Broker]":
    """Yield a running `conveyor.testing.Broker`, on free ports, with its data in a temporary directory."""
    with conveyor.testing.Broker() as broker:  # Loads the broker: test runs without this fixture do not pay for it.
        yield broker


@pytest.fixture
def conveyor_cluster() -> "Iterator[conveyor.testing.Cluster]":
    """Yield a running `conveyor.testing.Cluster` of three brokers, on free ports, with its data in memory."""
    with conveyor.testing.Cluster() as cluster:
        yield cluster
