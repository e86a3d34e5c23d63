"""Fixtures of the broker's tests."""

from collections.abc import AsyncIterator

import pytest

from conveyor.broker.broker_node import BrokerNode
from conveyor.cluster.topic_creation import TopicRequest
from tests.callers import CALLER
from tests.unit.broker.parts import Storage, running_parts


@pytest.fixture
def storage() -> Storage:
    return Storage()


@pytest.fixture
async def broker(storage: Storage) -> AsyncIterator[BrokerNode]:
    """A broker with one topic, `t`, of two partitions."""
    async with running_parts(storage=storage) as running:
        await running.topics.create(CALLER, TopicRequest(name="t", partitions=2))
        yield running
