"""What every metadata store promises: versions, commits, one-shot watches, sessions. Each test runs on all stores."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from conveyor.adapters.sqlite_store import SqliteStore
from conveyor.kernel.ports import ABSENT, CheckNode, DeleteNode, MetadataStore, PutNode, StoreOperation, Versioned
from conveyor.testing.memory_store import MemoryStore

Reopen = Callable[[], MetadataStore]


@pytest.fixture(params=["sqlite", "memory"])
def reopen(request: pytest.FixtureRequest, tmp_path: Path) -> Reopen:
    """Begins another session with the same nodes."""
    memory = MemoryStore()
    return (lambda: memory) if request.param == "memory" else (lambda: SqliteStore(tmp_path / "metadata.sqlite"))


@pytest.fixture
async def store(reopen: Reopen) -> AsyncIterator[MetadataStore]:
    opened = reopen()
    yield opened
    await opened.close()


async def put(store: MetadataStore, *paths: str) -> None:
    """Write to each path, with its name as the content, in one commit."""
    assert await store.commit(*(PutNode(path, path.encode()) for path in paths)) is not None


class Events:
    """Watches that note their names when they fire."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def watch(self, name: str = "changed") -> Callable[[], None]:
        return lambda: self.seen.append(name)


@pytest.fixture
def events() -> Events:
    return Events()


async def test_versions_rise_from_one(store: MetadataStore) -> None:
    assert await store.get("/a") is None
    assert [await store.commit(PutNode("/a", value)) for value in (b"x", b"y")] == [(1,), (2,)]
    assert await store.get("/a") == Versioned(b"y", 2)


@pytest.mark.parametrize(("version", "is_written"), [(ABSENT, False), (1, True), (2, False)])
async def test_put_may_name_a_version(store: MetadataStore, version: int, is_written: bool) -> None:
    await store.commit(PutNode("/a", b"old"))
    assert await store.commit(PutNode("/a", b"new", version)) == ((2,) if is_written else None)
    assert await store.get("/a") == (Versioned(b"new", 2) if is_written else Versioned(b"old", 1))


async def test_put_may_require_that_nothing_is_there(store: MetadataStore) -> None:
    assert await store.commit(PutNode("/a", b"x", 3)) is None
    assert await store.commit(PutNode("/a", b"x", ABSENT)) == (1,)
    assert await store.commit(PutNode("/a", b"x", ABSENT)) is None


async def test_delete_may_name_a_version(store: MetadataStore) -> None:
    await put(store, "/a")
    assert await store.commit(DeleteNode("/a", 2)) is None
    assert await store.commit(DeleteNode("/b", 1)) is None
    assert await store.commit(DeleteNode("/a", 1)) == (0,)
    assert await store.get("/a") is None
    assert await store.commit(DeleteNode("/a")) == (0,)
    assert await store.commit(PutNode("/a", b"anew", ABSENT)) == (1,)


async def test_delete_takes_the_nodes_below_and_no_neighbours(store: MetadataStore) -> None:
    await put(store, "/a", "/a/b", "/a/b/c", "/a-b", "/a0", "/ab")
    assert await store.commit(DeleteNode("/a", 1)) == (0,)
    assert sorted(await store.tree("/")) == ["/a-b", "/a0", "/ab"]


async def test_delete_takes_the_nodes_below_a_parent_that_is_no_node(store: MetadataStore) -> None:
    await put(store, "/a/b", "/a/b/c", "/c")
    assert await store.commit(DeleteNode("/a")) == (0,)
    assert sorted(await store.tree("/")) == ["/c"]


async def test_children_and_trees_end_where_their_neighbours_begin(store: MetadataStore) -> None:
    await put(store, "/t/b", "/t/a/0", "/t/a/1", "/t/é", "/tt", "/t.x", "/t0")
    assert await store.children("/t") == await store.children("/t/") == ["a", "b", "é"]
    assert await store.children("/") == ["t", "t.x", "t0", "tt"]
    assert await store.children("/nowhere") == []
    assert await store.tree("/t/a") == {"/t/a/0": Versioned(b"/t/a/0", 1), "/t/a/1": Versioned(b"/t/a/1", 1)}


async def test_any_bytes_and_names_are_kept(store: MetadataStore) -> None:
    path = "/a/b%2Fc=d,'\"; DROP TABLE nodes --\\_*"
    await store.commit(PutNode(path, bytes(range(256))), PutNode("/empty", b""))
    assert await store.tree("/") == {path: Versioned(bytes(range(256)), 1), "/empty": Versioned(b"", 1)}


async def test_commit_returns_a_version_for_each_operation(store: MetadataStore) -> None:
    await put(store, "/a", "/gone")
    operations = (CheckNode("/a", 1), PutNode("/a", b"2"), DeleteNode("/gone"), PutNode("/b", b""), PutNode("/a", b"3"))
    assert await store.commit(*operations) == (0, 2, 0, 1, 3)
    assert await store.tree("/") == {"/a": Versioned(b"3", 3), "/b": Versioned(b"", 1)}


async def test_commit_of_nothing_changes_nothing(store: MetadataStore) -> None:
    assert await store.commit() == ()


@pytest.mark.parametrize(
    "refused",
    [CheckNode("/a", 2), CheckNode("/a", ABSENT), CheckNode("/b", 1), PutNode("/a", b"", 7), DeleteNode("/b", 1)],
)
@pytest.mark.parametrize("place", range(3))
async def test_commit_that_is_refused_changes_nothing(
    store: MetadataStore, refused: StoreOperation, place: int, events: Events
) -> None:
    """Wherever the refused operation is."""
    await put(store, "/a", "/c/d")
    before = await store.tree("/")
    for path in ("/a", "/c", "/c/d", "/new"):
        await store.get(path, events.watch())
    operations: list[StoreOperation] = [PutNode("/new", b""), DeleteNode("/c")]
    operations.insert(place, refused)
    assert await store.commit(*operations) is None
    assert (await store.tree("/"), events.seen) == (before, [])


async def test_operations_of_a_commit_see_those_before_them(store: MetadataStore) -> None:
    await put(store, "/a")
    assert await store.commit(DeleteNode("/a", 1), CheckNode("/a", ABSENT), PutNode("/a", b"new", ABSENT)) == (0, 0, 1)
    assert await store.commit(PutNode("/a", b"x", 1), PutNode("/a", b"y", 1)) is None
    assert await store.get("/a") == Versioned(b"new", 1)
    assert await store.commit(PutNode("/b", b""), DeleteNode("/b", 1), CheckNode("/b", ABSENT)) == (1, 0, 0)
    assert await store.children("/") == ["a"]


async def test_of_commits_at_once_that_name_one_version_one_succeeds(store: MetadataStore) -> None:
    commits = (store.commit(PutNode("/fence", b"", ABSENT), PutNode(f"/{number}", b"")) for number in range(5))
    versions = await asyncio.gather(*commits)
    assert sorted(map(str, versions)) == ["(1, 1)", *["None"] * 4]
    assert len(await store.tree("/")) == 2


async def test_watch_of_a_node_fires_once(store: MetadataStore, events: Events) -> None:
    await put(store, "/a")
    await store.get("/a", events.watch())
    await put(store, "/b", "/a/b")
    assert events.seen == []
    await put(store, "/a")
    await put(store, "/a")
    assert events.seen == ["changed"]


async def test_watch_of_a_node_fires_when_it_comes_and_when_it_goes(store: MetadataStore, events: Events) -> None:
    await store.get("/a", events.watch("came"))
    await put(store, "/a")
    await store.get("/a", events.watch("went"))
    await store.commit(DeleteNode("/a"))
    await store.get("/a/b", events.watch("below came"))
    await put(store, "/a/b")
    await store.get("/a/b", events.watch("below went"))
    await store.commit(DeleteNode("/a"))
    assert events.seen == ["came", "went", "below came", "below went"]


async def test_all_watches_of_a_node_fire(store: MetadataStore, events: Events) -> None:
    for name in ("first", "second"):
        await store.get("/a", events.watch(name))
    await put(store, "/a", "/a")
    assert events.seen == ["first", "second"]


async def test_watch_of_children_fires_when_a_name_comes_or_goes(store: MetadataStore, events: Events) -> None:
    await store.children("/t", events.watch("came"))
    await put(store, "/t", "/tt", "/other/a")
    assert events.seen == []
    await put(store, "/t/a")
    await store.children("/t", events.watch("went"))
    await put(store, "/t/a")
    assert events.seen == ["came"]
    await store.commit(DeleteNode("/t/a"))
    assert events.seen == ["came", "went"]


async def test_watch_of_children_fires_for_names_with_nodes_only_below(store: MetadataStore, events: Events) -> None:
    await store.children("/t", events.watch("came"))
    await put(store, "/t/a/b/c")
    assert await store.children("/t", events.watch("went")) == ["a"]
    await store.commit(DeleteNode("/t/a/b"))
    assert (await store.children("/t"), events.seen) == ([], ["came", "went"])


async def test_watch_of_the_roots_children_fires(store: MetadataStore, events: Events) -> None:
    await store.children("/", events.watch())
    await put(store, "/a")
    assert events.seen == ["changed"]


async def test_event_comes_before_the_new_state_can_be_read(store: MetadataStore, events: Events) -> None:
    await put(store, "/a")
    await store.get("/a", events.watch())
    commit = asyncio.ensure_future(store.commit(PutNode("/a", b"new")))
    while await store.get("/a") != Versioned(b"new", 2):  # noqa: ASYNC110 - a reader that polls
        await asyncio.sleep(0)
    assert events.seen == ["changed"]
    await commit


async def test_watch_that_is_set_after_a_commit_has_begun_misses_no_change(
    store: MetadataStore, events: Events
) -> None:
    """The read shows the commit, so its watch is for the next one."""
    commit = asyncio.ensure_future(store.commit(PutNode("/a", b"1")))
    await asyncio.sleep(0)
    assert await store.get("/a", events.watch()) == Versioned(b"1", 1)
    await commit
    assert events.seen == []
    await put(store, "/a")
    assert events.seen == ["changed"]


async def test_watch_fires_though_nobody_waits_for_the_commit(store: MetadataStore, events: Events) -> None:
    """If the commit is carried out at all."""
    for number in range(20):
        await store.get(f"/{number}", events.watch(f"/{number}"))
        commit = asyncio.ensure_future(store.commit(PutNode(f"/{number}", b"")))
        await asyncio.sleep(0)
        commit.cancel()
        await asyncio.gather(commit, return_exceptions=True)
        await store.sync()
    assert sorted(await store.tree("/")) == sorted(events.seen)


async def test_watch_may_be_set_again_by_its_own_event(store: MetadataStore) -> None:
    reads: list[asyncio.Task[Versioned | None]] = []

    def changed() -> None:
        reads.append(asyncio.ensure_future(store.get("/a", changed)))

    await store.get("/a", changed)
    for number in range(1, 4):
        await put(store, "/a")
        assert await reads[-1] == Versioned(b"/a", number)
    assert len(reads) == 3


async def test_sync_returns_when_reads_show_every_commit(store: MetadataStore) -> None:
    commit = asyncio.ensure_future(store.commit(PutNode("/a", b"")))
    await asyncio.sleep(0)
    await store.sync()
    assert await store.get("/a") == Versioned(b"", 1)
    await commit


async def test_ephemeral_nodes_go_with_the_session(reopen: Reopen) -> None:
    first = reopen()
    await first.commit(
        PutNode("/live", b"", ephemeral=True),
        PutNode("/kept", b""),
        PutNode("/made-lasting", b"", ephemeral=True),
        PutNode("/deleted", b"", ephemeral=True),
    )
    assert len(await first.tree("/")) == 4
    await first.commit(PutNode("/made-lasting", b""), DeleteNode("/deleted"), PutNode("/deleted", b""))
    await first.close()
    second = reopen()
    assert await second.children("/") == ["deleted", "kept", "made-lasting"]
    await second.close()


async def test_session_that_has_ended_has_no_watches(reopen: Reopen, events: Events) -> None:
    first = reopen()
    await first.get("/a", events.watch())
    await first.children("/", events.watch())
    await first.close()
    second = reopen()
    await put(second, "/a")
    await second.close()
    assert events.seen == []


async def test_nodes_and_versions_outlive_the_session(reopen: Reopen) -> None:
    first = reopen()
    await put(first, "/a", "/b")
    await first.commit(PutNode("/a", b"2"), DeleteNode("/b"))
    await first.close()
    second = reopen()
    assert await second.tree("/") == {"/a": Versioned(b"2", 2)}
    assert await second.commit(PutNode("/a", b"3", 2)) == (3,)
    await second.close()
