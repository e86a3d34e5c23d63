"""One broker for all clients of a module; each test has topics of its own."""

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from conveyor.testing import Broker
from tests.clients.applications import Processes
from tests.clients.rest_client import Rest


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


@pytest.fixture
def rest(broker: Broker) -> Iterator[Rest]:
    client = Rest(broker)
    yield client
    client.close()


@pytest.fixture
def topic() -> str:
    return f"topic-{uuid4().hex[:8]}"


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    """Brokers and applications of one test."""
    processes = Processes(tmp_path)
    yield processes
    processes.clear()
