"""The registration of a broker: its epoch, its heartbeats, its loss and return, and other brokers with its id."""

import asyncio

import msgspec
import pytest

from conveyor.broker.metadata.broker_session import BROKERS_PATH, registration_path
from conveyor.cluster.controller.registrations import Registration
from conveyor.kernel.errors import StartupError, StorageFailure
from conveyor.kernel.ports import ABSENT, DeleteNode, PutNode, StoreOperation
from tests.unit.broker.metadata.faulty_store import FaultyStore
from tests.unit.broker.metadata.members import TIMEOUT_MS, Cluster, quiet, until
from tests.unit.broker.parts import loaded_metadata


def registered(cluster: Cluster) -> list[Registration]:
    """Return the stored registrations, by epoch."""
    nodes = [node for path, node in cluster.tree.nodes.items() if path.startswith(BROKERS_PATH + "/")]
    found = [msgspec.json.decode(node.value, type=Registration) for node in nodes]
    return sorted(found, key=lambda registration: registration.broker_epoch)


async def test_each_registration_has_a_higher_epoch(cluster: Cluster) -> None:
    first, second = await cluster.add(1), await cluster.add(2)
    assert [registration.node_id for registration in registered(cluster)] == [1, 2]
    assert (first.session.broker_epoch, second.session.broker_epoch) == (1, 2)
    assert [broker.broker_epoch for broker in first.image.brokers.values()] == [1, 2]
    assert registered(cluster)[1].incarnation == second.session.incarnation
    await second.stop()
    again = await cluster.add(2)
    assert again.session.broker_epoch == 3


async def test_embedded_store_needs_no_registration() -> None:
    store = FaultyStore()
    metadata = await loaded_metadata(store)
    assert metadata.session.holds_lease()
    assert metadata.session.may_lead(metadata.image)
    assert await store.children("/") == ["log"]


async def test_broker_is_sure_for_two_thirds_of_a_timeout_after_each_heartbeat(cluster: Cluster) -> None:
    member = await cluster.add(1)
    assert member.session.holds_lease()
    sure_again: list[bool] = []
    member.session.lease_renewed.listen(lambda _: sure_again.append(member.session.holds_lease()))
    for _ in range(20):
        member.clock.advance(seconds=TIMEOUT_MS / 6000)
        await quiet()
        assert member.session.holds_lease()
    member.store.cut()
    member.clock.advance(seconds=TIMEOUT_MS / 6000)
    await quiet()
    assert member.session.holds_lease()
    member.clock.advance(seconds=TIMEOUT_MS / 1500)
    await quiet()
    assert not member.session.holds_lease()
    assert member.is_registered, "a lost connection changes no role"
    assert sure_again == []
    member.store.reconnect()
    await quiet()
    assert member.session.holds_lease()
    assert sure_again == [True]


async def test_expired_session_is_lost_at_once_and_another_incarnation_registers(cluster: Cluster) -> None:
    other, member = await cluster.add(1), await cluster.add(2)
    lost: list[str] = []
    first = member.session.incarnation
    member.session.lost.listen(lambda _: lost.append(member.session.incarnation))
    member.store.cut()
    assert lost == []
    member.store.expire()
    assert (len(lost), member.session.holds_lease(), member.is_registered) == (1, False, False)
    await until(lambda: other.image.brokers[member.node_id].is_fenced)
    member.store.reconnect()
    await until(lambda: member.is_registered)
    assert member.session.incarnation not in ("", first)
    assert other.image.brokers[member.node_id].broker_epoch == member.session.broker_epoch == 3


async def test_broker_that_stops_does_not_register_again(cluster: Cluster) -> None:
    """Its directory would note another incarnation while the stop notes what the directory knows in the end."""
    other, member = await cluster.add(1), await cluster.add(2)
    first = member.session.incarnation
    member.session.register_no_more()
    member.store.cut()
    member.store.expire()
    member.store.reconnect()
    await until(lambda: other.image.brokers[member.node_id].is_fenced)
    member.clock.advance(seconds=TIMEOUT_MS / 1000)
    await quiet()
    assert [registration.node_id for registration in registered(cluster)] == [1]
    assert member.session.dead_incarnations == {first}


async def test_own_node_that_is_gone_ends_the_registration(cluster: Cluster) -> None:
    other, member = await cluster.add(1), await cluster.add(2)
    lost: list[int] = []
    member.session.lost.listen(lambda _: lost.append(member.session.broker_epoch))
    await other.store.commit(DeleteNode(registration_path(registered(cluster)[1])))
    await member.advance_until(lambda: bool(lost))
    await until(lambda: member.is_registered)
    assert (lost, member.session.broker_epoch) == ([2], 3)


async def test_registration_whose_reply_is_lost_does_not_stand_in_the_way(cluster: Cluster) -> None:
    """Neither at the start nor afterwards."""
    await cluster.add(1)
    member = cluster.make(2)
    await member.metadata.load(member.broker)
    member.store.loses_reply = _is_registration
    with pytest.raises(StorageFailure):
        await member.session.start(member.registration, member.claim)
    dead = registered(cluster)[-1].incarnation
    member.store.loses_reply = lambda _: False
    await member.session.start(member.registration, member.claim)
    assert registered(cluster)[-1].incarnation == member.session.incarnation != dead
    member.store.cut()
    member.store.expire()
    member.store.loses_reply = _is_registration
    member.store.reconnect()
    await quiet()
    assert not member.is_registered
    member.store.loses_reply = lambda _: False
    await member.advance_until(lambda: member.is_registered)
    assert len(registered(cluster)) == 2


def _is_registration(operation: StoreOperation) -> bool:
    return isinstance(operation, PutNode) and operation.path.startswith(BROKERS_PATH)


async def test_registration_of_an_earlier_process_with_the_same_lock_is_deleted(cluster: Cluster) -> None:
    other = await cluster.add(2)
    killed = await cluster.add(1)
    await cluster.kill(killed)
    again = await cluster.add(1)
    assert [item.broker_epoch for item in registered(cluster)] == [other.session.broker_epoch, 3]
    assert killed.session.incarnation in again.session.dead_incarnations


@pytest.mark.parametrize(("data_id", "lock_id"), [("new disk", ""), ("", "of another machine")])
async def test_broker_waits_for_the_end_of_the_session_of_another_lock(
    cluster: Cluster, data_id: str, lock_id: str
) -> None:
    """Even one with its data may be a live broker: the data may be a copy."""
    await cluster.add(1)
    first = await cluster.add(2)
    first.store.cut()
    second = cluster.make(2, data_id=data_id, lock_id=lock_id)
    await second.metadata.load(second.broker)
    starting = asyncio.ensure_future(second.session.start(second.registration, second.claim))
    await quiet()
    assert not starting.done()
    first.store.expire()
    await starting
    assert [item.incarnation for item in registered(cluster)][1:] == [second.session.incarnation]


@pytest.mark.parametrize(
    ("data_id", "reason"),
    [("other", "with another data directory"), ("", "this data directory is a copy of its own, or is in use on two")],
)
async def test_broker_is_refused_while_another_one_has_its_id(cluster: Cluster, data_id: str, reason: str) -> None:
    live = await cluster.add(1)
    second = cluster.make(1, data_id=data_id, lock_id="another")
    await second.metadata.load(second.broker)
    starting = asyncio.ensure_future(second.session.start(second.registration, second.claim))
    await second.advance_until(starting.done)
    with pytest.raises(StartupError, match=rf"broker 1 at b1\.example:9092 is running, (and )?{reason}"):
        await starting
    assert [item.incarnation for item in registered(cluster)] == [live.session.incarnation]


async def test_directory_knows_an_incarnation_before_the_store_does(cluster: Cluster) -> None:
    member = await cluster.add(1)
    assert registered(cluster)[0].past_incarnations == (member.session.incarnation,)
    first = member.session.incarnation
    member.store.cut()
    member.store.expire()
    member.store.hold_commits()
    member.store.reconnect()
    await until(lambda: len(member.claimed) > 1)
    assert registered(cluster) == []
    member.store.release_commits()
    await until(lambda: member.is_registered)
    assert registered(cluster)[0].past_incarnations == (first, member.session.incarnation)


async def test_broker_does_not_register_what_its_directory_cannot_note(cluster: Cluster) -> None:
    async def fail(registration: Registration) -> Registration:
        raise StorageFailure("the disk is full")

    member = cluster.make(1)
    await member.metadata.load(member.broker)
    with pytest.raises(StorageFailure, match="the disk is full"):
        await member.session.start(member.registration, fail)
    assert registered(cluster) == []
    await member.session.start(member.registration, member.claim)


@pytest.mark.parametrize("data_id", ["other", "data of 1"])
async def test_broker_whose_id_another_one_has_taken_stops(cluster: Cluster, data_id: str) -> None:
    """Also if the other one has a copy of its data directory."""
    member, other = await cluster.add(1), await cluster.add(2)
    rival = msgspec.structs.replace(member.registration, incarnation="rival", broker_epoch=9, data_id=data_id)
    member.store.cut()
    member.store.expire()
    content = msgspec.json.encode(rival)
    await other.store.commit(PutNode(registration_path(rival), content, ABSENT, ephemeral=True))
    member.store.reconnect()
    await member.advance_until(lambda: bool(member.failures))
    [failure] = member.failures
    assert isinstance(failure, StartupError)
    member.failures.clear()
