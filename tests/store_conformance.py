"""What every metadata store promises: versions, commits, one-shot watches, sessions.

A class of tests for one store inherits these tests, and provides the fixture `reopen`.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from conveyor.kernel.errors import StorageFailure
from conveyor.kernel.ports import (
    ABSENT,
    CheckNode,
    DeleteNode,
    MetadataStore,
    PutNode,
    SessionState,
    StoreOperation,
    Versioned,
)

Reopen = Callable[[], Awaitable[MetadataStore]]
"""Begins another session with the same nodes."""


async def put(store: MetadataStore, *paths: str) -> None:
    """Write to each path, with its name as the content, in one commit."""
    assert await store.commit(*(PutNode(path, path.encode()) for path in paths)) is not None


class Events:
    """Watches that note their names when they fire."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def watch(self, name: str = "changed") -> Callable[[], None]:
        return lambda: self.seen.append(name)


class StoreConformance:
    @pytest.fixture
    async def store(self, reopen: Reopen) -> AsyncIterator[MetadataStore]:
        opened = await reopen()
        yield opened
        await opened.close()

    @pytest.fixture
    def events(self) -> Events:
        return Events()

    async def test_versions_rise_from_one(self, store: MetadataStore) -> None:
        assert await store.get("/a") is None
        assert [await store.commit(PutNode("/a", value)) for value in (b"x", b"y")] == [(1,), (2,)]
        assert await store.get("/a") == Versioned(b"y", 2)

    @pytest.mark.parametrize(("version", "is_written"), [(ABSENT, False), (1, True), (2, False)])
    async def test_put_may_name_a_version(self, store: MetadataStore, version: int, is_written: bool) -> None:
        await store.commit(PutNode("/a", b"old"))
        assert await store.commit(PutNode("/a", b"new", version)) == ((2,) if is_written else None)
        assert await store.get("/a") == (Versioned(b"new", 2) if is_written else Versioned(b"old", 1))

    async def test_put_may_require_that_nothing_is_there(self, store: MetadataStore) -> None:
        assert await store.commit(PutNode("/a", b"x", 3)) is None
        assert await store.commit(PutNode("/a", b"x", ABSENT)) == (1,)
        assert await store.commit(PutNode("/a", b"x", ABSENT)) is None

    async def test_delete_may_name_a_version(self, store: MetadataStore) -> None:
        await put(store, "/a")
        assert await store.commit(DeleteNode("/a", 2)) is None
        assert await store.commit(DeleteNode("/b", 1)) is None
        assert await store.commit(DeleteNode("/a", 1)) == (0,)
        assert await store.get("/a") is None
        assert await store.commit(DeleteNode("/a")) == (0,)
        assert await store.commit(PutNode("/a", b"anew", ABSENT)) == (1,)

    async def test_delete_takes_the_nodes_below_and_no_neighbours(self, store: MetadataStore) -> None:
        await put(store, "/a", "/a/b", "/a/b/c", "/a-b", "/a0", "/ab")
        assert await store.commit(DeleteNode("/a", 1)) == (0,)
        assert sorted(await store.tree("/")) == ["/a-b", "/a0", "/ab"]

    async def test_parents_are_created_as_empty_nodes_and_remain(self, store: MetadataStore) -> None:
        await put(store, "/a/b/c", "/c")
        assert await store.get("/a/b") == Versioned(b"", 1)
        assert await store.commit(PutNode("/a/b", b"", ABSENT)) is None
        assert await store.commit(DeleteNode("/a/b/c"), PutNode("/a/b", b"now", 1)) == (0, 2)
        assert sorted(await store.tree("/")) == ["/a", "/a/b", "/c"]

    async def test_children_and_trees_end_where_their_neighbours_begin(self, store: MetadataStore) -> None:
        await put(store, "/t/b", "/t/a/0", "/t/a/1", "/t/é", "/tt", "/t.x", "/t0")
        assert await store.children("/t") == await store.children("/t/") == ["a", "b", "é"]
        assert await store.children("/") == ["t", "t.x", "t0", "tt"]
        assert await store.children("/nowhere") == []
        assert await store.tree("/t/a") == {"/t/a/0": Versioned(b"/t/a/0", 1), "/t/a/1": Versioned(b"/t/a/1", 1)}

    async def test_any_bytes_and_names_are_kept(self, store: MetadataStore) -> None:
        path = "/a/b%2Fc=d,'\"; DROP TABLE nodes --\\_*"
        await store.commit(PutNode(path, bytes(range(256))), PutNode("/empty", b""))
        assert await store.get(path) == Versioned(bytes(range(256)), 1)
        assert await store.tree("/") == {
            "/a": Versioned(b"", 1),
            path: Versioned(bytes(range(256)), 1),
            "/empty": Versioned(b"", 1),
        }

    async def test_commit_returns_a_version_for_each_operation(self, store: MetadataStore) -> None:
        await put(store, "/a", "/gone")
        operations = (
            CheckNode("/a", 1),
            PutNode("/a", b"2"),
            DeleteNode("/gone"),
            PutNode("/b", b""),
            PutNode("/a", b"3"),
        )
        assert await store.commit(*operations) == (0, 2, 0, 1, 3)
        assert await store.tree("/") == {"/a": Versioned(b"3", 3), "/b": Versioned(b"", 1)}

    async def test_commit_of_nothing_changes_nothing(self, store: MetadataStore) -> None:
        assert await store.commit() == ()

    @pytest.mark.parametrize(
        "refused",
        [CheckNode("/a", 2), CheckNode("/a", ABSENT), CheckNode("/b", 1), PutNode("/a", b"", 7), DeleteNode("/b", 1)],
    )
    @pytest.mark.parametrize("place", range(3))
    async def test_commit_that_is_refused_changes_nothing(
        self, store: MetadataStore, refused: StoreOperation, place: int, events: Events
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

    async def test_operations_of_a_commit_see_those_before_them(self, store: MetadataStore) -> None:
        await put(store, "/a")
        assert await store.commit(DeleteNode("/a", 1), CheckNode("/a", ABSENT), PutNode("/a", b"new", ABSENT)) == (
            0,
            0,
            1,
        )
        assert await store.commit(PutNode("/a", b"x", 1), PutNode("/a", b"y", 1)) is None
        assert await store.get("/a") == Versioned(b"new", 1)
        assert await store.commit(PutNode("/b", b""), DeleteNode("/b", 1), CheckNode("/b", ABSENT)) == (1, 0, 0)
        assert await store.children("/") == ["a"]

    async def test_of_commits_at_once_that_name_one_version_one_succeeds(self, store: MetadataStore) -> None:
        commits = (store.commit(PutNode("/fence", b"", ABSENT), PutNode(f"/{number}", b"")) for number in range(5))
        versions = await asyncio.gather(*commits)
        assert sorted(map(str, versions)) == ["(1, 1)", *["None"] * 4]
        assert len(await store.tree("/")) == 2

    async def test_watch_of_a_node_fires_once(self, store: MetadataStore, events: Events) -> None:
        await put(store, "/a")
        await store.get("/a", events.watch())
        await put(store, "/b", "/a/b")
        assert events.seen == []
        await put(store, "/a")
        await put(store, "/a")
        assert events.seen == ["changed"]

    async def test_watch_of_a_node_fires_when_it_comes_and_when_it_goes(
        self, store: MetadataStore, events: Events
    ) -> None:
        await store.get("/a", events.watch("came"))
        await put(store, "/a")
        await store.get("/a", events.watch("went"))
        await store.commit(DeleteNode("/a"))
        await store.get("/a/b", events.watch("below came"))
        await put(store, "/a/b")
        await store.get("/a/b", events.watch("below went"))
        await store.commit(DeleteNode("/a"))
        assert events.seen == ["came", "went", "below came", "below went"]

    async def test_all_watches_of_a_node_fire(self, store: MetadataStore, events: Events) -> None:
        for name in ("first", "second"):
            await store.get("/a", events.watch(name))
        await put(store, "/a", "/a")
        assert sorted(events.seen) == ["first", "second"]

    async def test_watch_of_children_fires_when_a_name_comes_or_goes(
        self, store: MetadataStore, events: Events
    ) -> None:
        await put(store, "/t")
        await store.children("/t", events.watch("came"))
        await put(store, "/t", "/tt", "/other/a")
        assert events.seen == []
        await put(store, "/t/a")
        await store.children("/t", events.watch("went"))
        await put(store, "/t/a")
        assert events.seen == ["came"]
        await store.commit(DeleteNode("/t/a"))
        assert events.seen == ["came", "went"]

    async def test_watch_of_children_of_a_missing_node_fires(self, store: MetadataStore, events: Events) -> None:
        assert await store.children("/t", events.watch()) == []
        await put(store, "/t/a/b/c")
        assert (await store.children("/t"), events.seen) == (["a"], ["changed"])

    async def test_watch_that_is_set_on_a_missing_node_fires_once(self, store: MetadataStore, events: Events) -> None:
        await store.children("/t", events.watch())
        for path in ("/t", "/t/a", "/t/b"):
            await put(store, path)
        await store.commit(DeleteNode("/t"))
        assert events.seen == ["changed"]

    async def test_watch_sees_many_changes_as_one(self, store: MetadataStore, events: Events) -> None:
        """Changes before the next read are not told apart; the read shows the last."""
        await put(store, "/a")
        await store.get("/a", events.watch())
        await store.children("/", events.watch("children"))
        for name in ("/b", "/c"):
            await put(store, "/a", name)
        assert sorted(events.seen) == ["changed", "children"]
        assert await store.get("/a") == Versioned(b"/a", 3)

    async def test_watch_of_the_roots_children_fires(self, store: MetadataStore, events: Events) -> None:
        await store.children("/", events.watch())
        await put(store, "/a")
        assert events.seen == ["changed"]

    async def test_event_comes_before_the_new_state_can_be_read(self, store: MetadataStore, events: Events) -> None:
        await put(store, "/a")
        await store.get("/a", events.watch())
        commit = asyncio.ensure_future(store.commit(PutNode("/a", b"new")))
        while await store.get("/a") != Versioned(b"new", 2):  # noqa: ASYNC110 - a reader that polls
            await asyncio.sleep(0)
        assert events.seen == ["changed"]
        await commit

    async def test_watch_that_is_set_while_a_commit_runs_misses_no_change(
        self, store: MetadataStore, events: Events
    ) -> None:
        """If the read does not show the commit, its watch fires for it; otherwise it fires for the next one."""
        commit = asyncio.ensure_future(store.commit(PutNode("/a", b"1")))
        await asyncio.sleep(0)
        found = await store.get("/a", events.watch())
        await commit
        assert events.seen == ([] if found == Versioned(b"1", 1) else ["changed"])
        await put(store, "/a")
        assert events.seen == ["changed"]

    async def test_watch_fires_though_nobody_waits_for_the_commit(self, store: MetadataStore, events: Events) -> None:
        """If the commit is carried out at all."""
        for number in range(20):
            await store.get(f"/{number}", events.watch(f"/{number}"))
            commit = asyncio.ensure_future(store.commit(PutNode(f"/{number}", b"")))
            await asyncio.sleep(0)
            commit.cancel()
            await asyncio.gather(commit, return_exceptions=True)
            await store.sync()
        assert sorted(await store.tree("/")) == sorted(events.seen)

    async def test_watch_may_be_set_again_by_its_own_event(self, store: MetadataStore) -> None:
        reads: list[asyncio.Task[Versioned | None]] = []

        def changed() -> None:
            reads.append(asyncio.ensure_future(store.get("/a", changed)))

        await store.get("/a", changed)
        for number in range(1, 4):
            await put(store, "/a")
            assert await reads[-1] == Versioned(b"/a", number)
        assert len(reads) == 3

    async def test_sync_shows_the_commits_of_other_sessions(self, store: MetadataStore, reopen: Reopen) -> None:
        other = await reopen()
        for number in range(20):
            await store.commit(PutNode("/a", b""))
            await other.sync()
            assert await other.get("/a") == Versioned(b"", number + 1)
        await other.close()

    async def test_ephemeral_nodes_go_with_the_session(self, reopen: Reopen) -> None:
        first = await reopen()
        await put(first, "/kept")
        await first.commit(
            PutNode("/live", b"", ephemeral=True),
            PutNode("/kept", b"", ephemeral=True),
            PutNode("/deleted", b"", ephemeral=True),
            PutNode("/below/a/parent", b"", ephemeral=True),
        )
        await first.commit(PutNode("/live", b"again"), DeleteNode("/deleted"), PutNode("/deleted", b""))
        assert (await first.get("/live"), await first.get("/below/a/parent")) == (
            Versioned(b"again", 2),
            Versioned(b"", 1),
        )
        await first.close()
        second = await reopen()
        assert sorted(await second.tree("/")) == ["/below", "/below/a", "/deleted", "/kept"]
        assert await second.commit(PutNode("/live", b"", ABSENT)) == (1,)
        await second.close()

    @pytest.mark.parametrize("is_new", [True, False])
    async def test_ephemeral_node_has_no_nodes_below(self, store: MetadataStore, is_new: bool) -> None:
        live = PutNode("/live", b"", ephemeral=True)
        if not is_new:
            await store.commit(live)
        with pytest.raises(StorageFailure, match="/live/a/b cannot be written, because /live is ephemeral"):
            await store.commit(PutNode("/other", b""), *([live] if is_new else []), PutNode("/live/a/b", b""))
        assert list(await store.tree("/")) == ([] if is_new else ["/live"])
        assert await store.commit(CheckNode("/live/a/b", ABSENT), PutNode("/other", b"")) == (0, 1)

    async def test_open_store_is_connected(self, store: MetadataStore) -> None:
        assert store.session_state is SessionState.CONNECTED
        assert store.session_timeout_ms >= 0

    async def test_session_that_has_ended_has_no_watches(self, reopen: Reopen, events: Events) -> None:
        first = await reopen()
        await first.get("/a", events.watch())
        await first.children("/", events.watch())
        await first.close()
        second = await reopen()
        await put(second, "/a")
        await second.close()
        assert events.seen == []

    async def test_nodes_and_versions_outlive_the_session(self, reopen: Reopen) -> None:
        first = await reopen()
        await put(first, "/a", "/b")
        await first.commit(PutNode("/a", b"2"), DeleteNode("/b"))
        await first.close()
        second = await reopen()
        assert await second.tree("/") == {"/a": Versioned(b"2", 2)}
        assert await second.commit(PutNode("/a", b"3", 2)) == (3,)
        await second.close()
