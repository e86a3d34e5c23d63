"""Fixtures that every kind of test may use."""

from collections.abc import Iterator

import pytest
from hypothesis import settings

from conveyor.testing import Broker

settings.register_profile("conveyor", deadline=None, print_blob=True)
settings.load_profile("conveyor")


@pytest.fixture
def memory_broker() -> Iterator[Broker]:
    """A broker that keeps everything in memory."""
    with Broker(memory=True) as broker:
        yield broker
