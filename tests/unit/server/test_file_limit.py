"""The limit of open files: `conveyor serve` raises it as far as possible, an embedded broker leaves it alone."""

import contextlib
import resource
from collections.abc import Iterator

import pytest

from conveyor.server.server import raise_file_limit
from conveyor.testing import Broker

LOW = 600


@pytest.fixture
def low_limit() -> Iterator[int]:
    """Set the soft limit to LOW, and yield the hard limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (LOW, hard))
    yield hard
    with contextlib.suppress(ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def soft_limit() -> int:
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def test_a_broker_process_raises_the_limit(low_limit: int) -> None:
    raise_file_limit()
    assert soft_limit() == (1 << 20 if low_limit == resource.RLIM_INFINITY else low_limit)


def test_an_embedded_broker_leaves_the_limit_alone(low_limit: int) -> None:
    with Broker():
        assert soft_limit() == LOW
