"""The metadata store in memory: versions, watches, ephemeral nodes."""

import pytest

from conveyor.kernel.ports import ABSENT, Versioned
from conveyor.testing.memory_store import MemoryStore


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


async def test_versions_rise_from_one(store: MemoryStore) -> None:
    assert await store.get("/a") is None
    assert [await store.put("/a", value) for value in (b"x", b"y")] == [1, 2]
    assert await store.get("/a") == Versioned(b"y", 2)


@pytest.mark.parametrize(("version", "written"), [(ABSENT, False), (1, True), (2, False)])
async def test_a_put_may_ask_for_a_version(store: MemoryStore, version: int, written: bool) -> None:
    await store.put("/a", b"old")
    assert await store.put("/a", b"new", version) == (2 if written else None)
    assert await store.get("/a") == (Versioned(b"new", 2) if written else Versioned(b"old", 1))


async def test_a_put_may_ask_that_nothing_is_there(store: MemoryStore) -> None:
    assert await store.put("/a", b"x", 3) is None
    assert await store.put("/a", b"x", ABSENT) == 1


async def test_a_tree_is_listed_without_its_neighbours(store: MemoryStore) -> None:
    for path in ("/a/b", "/a/b/c", "/a/d", "/ab"):
        await store.put(path, path.encode())
    assert await store.children("/a") == ["b", "d"]
    assert list(await store.tree("/a")) == ["/a/b", "/a/b/c", "/a/d"]
    assert await store.children("/") == ["a", "ab"]


async def test_a_deletion_takes_what_is_below(store: MemoryStore) -> None:
    await store.put("/a", b"")
    await store.put("/a/b", b"")
    await store.put("/ab", b"")
    assert not await store.delete("/a", 7)
    assert await store.delete("/a", 1)
    assert not await store.delete("/a")
    assert await store.children("/") == ["ab"]


async def test_a_watch_hears_of_changes_at_and_below_its_path(store: MemoryStore) -> None:
    heard: list[str] = []
    end = store.watch("/a", heard.append)
    for path in ("/a", "/a/b", "/ab"):
        await store.put(path, b"")
    await store.delete("/a")
    end()
    end()
    await store.put("/a", b"")
    assert heard == ["/a", "/a/b", "/a"]


async def test_a_failed_change_is_not_heard_of(store: MemoryStore) -> None:
    heard: list[str] = []
    store.watch("/", heard.append)
    await store.put("/a", b"", 5)
    await store.delete("/a")
    assert heard == []


async def test_ephemeral_nodes_go_with_the_session(store: MemoryStore) -> None:
    await store.put("/live", b"", ephemeral=True)
    await store.put("/kept", b"")
    await store.put("/made-lasting", b"", ephemeral=True)
    await store.put("/made-lasting", b"")
    await store.close()
    assert await store.children("/") == ["kept", "made-lasting"]
