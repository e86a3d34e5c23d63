"""The metadata: proposals, listeners, two writers, lost replies, stores that fail, a full disk."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from itertools import pairwise
from uuid import UUID

import pytest

from conveyor.broker.metadata.metadata import Metadata
from conveyor.cluster.changes import Change, ConfigPut
from conveyor.cluster.image import BrokerImage, ClusterImage, ConfigScope
from conveyor.kernel.errors import ErrorKind, InconsistentState, RequestError, StorageFailure
from conveyor.kernel.ids import NodeId
from conveyor.kernel.ports import PutNode, StoreOperation
from tests.unit.broker.metadata.faulty_store import FaultyStore
from tests.unit.broker.metadata.proposals import Seen, group, groups, head_seq, put, refused, take_ten
from tests.unit.broker.parts import THIS_BROKER, loaded_metadata, unloaded_metadata


async def test_first_start_names_the_cluster_and_registers_the_broker(store: FaultyStore, metadata: Metadata) -> None:
    assert metadata.image.brokers == {1: THIS_BROKER}
    assert len(metadata.image.cluster_id) == 22
    again = await loaded_metadata(store)
    assert again.image == metadata.image


async def test_start_that_changes_nothing_writes_nothing(store: FaultyStore, metadata: Metadata) -> None:
    before = await store.tree("/")
    store.is_full = True
    await loaded_metadata(store)
    assert await store.tree("/") == before


async def test_broker_with_another_number_takes_the_place_of_the_one_before(
    store: FaultyStore, metadata: Metadata
) -> None:
    """An embedded store has one broker, so no broker may have the previous node id."""
    other = BrokerImage(node_id=NodeId(7), host="h", port=1, rack="r")
    assert (await loaded_metadata(store, broker=other)).image.brokers == {7: other}


async def test_proposal_returns_the_image_that_shows_it(metadata: Metadata) -> None:
    image = await put(metadata, "a", "b")
    assert image is metadata.image
    assert groups(image) == ["a", "b"]


async def test_proposal_without_changes_writes_nothing(store: FaultyStore, metadata: Metadata) -> None:
    before, image = await store.tree("/"), metadata.image
    assert await metadata.propose(lambda _: []) is image
    assert await store.tree("/") == before


async def test_refusal_changes_nothing(store: FaultyStore, metadata: Metadata) -> None:
    before, image = await store.tree("/"), metadata.image

    def decide(_: ClusterImage) -> Sequence[Change]:
        raise RequestError(ErrorKind.INVALID_TOPIC, "no")

    with pytest.raises(RequestError, match="no"):
        await metadata.propose(decide)
    assert (await store.tree("/"), metadata.image) == (before, image)
    await put(metadata, "a")


async def test_proposals_at_once_are_decided_one_after_the_other(metadata: Metadata) -> None:
    await asyncio.gather(*(metadata.propose(take_ten) for _ in range(20)))
    assert metadata.image.next_producer_id == 200


async def test_listeners_see_every_image_in_order(store: FaultyStore) -> None:
    seen: Seen = []
    order: list[str] = []
    metadata = await loaded_metadata(
        store, lambda old, new: seen.append((old, new)), lambda *_: order.append("1"), lambda *_: order.append("2")
    )
    for name in "abc":
        await put(metadata, name)
    assert (seen[0][0], seen[-1][1]) == (ClusterImage(), metadata.image)
    assert [new.seq for _, new in seen] == [0, 1, 2, 3, 4]
    assert all(before[1] is after[0] for before, after in pairwise(seen))
    assert order == ["1", "2"] * len(seen)


async def test_listeners_are_called_before_the_proposal_returns(metadata: Metadata) -> None:
    seen: list[str] = []
    metadata.listen(lambda _, new: seen.extend(groups(new)))
    await put(metadata, "a")
    assert seen == ["a"]


async def test_listener_that_fails_keeps_no_other_from_hearing(store: FaultyStore, metadata: Metadata) -> None:
    seen: list[int] = []

    def fail(_: ClusterImage, new: ClusterImage) -> None:
        if "bad" in groups(new) and "after" not in groups(new):
            raise AssertionError("a bug")

    metadata.listen(fail)
    metadata.listen(lambda _, new: seen.append(new.seq))
    with pytest.raises(InconsistentState, match="a listener of image 2") as failure:
        await put(metadata, "bad")
    assert isinstance(failure.value.__cause__, AssertionError)
    await put(metadata, "after")
    assert seen == [2, 3]
    assert (await loaded_metadata(store)).image == metadata.image


async def test_nothing_is_decided_before_the_metadata_is_loaded(store: FaultyStore) -> None:
    await store.commit(PutNode("/cluster/id", b"c"))
    with pytest.raises(AssertionError, match="loaded"):
        await put(unloaded_metadata(store), "a")
    assert list(await store.tree("/")) == ["/cluster", "/cluster/id"]


async def test_second_writer_takes_over_and_the_first_decides_again(store: FaultyStore) -> None:
    first, second = await loaded_metadata(store), await loaded_metadata(store)
    for metadata in (first, second, second, first, second, first):
        await metadata.propose(take_ten)
    assert first.image.next_producer_id == 60
    await put(second, "a")
    await put(first, "b")
    assert groups(first.image) == ["a", "b"]
    assert first.image == (await loaded_metadata(store)).image


async def test_writers_at_once_lose_no_change(store: FaultyStore) -> None:
    writers = [await loaded_metadata(store) for _ in range(3)]
    await asyncio.gather(*(writer.propose(take_ten) for _ in range(10) for writer in writers))
    assert (await loaded_metadata(store)).image.next_producer_id == 300


async def test_first_writer_refuses_by_what_the_second_has_done(store: FaultyStore) -> None:
    first, second = await loaded_metadata(store), await loaded_metadata(store)
    await put(second, "a")

    def decide(image: ClusterImage) -> Sequence[Change]:
        if groups(image):
            raise RequestError(ErrorKind.TOPIC_ALREADY_EXISTS, "is there")
        return [group("a", "mine")]

    with pytest.raises(RequestError, match="is there"):
        await first.propose(decide)
    assert first.image == second.image


async def test_lost_reply_is_found_out(store: FaultyStore) -> None:
    """The entry contains the batch id of the write."""
    metadata = await loaded_metadata(store)
    await put(metadata, "a")
    store.loses_reply = lambda _: True
    assert groups(await put(metadata, "b")) == ["a", "b"]
    store.heal()
    assert groups((await loaded_metadata(store)).image) == ["a", "b"]


class ContestedStore(FaultyStore):
    """Once, another writer commits just before or just after a commit, whose reply is lost."""

    def __init__(self) -> None:
        super().__init__()
        self.before: Callable[[], Awaitable[object]] | None = None
        self.after: Callable[[], Awaitable[object]] | None = None

    async def commit(self, *operations: StoreOperation) -> tuple[int, ...] | None:
        before, after, self.before, self.after = self.before, self.after, None, None
        if before is not None:
            await before()
        committed = await super().commit(*operations)
        if after is not None:
            await after()
        if before is not None or after is not None:
            raise StorageFailure("the reply is lost")
        return committed


async def test_lost_reply_is_found_out_though_others_have_written_since() -> None:
    """The head then contains the batch id of another write."""
    store, decisions = ContestedStore(), list[ClusterImage]()
    first, second = await loaded_metadata(store), await loaded_metadata(store)
    store.after = lambda: put(second, "other")

    def decide(image: ClusterImage) -> list[Change]:
        decisions.append(image)
        return [group("a")]

    assert groups(await first.propose(decide)) == ["a", "other"]
    assert len(decisions) == 1


async def test_lost_refusal_is_decided_again() -> None:
    """The entry of that number then contains the batch id of another write."""
    store = ContestedStore()
    first, second = await loaded_metadata(store), await loaded_metadata(store)
    store.before = lambda: put(second, "other")
    assert groups(await put(first, "a")) == ["other", "a"]


@pytest.mark.parametrize("call", range(5))
async def test_call_that_fails_leaves_the_truth_to_be_seen_by_the_next_proposal(store: FaultyStore, call: int) -> None:
    """Any call of a proposal may fail. The change may or may not have happened; the next image shows which."""
    metadata = await loaded_metadata(store)
    await put(metadata, "first")
    store.heal()
    store.fails = lambda number: number == call
    [error] = await asyncio.gather(put(metadata, "second"), return_exceptions=True)
    failed = isinstance(error, RequestError) and error.kind is ErrorKind.METADATA_UNAVAILABLE
    store.heal()
    image = await metadata.propose(lambda _: [])
    stored = groups((await loaded_metadata(store)).image)
    assert groups(image) == stored
    assert "second" in stored or failed


async def test_failure_before_a_commit_changes_nothing(store: FaultyStore, metadata: Metadata) -> None:
    store.heal()
    store.fails = lambda _: True
    for _ in range(2):
        await refused(metadata, ErrorKind.METADATA_UNAVAILABLE, group("a"))
    store.heal()
    assert groups(await put(metadata, "b")) == ["b"]


async def test_commit_whose_fate_cannot_be_read_is_seen_later(store: FaultyStore, metadata: Metadata) -> None:
    await put(metadata, "a")
    store.heal()
    store.loses_reply, store.fails = lambda _: True, lambda call: call > 0
    await refused(metadata, ErrorKind.METADATA_UNAVAILABLE, group("b"))
    assert groups(metadata.image) == ["a"]
    store.heal()
    image = await metadata.propose(lambda image: [] if "b" in groups(image) else [group("not seen")])
    assert groups(image) == ["a", "b"]


async def test_change_whose_caller_is_cancelled_is_carried_out(store: FaultyStore, metadata: Metadata) -> None:
    seen: list[int] = []
    metadata.listen(lambda _, new: seen.append(new.seq))
    proposals = [asyncio.ensure_future(put(metadata, name)) for name in "ab"]
    await asyncio.sleep(0)
    for proposal in proposals:
        proposal.cancel()
    await asyncio.gather(*proposals, return_exceptions=True)
    assert groups(await put(metadata, "c")) == ["a", "b", "c"]
    assert seen == [2, 3, 4]


async def test_close_finishes_what_was_proposed(store: FaultyStore, metadata: Metadata) -> None:
    proposal = asyncio.ensure_future(put(metadata, "a"))
    await asyncio.sleep(0)
    proposal.cancel()
    await metadata.close()
    assert groups((await loaded_metadata(store)).image) == ["a"]


async def test_change_beyond_the_limit_is_refused_as_a_whole(store: FaultyStore, metadata: Metadata) -> None:
    before = await store.tree("/")
    names = [str(UUID(int=number * 0x9E3779B97F4A7C15F39CC0605CEDC834 % 2**128)) for number in range(60_000)]
    texts = dict.fromkeys(names, "x")
    await refused(
        metadata, ErrorKind.INVALID_REQUEST, group("a"), ConfigPut(scope=ConfigScope.GROUPS, name="b", texts=texts)
    )
    after = await store.tree("/")
    assert after == before
    assert groups(await put(metadata, "c")) == ["c"]


async def test_names_are_kept_whatever_is_in_them(store: FaultyStore, metadata: Metadata) -> None:
    names = ["a/b", "..", '"}], "changes": []', "\x00", "ü %2F", "x" * 40_000]
    await put(metadata, *names)
    assert groups((await loaded_metadata(store)).image) == names
    await refused(metadata, ErrorKind.INVALID_REQUEST, group("\ud800"))
    assert groups(await put(metadata, "after")) == [*names, "after"]


async def test_full_disk_refuses_changes(store: FaultyStore, metadata: Metadata) -> None:
    store.is_full = True
    await refused(metadata, ErrorKind.DISK_FULL, group("a"))
    store.is_full = False
    assert groups(await put(metadata, "b")) == ["b"]


async def test_broker_that_starts_on_a_full_disk_is_registered_with_the_next_change(
    store: FaultyStore, metadata: Metadata
) -> None:
    await put(metadata, "a")
    store.is_full = True
    moved = BrokerImage(node_id=NodeId(1), host="elsewhere", port=1)
    again = await loaded_metadata(store, broker=moved)
    assert (groups(again.image), again.image.brokers) == (["a"], {1: moved})
    await refused(again, ErrorKind.DISK_FULL, group("b"))
    assert again.image.brokers == {1: moved}
    store.is_full = False
    await put(again, "c")
    assert (await loaded_metadata(store, broker=moved)).image == again.image
    assert (groups(again.image), again.image.brokers, await head_seq(store)) == (["a", "c"], {1: moved}, 3)


async def test_first_start_needs_room(store: FaultyStore) -> None:
    store.is_full = True
    with pytest.raises(StorageFailure, match="full"):
        await loaded_metadata(store)


@pytest.mark.parametrize("call", range(3))
async def test_start_without_a_store_is_a_failure(store: FaultyStore, metadata: Metadata, call: int) -> None:
    store.heal()
    store.fails = lambda number: number >= call
    with pytest.raises(StorageFailure, match="away"):
        await loaded_metadata(store)
