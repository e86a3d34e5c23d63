"""Fixtures of the Kafka door's tests."""

from collections.abc import AsyncIterator

import pytest

from conveyor.cluster.topic_creation import TopicRequest
from tests.callers import CALLER
from tests.unit.broker.parts import Storage, running_parts
from tests.unit.kafka_api.client import MemoryClient


@pytest.fixture
def storage() -> Storage:
    return Storage()


@pytest.fixture
async def client(storage: Storage) -> AsyncIterator[MemoryClient]:
    """Yield a client of a broker that has one topic, `t`, and creates no topics automatically."""
    settings = {"broker.auto_create_topics": False, "network.max_in_flight": 3}
    async with running_parts(settings, storage) as broker:
        await broker.topics.create(CALLER, TopicRequest(name="t"))
        yield MemoryClient(broker)
