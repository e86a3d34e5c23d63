"""The metadata store in memory: a full disk, a lost connection, a lost session, several sessions.

tests/store_conformance.py tests the common contract.
"""

import pytest

from conveyor.kernel.errors import DiskFull, StorageFailure
from conveyor.kernel.ports import DeleteNode, PutNode, SessionState, Versioned
from conveyor.testing.memory_store import MemoryStore, MemoryTree


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


async def test_sessions_share_their_nodes_and_keep_their_own_ephemeral_ones() -> None:
    tree, events = MemoryTree(), list[str]()
    first, second = tree.open_session(2_000), tree.open_session(2_000)
    await first.commit(PutNode("/of/first", b"", ephemeral=True))
    await second.commit(PutNode("/of/second", b"", ephemeral=True))
    await second.children("/of", lambda: events.append("second"))
    await first.children("/of", lambda: events.append("first"))
    first.cut()
    assert (await second.children("/of"), events) == (["first", "second"], ["first"])
    first.expire()
    assert (await second.children("/of"), events) == (["second"], ["first", "second"])


async def test_abandoned_session_calls_nobody_and_ends_when_it_expires() -> None:
    tree, events = MemoryTree(), list[object]()
    dead, other = tree.open_session(2_000), tree.open_session(2_000)
    dead.listen(events.append)
    await dead.commit(PutNode("/live", b"", ephemeral=True))
    await dead.get("/live", lambda: events.append("dead"))
    dead.abandon()
    assert await other.get("/live", lambda: events.append("gone")) == Versioned(b"", 1)
    dead.expire()
    assert (await other.get("/live"), events) == (None, ["gone"])
