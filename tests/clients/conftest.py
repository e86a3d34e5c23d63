"""One broker for all clients of a module; each test has topics of its own."""

from collections.abc import Iterator
from uuid import uuid4

import pytest

from conveyor.testing import Broker


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


@pytest.fixture
def topic() -> str:
    return f"topic-{uuid4().hex[:8]}"
