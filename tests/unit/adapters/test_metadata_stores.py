"""The metadata stores of this process keep the promises of the port. ZooKeeper: see tests/coordination."""

from pathlib import Path

import pytest

from conveyor.adapters.sqlite_store import SqliteStore
from conveyor.kernel.ports import MetadataStore
from conveyor.testing.memory_store import MemoryStore, MemoryTree
from tests.store_conformance import Reopen, StoreConformance


class TestSqliteStore(StoreConformance):
    @pytest.fixture
    def reopen(self, tmp_path: Path) -> Reopen:
        async def open_store() -> MetadataStore:
            return SqliteStore(tmp_path / "metadata.sqlite")

        return open_store


class TestMemoryStore(StoreConformance):
    @pytest.fixture
    def reopen(self) -> Reopen:
        store = MemoryStore()

        async def open_store() -> MetadataStore:
            return store

        return open_store


class TestSessionsOfMemoryTree(StoreConformance):
    @pytest.fixture
    def reopen(self) -> Reopen:
        tree = MemoryTree()

        async def open_store() -> MetadataStore:
            return tree.open_session(2_000)

        return open_store
