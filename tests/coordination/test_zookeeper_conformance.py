"""The store on a real ZooKeeper keeps the promises of the port."""

import pytest

from conveyor.adapters.zookeeper.zookeeper_address import parse_zookeeper_address
from conveyor.adapters.zookeeper.zookeeper_store import open_zookeeper_store
from conveyor.kernel.ports import MetadataStore
from tests.store_conformance import Reopen, StoreConformance


class TestZookeeperStore(StoreConformance):
    @pytest.fixture
    def reopen(self, address: str) -> Reopen:
        async def open_store() -> MetadataStore:
            return await open_zookeeper_store(parse_zookeeper_address(address), session_timeout_ms=2_000)

        return open_store
