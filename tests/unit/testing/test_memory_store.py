"""The metadata store in memory: a full disk, a lost connection, a lost session.

tests/store_conformance.py tests the common contract.
"""

import pytest

from conveyor.kernel.errors import DiskFull, StorageFailure
from conveyor.kernel.ports import DeleteNode, PutNode, SessionState, Versioned
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


async def test_cut_store_fails_every_call_and_fires_every_watch() -> None:
    store, events = MemoryStore(session_timeout_ms=2_000), list[object]()
    store.listen(events.append)
    await store.commit(PutNode("/live", b"", ephemeral=True))
    await store.get("/live", lambda: events.append("node"))
    await store.children("/", lambda: events.append("children"))
    store.cut()
    assert events == [SessionState.SUSPENDED, "node", "children"]
    for call in (store.get("/live"), store.children("/"), store.tree("/"), store.commit(), store.sync()):
        with pytest.raises(StorageFailure, match="connection is lost"):
            await call
    store.reconnect()
    assert await store.get("/live") == Versioned(b"", 1)
    assert (events[3:], store.session_state) == ([SessionState.CONNECTED], SessionState.CONNECTED)


async def test_expired_session_has_lost_its_ephemeral_nodes() -> None:
    store, events = MemoryStore(session_timeout_ms=2_000), list[object]()
    await store.commit(PutNode("/live", b"", ephemeral=True), PutNode("/kept", b""))
    store.listen(events.append)
    store.cut()
    store.expire()
    store.reconnect()
    assert list(await store.tree("/")) == ["/kept"]
    assert events == [SessionState.SUSPENDED, SessionState.LOST, SessionState.CONNECTED]
