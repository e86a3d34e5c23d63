"""The embedded metadata store: versions, the tree, watches, and what is there after it was opened again."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from conveyor.adapters.sqlite_store import SqliteStore
from conveyor.kernel.errors import StorageFailure
from conveyor.kernel.ports import ABSENT, MetadataStore, Versioned
from conveyor.testing.memory_store import MemoryStore


@pytest.fixture(params=["sqlite", "memory"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[MetadataStore]:
    """The embedded store, and the one that stands for it in tests: both must behave alike."""
    made: MetadataStore = SqliteStore(tmp_path / "metadata.sqlite") if request.param == "sqlite" else MemoryStore()
    yield made
    await made.close()


async def test_store_gives_what_was_put(store: MetadataStore) -> None:
    assert await store.get("/a") is None
    assert await store.put("/a", b"one") == 1
    assert await store.put("/a", b"two") == 2
    assert await store.get("/a") == Versioned(b"two", 2)


async def test_store_put_wants_the_version_that_it_names(store: MetadataStore) -> None:
    assert await store.put("/a", b"one", 1) is None
    assert await store.put("/a", b"one", ABSENT) == 1
    assert await store.put("/a", b"two", ABSENT) is None
    assert await store.put("/a", b"two", 1) == 2
    assert await store.put("/a", b"three", 1) is None
    assert await store.get("/a") == Versioned(b"two", 2)


async def test_store_delete_wants_the_version_that_it_names(store: MetadataStore) -> None:
    await store.put("/a", b"one")
    assert not await store.delete("/a", 2)
    assert not await store.delete("/b")
    assert await store.delete("/a", 1)
    assert not await store.delete("/a")
    assert await store.get("/a") is None
    assert await store.put("/a", b"anew", ABSENT) == 1


async def test_store_delete_takes_what_is_below(store: MetadataStore) -> None:
    for path in ("/a", "/a/b", "/a/b/c", "/a-b", "/a0", "/ab"):
        await store.put(path, path.encode())
    assert await store.delete("/a")
    assert sorted(await store.tree("/")) == ["/a-b", "/a0", "/ab"]


async def test_store_knows_children_and_tree(store: MetadataStore) -> None:
    for path in ("/t/b", "/t/a/0", "/t/a/1", "/t/é", "/tt", "/t.x", "/t0"):
        await store.put(path, path.encode())
    assert await store.children("/t") == await store.children("/t/") == ["a", "b", "é"]
    assert await store.children("/") == ["t", "t.x", "t0", "tt"]
    assert await store.children("/nowhere") == []
    assert await store.tree("/t/a") == {"/t/a/0": Versioned(b"/t/a/0", 1), "/t/a/1": Versioned(b"/t/a/1", 1)}


async def test_store_watch_sees_changes_at_and_below(store: MetadataStore) -> None:
    seen: list[str] = []
    end = store.watch("/t", seen.append)
    for path in ("/t", "/t/a", "/tt", "/"):
        await store.put(path, b"")
    await store.put("/t/a", b"", 7)
    await store.delete("/t/a")
    await store.delete("/t/a")
    assert seen == ["/t", "/t/a", "/t/a"]
    end()
    end()
    await store.put("/t", b"")
    assert len(seen) == 3


async def test_store_watcher_may_end_its_watch(store: MetadataStore) -> None:
    seen: list[str] = []

    def once(path: str) -> None:
        seen.append(path)
        end()

    end = store.watch("/", once)
    await store.put("/a", b"")
    await store.put("/b", b"")
    assert seen == ["/a"]


async def test_store_is_as_before_after_it_was_opened_again(tmp_path: Path) -> None:
    first = SqliteStore(tmp_path / "metadata.sqlite")
    await first.put("/a", b"one")
    await first.put("/a", bytes(range(256)))
    await first.put("/session", b"", ephemeral=True)
    await first.close()
    second = SqliteStore(tmp_path / "metadata.sqlite")
    assert await second.tree("/") == {"/a": Versioned(bytes(range(256)), 2)}
    assert await second.put("/a", b"three", 2) == 3
    await second.close()


async def test_store_has_a_change_on_disk_when_it_returns(tmp_path: Path) -> None:
    """Another store on the same file sees it, though the first was never closed."""
    first, second = SqliteStore(tmp_path / "metadata.sqlite"), None
    await first.put("/a", b"one")
    try:
        second = SqliteStore(tmp_path / "metadata.sqlite")
        assert await second.get("/a") == Versioned(b"one", 1)
    finally:
        for each in (first, second):
            if each is not None:
                await each.close()


def test_store_that_is_no_database_is_a_failure_that_names_it(tmp_path: Path) -> None:
    path = tmp_path / "metadata.sqlite"
    path.write_bytes(b"this is no database, and long enough to be seen as none" * 20)
    with pytest.raises(StorageFailure, match=r"metadata\.sqlite: file is not a database"):
        SqliteStore(path)


def test_store_in_no_directory_is_a_failure(tmp_path: Path) -> None:
    with pytest.raises(StorageFailure, match="unable to open"):
        SqliteStore(tmp_path / "nowhere" / "metadata.sqlite")
