"""One ZooKeeper for most tests, and a path of its own for each."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from conveyor.adapters.zookeeper.zookeeper_address import parse_zookeeper_address
from conveyor.adapters.zookeeper.zookeeper_store import ZookeeperStore, open_zookeeper_store
from tests.coordination.zookeeper_process import ZookeeperProcess

_numbers = count()

OpenStore = Callable[[str], Awaitable[ZookeeperStore]]
"""Opens a store at an address; it is closed after the test."""


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZookeeperProcess]:
    process = ZookeeperProcess(tmp_path_factory.mktemp("zookeeper")).start()
    yield process
    process.kill()


@pytest.fixture
def own_zookeeper(tmp_path: Path) -> Iterator[ZookeeperProcess]:
    """A ZooKeeper for one test alone, which may stop it."""
    process = ZookeeperProcess(tmp_path / "own").start()
    yield process
    process.kill()


@pytest.fixture
def root() -> str:
    return f"/test-{next(_numbers)}"


@pytest.fixture
def address(zookeeper: ZookeeperProcess, root: str) -> str:
    return f"zookeeper://{zookeeper.server}{root}"


@pytest.fixture
async def open_store() -> AsyncIterator[OpenStore]:
    opened: list[ZookeeperStore] = []

    async def open_at(address: str) -> ZookeeperStore:
        opened.append(
            await open_zookeeper_store(parse_zookeeper_address(address), session_timeout_ms=2_000, wait_s=60.0)
        )
        return opened[-1]

    yield open_at
    for store in opened:
        await store.close()
