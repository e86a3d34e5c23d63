"""The metadata store in memory: a full disk. test_metadata_stores.py tests the common contract."""

import pytest

from conveyor.kernel.errors import DiskFull
from conveyor.kernel.ports import DeleteNode, PutNode, Versioned
from conveyor.testing.memory_store import MemoryStore


async def test_full_store_refuses_changes_and_serves_reads() -> None:
    store = MemoryStore()
    await store.commit(PutNode("/a", b"one"))
    store.is_full = True
    for operation in (PutNode("/a", b"two"), PutNode("/b", b""), DeleteNode("/a")):
        with pytest.raises(DiskFull):
            await store.commit(operation)
    assert await store.commit(DeleteNode("/nothing")) == (0,)
    assert await store.commit(PutNode("/a", b"two", 7)) is None
    assert await store.tree("/") == {"/a": Versioned(b"one", 1)}
    store.is_full = False
    assert await store.commit(PutNode("/a", b"two", 1)) == (2,)
