"""The stored metadata: snapshots, restarts, crashes at any call, damage, and trees of earlier versions."""

import contextlib
import json
from itertools import pairwise
from uuid import UUID

import pytest

from conveyor.broker.metadata import metadata as module
from conveyor.broker.metadata.metadata import Metadata
from conveyor.cluster.changes import PartitionState, SubscriptionPut, TopicPut
from conveyor.cluster.metadata_log import (
    ENTRIES_PATH,
    HEAD_PATH,
    MAX_ENTRY_BYTES,
    SNAPSHOTS_PATH,
    chunk_path,
    entry_path,
)
from conveyor.kernel.errors import ErrorKind, RequestError, StorageFailure
from conveyor.kernel.ports import DeleteNode, PutNode, Versioned
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
    partitions = tuple(PartitionState(1, 0, (1, 2, 3), (1, 2, 3)) for _ in range(1000))
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


LEGACY = {
    "/cluster/id": b"the-cluster",
    "/producer_ids/next": b"3000",
    "/topics/t": json.dumps(
        {
            "id": str(UUID(int=1)),
            "config": {},
            "partitions": [{"leader": 1, "leader_epoch": 2, "replicas": [1], "isr": [1]}],
        }
    ).encode(),
    "/topics/__inbox.gone": b'{"id": "00000000-0000-0000-0000-000000000005", "config": {}, "partitions": []}',
    "/config/groups/a%2Fb": b'{"text": "x"}',
}


async def legacy(store: FaultyStore) -> None:
    await store.commit(*(PutNode(path, content) for path, content in LEGACY.items()))


async def test_tree_of_an_earlier_version_becomes_the_log(store: FaultyStore) -> None:
    await legacy(store)
    metadata = await loaded_metadata(store)
    image = metadata.image
    assert (image.cluster_id, list(image.topics), groups(image)) == ("the-cluster", ["t"], ["a/b"])
    assert not LEGACY.keys() & (await store.tree("/")).keys()
    assert (await loaded_metadata(store)).image == image


async def test_nodes_of_others_in_a_shared_store_are_left_alone(store: FaultyStore) -> None:
    """Kafka, too, has `/config` and `/cluster` at the root of a ZooKeeper."""
    await legacy(store)
    before = await store.tree("/")
    store.session_timeout_ms = 2_000
    metadata = await loaded_metadata(store)
    await put(metadata, "a")
    assert (list(metadata.image.topics), groups(metadata.image)) == ([], ["a"])
    after = await store.tree("/")
    assert {path: after[path] for path in before} == before
    assert {path.split("/")[1] for path in after.keys() - before.keys()} == {"log"}
    assert (await loaded_metadata(store)).image == metadata.image


async def test_log_without_a_head_in_a_shared_store_is_a_failure(store: FaultyStore) -> None:
    store.session_timeout_ms = 2_000
    await store.commit(PutNode("/log/of/somebody/else", b""))
    with pytest.raises(StorageFailure, match="node /log/head is missing, but there is /log/of"):
        await loaded_metadata(store)


@pytest.mark.parametrize("was_upgraded", [False, True])
async def test_earlier_version_is_stopped_by_a_topic_that_it_cannot_read(
    store: FaultyStore, was_upgraded: bool
) -> None:
    if was_upgraded:
        await legacy(store)
    await loaded_metadata(store)
    topics, settings = await store.tree("/topics"), await store.get("/config/brokers/default")
    assert settings is not None
    assert "later version" in next(iter(json.loads(settings.value)))
    with pytest.raises(json.JSONDecodeError):
        _ = [json.loads(node.value) for node in topics.values()]


@pytest.mark.parametrize("loses_reply", [False, True])
async def test_crash_while_a_tree_becomes_the_log_is_harmless(loses_reply: bool) -> None:
    for call in range(12):
        store = FaultyStore()
        await legacy(store)
        store.heal()
        store.fails = lambda number, call=call: number > call - (not loses_reply)  # type: ignore[misc]
        store.loses_reply = lambda number, call=call: loses_reply and number == call  # type: ignore[misc]
        with contextlib.suppress(StorageFailure):
            await loaded_metadata(store)
        store.heal()
        image = (await loaded_metadata(store)).image
        assert (image.cluster_id, list(image.topics), groups(image)) == ("the-cluster", ["t"], ["a/b"])
        assert (image.next_producer_id, image.brokers) == (3000, {1: THIS_BROKER})
        assert not LEGACY.keys() & (await store.tree("/")).keys()


async def test_tree_of_an_earlier_version_is_served_from_a_full_disk(store: FaultyStore) -> None:
    await legacy(store)
    before = await store.tree("/")
    store.is_full = True
    metadata = await loaded_metadata(store)
    assert (list(metadata.image.topics), metadata.image.brokers) == (["t"], {1: THIS_BROKER})
    await refused(metadata, ErrorKind.DISK_FULL, group("a"))
    await refused(metadata, ErrorKind.DISK_FULL, group("a"))
    assert await store.tree("/") == before
    store.is_full = False
    await put(metadata, "a")
    assert groups(metadata.image) == ["a/b", "a"]
    assert (await loaded_metadata(store)).image == metadata.image


async def test_damaged_tree_of_an_earlier_version_is_a_failure_that_names_the_node(store: FaultyStore) -> None:
    await legacy(store)
    await store.commit(PutNode("/topics/t", b"{}"))
    before = await store.tree("/")
    with pytest.raises(StorageFailure, match="node /topics/t is damaged"):
        await loaded_metadata(store)
    assert await store.tree("/") == before


async def test_subscription_document_is_kept_as_it_is(store: FaultyStore, metadata: Metadata) -> None:
    document = '{"policy": {"filter": "tag == \'\\u00fc\'"}}'
    put_it = SubscriptionPut(name="s", subscription_id=UUID(int=1), topic_id=UUID(int=2), document=document)
    await metadata.propose(lambda _: [put_it])
    assert (await loaded_metadata(store)).image.subscriptions["s"].document == document


class _StoreOfTwo(FaultyStore):
    """Another broker creates the log after this broker has found no head, and before it lists the nodes."""

    session_timeout_ms = 2_000
    other: Metadata | None = None

    async def tree(self, path: str) -> dict[str, Versioned]:
        if self.other is None:
            self.other = unloaded_metadata(self)
            await self.other.load(THIS_BROKER)
        return await super().tree(path)


async def test_log_that_another_broker_creates_meanwhile_is_read() -> None:
    store = _StoreOfTwo()
    metadata = await loaded_metadata(store)
    assert store.other is not None
    assert metadata.image == store.other.image
    assert metadata.image.cluster_id
