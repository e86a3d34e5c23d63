"""The pytest plugin: the fixture `conveyor_broker`, a fresh broker for each test."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conveyor.testing.embedded_broker import Broker


@pytest.fixture
def conveyor_broker() -> "Iterator[Broker]":
    """A running `conveyor.testing.Broker`, on free ports, with its data in a temporary directory."""
    from conveyor.testing.embedded_broker import Broker

    with Broker() as broker:
        yield broker
