"""The metadata stores of this process keep the promises of the port. ZooKeeper: see tests/coordination."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from conveyor.adapters.sqlite_store import SqliteSession, SqliteStore
from conveyor.adapters.sqlite_tree import SqliteTree
from conveyor.kernel.ports import MetadataStore
from conveyor.testing.memory_store import MemoryStore, MemoryTree
from tests.store_conformance import Reopen, StoreConformance
from tests.store_owner import StoreOwner


class TestSqliteStore(StoreConformance):
    @pytest.fixture
    def reopen(self, tmp_path: Path) -> Reopen:
        async def open_store() -> MetadataStore:
            return SqliteStore(tmp_path / "metadata.sqlite")

        return open_store


class TestSessionsOfSqliteTree(StoreConformance):
    @pytest.fixture
    async def reopen(self, tmp_path: Path) -> AsyncIterator[Reopen]:
        tree = SqliteTree(tmp_path / "metadata.sqlite")

        async def open_store() -> MetadataStore:
            return SqliteSession(tree)

        yield open_store
        await tree.close()


class TestSocketStore(StoreConformance):
    @pytest.fixture
    async def reopen(self, store_owner: StoreOwner) -> Reopen:
        async def open_store() -> MetadataStore:
            return await store_owner.connect()

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
