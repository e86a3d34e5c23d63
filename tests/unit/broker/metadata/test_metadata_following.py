"""Brokers that share a metadata log observe each other's entries, also after lost connections and sessions."""

import asyncio
from itertools import pairwise

import pytest

from conveyor.broker.metadata import metadata as module
from conveyor.cluster.changes import Change
from conveyor.cluster.image import ClusterImage
from conveyor.cluster.metadata_log import HEAD_PATH, SNAPSHOTS_PATH, decode_head
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.ports import PutNode
from tests.unit.broker.metadata.members import Cluster, Member, quiet, until
from tests.unit.broker.metadata.proposals import groups, put, take_ten


async def three(cluster: Cluster) -> list[Member]:
    return [await cluster.add(node_id) for node_id in (1, 2, 3)]


def seqs(member: Member) -> list[int]:
    """Return the number of each image that a member observes from now on."""
    seen: list[int] = []
    member.metadata.listen(lambda _, new: seen.append(new.seq))
    return seen


async def test_entry_of_one_broker_is_observed_by_all(cluster: Cluster) -> None:
    first, second, third = await three(cluster)
    await put(first.metadata, "a")
    await until(lambda: groups(second.image) == groups(third.image) == ["a"])
    assert first.image == second.image == third.image


async def test_every_entry_is_observed_in_order(cluster: Cluster) -> None:
    members = await three(cluster)
    seen = [seqs(member) for member in members]
    for number in range(30):
        await put(members[number % 3].metadata, str(number))
    await until(lambda: len({member.image.seq for member in members}) == 1)
    for images in seen:
        assert len(images) >= 30
        assert all(after == before + 1 for before, after in pairwise(images))


async def test_proposals_at_once_are_all_written_and_none_waits_for_another_broker(cluster: Cluster) -> None:
    members = await three(cluster)
    start = members[0].image.seq
    await asyncio.gather(*(member.metadata.propose(take_ten) for _ in range(20) for member in members))
    await until(lambda: all(member.image.next_producer_id == 600 for member in members))
    assert members[0].image.seq == start + 60


async def test_broker_that_stands_still_between_decision_and_commit_delays_nobody(cluster: Cluster) -> None:
    first, second, _ = await three(cluster)
    first_decides = asyncio.Event()

    def decide(image: ClusterImage) -> list[Change]:
        first_decides.set()
        return take_ten(image)

    first.store.hold_commits()
    proposal = asyncio.ensure_future(first.metadata.propose(decide))
    await first_decides.wait()
    await second.metadata.propose(take_ten)
    assert second.image.next_producer_id == 10
    first.store.release_commits()
    assert (await proposal).next_producer_id == 20


async def test_changes_while_the_connection_is_lost_are_observed_afterwards(cluster: Cluster) -> None:
    first, second, third = await three(cluster)
    seen = seqs(second)
    second.store.cut()
    for name in "abc":
        await put(first.metadata, name)
    with pytest.raises(RequestError) as refused:
        await put(second.metadata, "d")
    assert refused.value.kind is ErrorKind.METADATA_UNAVAILABLE
    second.store.reconnect()
    await until(lambda: groups(second.image) == ["a", "b", "c"])
    assert seen == [first.image.seq - 2, first.image.seq - 1, first.image.seq]
    assert third.image == second.image


async def test_changes_during_a_lost_session_are_observed_by_the_next_one(cluster: Cluster) -> None:
    first, second, _ = await three(cluster)
    second.store.cut()
    second.store.expire()
    await put(first.metadata, "a")
    second.store.reconnect()
    await until(lambda: groups(second.image) == ["a"] and second.is_registered)


async def test_read_that_fails_is_retried_after_a_pause(cluster: Cluster) -> None:
    first, second, _ = await three(cluster)
    head = cluster.tree.nodes[HEAD_PATH]
    cluster.tree.nodes[HEAD_PATH] = type(head)(b"{", head.version)
    second.metadata._head_changed()
    await quiet()
    cluster.tree.nodes[HEAD_PATH] = head
    await put(first.metadata, "a")
    await second.advance_until(lambda: groups(second.image) == ["a"])


async def test_image_never_goes_back(cluster: Cluster) -> None:
    """A head of the past, such as that of a restored backup, is not believed."""
    first, second, _ = await three(cluster)
    before = cluster.tree.nodes[HEAD_PATH]
    await put(first.metadata, "a")
    await until(lambda: groups(second.image) == ["a"])
    await first.store.commit(PutNode(HEAD_PATH, before.value))
    await quiet()
    assert groups(first.image) == groups(second.image) == ["a"]
    with pytest.raises(RequestError, match="the log goes back from entry"):
        await put(second.metadata, "b")


@pytest.fixture
def three_entries_a_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ENTRIES_PER_SNAPSHOT", 3)


@pytest.mark.usefixtures("three_entries_a_snapshot")
async def test_controller_alone_writes_snapshots(cluster: Cluster) -> None:
    first, second, _ = await three(cluster)
    for number in range(20):
        await put(second.metadata, str(number))
    await until(lambda: first.image == second.image)
    await quiet()
    head = decode_head(cluster.tree.nodes[HEAD_PATH].value)
    assert head.seq - head.snapshot < 3
    assert first.metadata.term is not None
    assert len(await first.store.children(SNAPSHOTS_PATH)) == 2
    late = await cluster.add(4)
    await until(lambda: late.image == first.image)


@pytest.mark.usefixtures("three_entries_a_snapshot")
async def test_entries_that_a_snapshot_has_replaced_are_skipped(cluster: Cluster) -> None:
    """The image continues from the snapshot."""
    first, second, third = await three(cluster)
    second.store.cut()
    seen = seqs(second)
    for number in range(20):
        await put(third.metadata, str(number))
        await quiet()
    second.store.reconnect()
    await until(lambda: second.image.seq == first.image.seq)
    assert second.image == first.image
    assert len(seen) < 20
