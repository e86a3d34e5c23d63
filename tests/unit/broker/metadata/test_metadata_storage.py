"""The stored metadata: snapshots, restarts, crashes at any call, and damage."""

import contextlib
from itertools import pairwise
from uuid import UUID

import pytest

from conveyor.broker.metadata import metadata as module
from conveyor.broker.metadata.metadata import Metadata
from conveyor.cluster.changes import SubscriptionPut, TopicPut
from conveyor.cluster.image import PartitionImage
from conveyor.cluster.metadata_log import (
    CONTROLLER_EPOCH_PATH,
    ENTRIES_PATH,
    HEAD_PATH,
    MAX_ENTRY_BYTES,
    SNAPSHOTS_PATH,
    chunk_path,
    entry_path,
)
from conveyor.kernel.errors import ErrorKind, RequestError, StorageFailure
from conveyor.kernel.ids import LeaderEpoch, NodeId
from conveyor.kernel.ports import DeleteNode, PutNode, StoreOperation, Versioned
from tests.unit.broker.metadata.faulty_store import FaultyStore
from tests.unit.broker.metadata.proposals import Seen, group, groups, put, refused
from tests.unit.broker.parts import THIS_BROKER, loaded_metadata, unloaded_metadata


@pytest.fixture
def three_entries_a_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ENTRIES_PER_SNAPSHOT", 3)


@pytest.mark.usefixtures("three_entries_a_snapshot")
async def test_snapshot_is_written_every_so_many_entries_and_what_is_needless_removed(store: FaultyStore) -> None:
    metadata = await loaded_metadata(store)
    for number in range(10):
        await put(metadata, str(number))
    snapshots = [int(name) for name in await store.children(SNAPSHOTS_PATH)]
    entries = [int(name) for name in await store.children(ENTRIES_PATH)]
    assert (snapshots, entries) == ([6, 9], [7, 8, 9, 10, 11])
    assert (await loaded_metadata(store)).image == metadata.image


async def test_snapshot_is_written_after_so_many_bytes(store: FaultyStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BYTES_PER_SNAPSHOT", 10_000)
    metadata = await loaded_metadata(store)
    for number in range(10):
        await metadata.propose(lambda _, text=str(number) * 2500: [group("a", text)])  # type: ignore[misc]
    assert len(await store.children(SNAPSHOTS_PATH)) == 2
    assert (await loaded_metadata(store)).image == metadata.image


@pytest.mark.usefixtures("three_entries_a_snapshot")
async def test_writer_that_is_behind_a_snapshot_reads_it(store: FaultyStore) -> None:
    seen: Seen = []
    first = await loaded_metadata(store, lambda old, new: seen.append((old, new)))
    second = await loaded_metadata(store)
    for number in range(20):
        await put(second, str(number))
    await put(first, "mine")
    assert first.image == (await loaded_metadata(store)).image
    assert len(groups(first.image)) == 21
    assert all(before[1] is after[0] for before, after in pairwise(seen))


@pytest.mark.usefixtures("three_entries_a_snapshot")
@pytest.mark.parametrize("loses_reply", [False, True])
async def test_crash_at_any_call_loses_no_acknowledged_change(loses_reply: bool) -> None:
    """From one call on all calls fail, including those of snapshots and trims; then the broker restarts."""
    crashed = 0
    for call in range(200):
        store = FaultyStore()
        acknowledged: list[str] = []
        metadata = await loaded_metadata(store)
        store.heal()
        store.fails = lambda number, call=call: number > call - (not loses_reply)  # type: ignore[misc]
        store.loses_reply = lambda number, call=call: loses_reply and number == call  # type: ignore[misc]
        try:
            for number in range(10):
                await put(metadata, str(number))
                acknowledged.append(str(number))
        except RequestError:
            crashed += 1
        store.heal()
        again = await loaded_metadata(store)
        stored = groups(again.image)
        assert stored in (acknowledged, [*acknowledged, str(len(acknowledged))])
        for number in range(10):
            await put(again, f"again {number}")
        assert groups((await loaded_metadata(store)).image) == [*stored, *(f"again {number}" for number in range(10))]
        if len(acknowledged) == 10:
            break
    assert crashed > 30


@pytest.mark.usefixtures("three_entries_a_snapshot")
async def test_ten_thousand_partitions_are_kept(store: FaultyStore) -> None:
    nodes = (NodeId(1), NodeId(2), NodeId(3))
    partitions = tuple(PartitionImage(nodes[0], LeaderEpoch(0), nodes, nodes) for _ in range(1000))
    metadata = await loaded_metadata(store)
    for number in range(10):
        topic = TopicPut(name=str(number), topic_id=UUID(int=number), config={}, partitions=partitions)
        await metadata.propose(lambda _, topic=topic: [topic])  # type: ignore[misc]
    assert max(len(node.value) for node in (await store.tree("/log")).values()) <= MAX_ENTRY_BYTES
    again = await loaded_metadata(store)
    assert (again.image, again.image.partition_count) == (metadata.image, 10_000)


@pytest.mark.usefixtures("three_entries_a_snapshot")
@pytest.mark.parametrize(
    ("path", "content", "reason"),
    [
        (entry_path(5), None, "entry 5 of the metadata log is missing"),
        (entry_path(5), b"{}", f"node {entry_path(5)} is damaged"),
        (chunk_path(3, 0), None, f"node {chunk_path(3, 0)} is missing"),
        (chunk_path(3, 0), b"[7]", f"node {chunk_path(3, 0)} is damaged"),
        (HEAD_PATH, None, f"node {HEAD_PATH} is missing, but there is /log/e"),
        (HEAD_PATH, b"{}", f"node {HEAD_PATH} is damaged"),
    ],
)
async def test_damaged_store_is_a_failure_that_names_the_node(
    store: FaultyStore, path: str, content: bytes | None, reason: str
) -> None:
    """The broker does not start, because it cannot trust any of the metadata."""
    metadata = await loaded_metadata(store)
    for name in "abcd":
        await put(metadata, name)
    await store.commit(DeleteNode(path) if content is None else PutNode(path, content))
    before = await store.tree("/")
    with pytest.raises(StorageFailure, match=reason):
        await loaded_metadata(store)
    assert await store.tree("/") == before


async def test_head_that_disappears_refuses_changes(store: FaultyStore, metadata: Metadata) -> None:
    await store.commit(DeleteNode("/log"))
    error = await refused(metadata, ErrorKind.METADATA_UNAVAILABLE, group("a"))
    assert "node /log/head is missing" in str(error)


async def test_nodes_of_others_in_a_shared_store_are_left_alone(store: FaultyStore) -> None:
    """Kafka, too, has `/config` and `/cluster` at the root of a ZooKeeper."""
    await store.commit(PutNode("/cluster/id", b"kafka's"), PutNode("/config/topics/t", b"{}"))
    before = await store.tree("/")
    store.session_timeout_ms = 2_000
    metadata = await loaded_metadata(store)
    await put(metadata, "a")
    after = await store.tree("/")
    assert {path: after[path] for path in before} == before
    assert {path.split("/")[1] for path in after.keys() - before.keys()} == {"log"}
    assert (await loaded_metadata(store)).image == metadata.image


@pytest.mark.parametrize("path", ["/log/of/somebody/else", CONTROLLER_EPOCH_PATH])
@pytest.mark.parametrize("session_timeout_ms", [0, 2_000])
async def test_store_without_a_head_is_a_failure(store: FaultyStore, path: str, session_timeout_ms: int) -> None:
    store.session_timeout_ms = session_timeout_ms
    await store.commit(PutNode(path, b""))
    with pytest.raises(StorageFailure, match=f"node {HEAD_PATH} is missing, but there is {path[:4]}"):
        await loaded_metadata(store)


@pytest.mark.parametrize("loses_reply", [False, True])
async def test_crash_while_the_log_is_created_is_harmless(loses_reply: bool) -> None:
    for call in range(12):
        store = FaultyStore()
        store.heal()
        store.fails = lambda number, call=call: number > call - (not loses_reply)  # type: ignore[misc]
        store.loses_reply = lambda number, call=call: loses_reply and number == call  # type: ignore[misc]
        with contextlib.suppress(StorageFailure):
            await loaded_metadata(store)
        store.heal()
        image = (await loaded_metadata(store)).image
        assert image.brokers == {1: THIS_BROKER}
        assert (await loaded_metadata(store)).image == image


async def test_subscription_document_is_kept_as_it_is(store: FaultyStore, metadata: Metadata) -> None:
    document = '{"policy": {"filter": "tag == \'\\u00fc\'"}}'
    put_it = SubscriptionPut(name="s", subscription_id=UUID(int=1), topic_id=UUID(int=2), document=document)
    await metadata.propose(lambda _: [put_it])
    assert (await loaded_metadata(store)).image.subscriptions["s"].document == document


class _StoreOfTwo(FaultyStore):
    """Another broker creates the log after this one has found no head: before it lists the nodes, or writes its own."""

    session_timeout_ms = 2_000
    other: Metadata | None = None

    def __init__(self, is_late: bool) -> None:
        super().__init__()
        self._is_late = is_late

    async def tree(self, path: str) -> dict[str, Versioned]:
        if not self._is_late:
            await self._load_other()
        return await super().tree(path)

    async def commit(self, *operations: StoreOperation) -> tuple[int, ...] | None:
        if self._is_late:
            await self._load_other()
        return await super().commit(*operations)

    async def _load_other(self) -> None:
        if self.other is None:
            self.other = unloaded_metadata(self)
            await self.other.load(THIS_BROKER)


@pytest.mark.parametrize("is_late", [False, True])
async def test_log_that_another_broker_creates_meanwhile_is_read(is_late: bool) -> None:
    store = _StoreOfTwo(is_late)
    metadata = await loaded_metadata(store)
    assert store.other is not None
    assert metadata.image == store.other.image
    assert metadata.image.cluster_id
