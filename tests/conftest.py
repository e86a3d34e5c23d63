"""Fixtures that every kind of test may use."""

from collections.abc import Iterator

import pytest

from conveyor.testing import Broker


@pytest.fixture
def memory_broker() -> Iterator[Broker]:
    """A broker that keeps everything in memory."""
    with Broker(memory=True) as broker:
        yield broker
