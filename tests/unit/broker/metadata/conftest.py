"""Fixtures of the metadata's tests."""

from collections.abc import AsyncIterator

import pytest

from conveyor.broker.metadata.metadata import Metadata
from tests.unit.broker.metadata.faulty_store import FaultyStore
from tests.unit.broker.metadata.members import Cluster
from tests.unit.broker.parts import loaded_metadata


@pytest.fixture
def store() -> FaultyStore:
    return FaultyStore()


@pytest.fixture
async def metadata(store: FaultyStore) -> Metadata:
    """Metadata loaded from an empty store."""
    return await loaded_metadata(store)


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    """An empty cluster. Its members are stopped after the test, and must have met no bug."""
    cluster = Cluster()
    yield cluster
    await cluster.stop()
