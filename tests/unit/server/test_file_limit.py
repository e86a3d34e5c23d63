"""How many files a process may open: `conveyor serve` takes all that it can have, an embedded broker what there is."""

import contextlib
import resource
from collections.abc import Iterator

import pytest

from conveyor.server.server import raise_file_limit
from conveyor.testing import Broker

LOW = 600


@pytest.fixture
def low_limit() -> Iterator[int]:
    """A soft limit of LOW. Returns the hard one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (LOW, hard))
    yield hard
    with contextlib.suppress(ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def soft_limit() -> int:
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def test_a_process_that_is_a_broker_takes_all_that_the_system_allows(low_limit: int) -> None:
    raise_file_limit()
    assert soft_limit() == (1 << 20 if low_limit == resource.RLIM_INFINITY else low_limit)


def test_a_broker_inside_another_process_leaves_the_limit_alone(low_limit: int) -> None:
    with Broker():
        assert soft_limit() == LOW
