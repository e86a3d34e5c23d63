"""When a broker is cut off from its cluster: without its registration, replaced by others, or alone."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from conveyor.broker.cluster_links import ClusterLinks
from conveyor.broker.liveness import isolation
from conveyor.broker.liveness.isolation import Isolation
from conveyor.broker.remote.leader_calls import LeaderCalls
from conveyor.broker.tasks import Tasks
from conveyor.kernel.ids import FIRST_GATEWAY_ID, NodeId, is_gateway
from conveyor.kernel.peers import PeerAddress, PeerIdentity
from tests.unit.broker.metadata.members import TIMEOUT_MS, Cluster, Member, quiet, until
from tests.unit.broker.remote.linked_brokers import Cable
from tests.unit.broker.room_services import room_services


class Watched:
    """A broker of a cluster, its calls to the others, and how often it was cut off."""

    def __init__(self, member: Member, cable: Cable) -> None:
        self.member = member
        self.cut_off_count = 0
        self.answers = asyncio.Event()
        self.answers.set()
        network = cable.plug(PeerIdentity(member.node_id, "start"))
        member.metadata.applied.settled = self._settled  # type: ignore[method-assign]
        tasks = Tasks(member.failures.append)
        services = room_services(member.clock, tasks, metadata=member.metadata, me=member.node_id)
        links = ClusterLinks(services, network)
        links.address = _address  # type: ignore[method-assign]
        self.isolation = Isolation(services, LeaderCalls(services, links))
        self.isolation.cut_off.listen(self._cut_off)
        self.isolation.start()

    def reason(self) -> str | None:
        return self.isolation.reason

    async def pass_time(self, timeouts: float = 3) -> None:
        for _ in range(int(10 * timeouts)):
            self.member.clock.advance(seconds=TIMEOUT_MS / 10_000)
            await quiet()

    def _cut_off(self, _: None) -> None:
        self.cut_off_count += 1

    async def _settled(self, seq: int) -> None:
        await self.answers.wait()
        await until(lambda: self.member.image.seq >= seq)


def _address(node_id: NodeId) -> PeerAddress:
    return PeerAddress(PeerIdentity(node_id, "start"), f"broker-{node_id}.example", 9190)


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    cluster = Cluster()
    yield cluster
    await cluster.stop()


@pytest.fixture
def cable() -> Cable:
    return Cable()


Add = Callable[[int], Awaitable[Watched]]


@pytest.fixture
def add(cluster: Cluster, cable: Cable) -> Add:
    async def added(node_id: int) -> Watched:
        if not is_gateway(node_id):
            return Watched(await cluster.add(node_id), cable)
        gateway = cluster.make(node_id)
        await gateway.metadata.load(gateway.broker)
        await gateway.session.start(gateway.registration)
        return Watched(gateway, cable)

    return added


async def test_broker_without_its_session_is_cut_off_until_it_is_registered_again(add: Add) -> None:
    other, broker = await add(1), await add(2)
    assert broker.reason() is None
    broker.member.store.cut()
    assert broker.reason() is None, "the connection may come back in time"
    broker.member.store.expire()
    assert (broker.reason(), broker.cut_off_count) == (isolation.UNREGISTERED, 1)
    broker.member.store.reconnect()
    await until(lambda: broker.reason() is None)
    assert broker.member.is_registered
    assert (other.reason(), broker.cut_off_count) == (None, 1)


async def test_broker_that_others_have_replaced_is_cut_off_although_it_does_not_know(
    add: Add, cluster: Cluster
) -> None:
    """The store has ended the session, and the broker cannot reach the store to learn of it."""
    other, broker = await add(1), await add(2)
    broker.member.store.cut()
    await broker.pass_time(timeouts=2)
    assert broker.reason() is None, "the other broker still shows its registration"
    cluster.tree.end_session(broker.member.store)
    await until(lambda: other.member.image.brokers[NodeId(2)].is_fenced)
    await broker.pass_time(timeouts=1)
    assert broker.member.is_registered
    assert (broker.reason(), broker.cut_off_count) == (isolation.REPLACED, 1)


async def test_all_brokers_serve_while_none_reaches_the_store(add: Add) -> None:
    brokers = [await add(node_id) for node_id in (1, 2, 3)]
    for broker in brokers:
        broker.member.store.cut()
    for broker in brokers:
        await broker.pass_time(timeouts=5)
    assert [broker.reason() for broker in brokers] == [None, None, None]
    assert not any(broker.member.session.holds_lease() for broker in brokers)


async def test_broker_that_reaches_nobody_is_cut_off_after_a_session_timeout(add: Add, cable: Cable) -> None:
    await add(1)
    broker = await add(2)
    cable.unplug(NodeId(1))
    await broker.pass_time()
    assert broker.reason() is None, "it is sure of its registration"
    broker.member.store.cut()
    await broker.pass_time(timeouts=0.9)
    assert broker.reason() is None
    await broker.pass_time(timeouts=1)
    assert (broker.reason(), broker.cut_off_count) == (isolation.ALONE, 1)
    broker.member.store.reconnect()
    await until(lambda: broker.reason() is None)


async def test_broker_whose_calls_nobody_answers_is_cut_off(add: Add) -> None:
    """The other broker hangs: it has accepted the call, and says nothing."""
    other, broker = await add(1), await add(2)
    other.answers.clear()
    broker.member.store.cut()
    await broker.pass_time(timeouts=4)
    assert broker.reason() == isolation.ALONE
    other.answers.set()
    await broker.pass_time(timeouts=1)
    assert broker.reason() is None, "the other broker is sure, and still shows the registration"


async def test_broker_that_is_cut_off_itself_keeps_no_other_one(add: Add) -> None:
    other, broker = await add(1), await add(2)
    broker.member.store.cut()
    other.member.store.cut()
    other.member.store.expire()
    assert other.reason() == isolation.UNREGISTERED
    await broker.pass_time()
    assert broker.reason() == isolation.ALONE


async def test_brokers_that_were_all_alone_serve_when_they_reach_each_other_again(add: Add, cable: Cable) -> None:
    brokers = [await add(1), await add(2)]
    networks = dict(cable.networks)
    for node_id in networks:
        cable.unplug(node_id)
    for broker in brokers:
        broker.member.store.cut()
    for broker in brokers:
        await broker.pass_time()
    assert [broker.reason() for broker in brokers] == [isolation.ALONE] * 2
    cable.networks.update(networks)
    for broker in brokers:
        await broker.pass_time()
    assert [broker.reason() for broker in brokers] == [None, None]


async def test_broker_stays_replaced_when_the_one_that_has_said_so_is_gone(
    add: Add, cluster: Cluster, cable: Cable
) -> None:
    sure, unsure, broker = await add(1), await add(2), await add(3)
    unsure.member.store.cut()
    broker.member.store.cut()
    await broker.pass_time(timeouts=2)
    cluster.tree.end_session(broker.member.store)
    await until(lambda: sure.member.image.brokers[NodeId(3)].is_fenced)
    await broker.pass_time(timeouts=1)
    assert broker.reason() == isolation.REPLACED
    cable.unplug(NodeId(1))
    await broker.pass_time(timeouts=2)
    assert broker.reason() == isolation.REPLACED


async def test_broker_with_an_older_image_answers(add: Add, cable: Cable) -> None:
    """Without the store, the broker may never get the asker's image."""
    broker, behind = await add(1), await add(2)
    behind.member.store.cut()
    await add(3)
    assert broker.member.image.seq > behind.member.image.seq
    cable.unplug(NodeId(3))
    broker.member.store.cut()
    await broker.pass_time(timeouts=4)
    assert broker.reason() is None


async def test_broker_that_stops_is_not_cut_off(add: Add) -> None:
    await add(1)
    broker, gateway = await add(2), await add(FIRST_GATEWAY_ID)
    for stopping in (broker, gateway):
        stopping.isolation.stop()
        stopping.member.store.cut()
        stopping.member.store.expire()
        await stopping.pass_time()
    assert [(stopping.reason(), stopping.cut_off_count) for stopping in (broker, gateway)] == [(None, 0), (None, 0)]


async def test_only_broker_of_a_cluster_serves_without_the_store(add: Add) -> None:
    broker = await add(1)
    broker.member.store.cut()
    await broker.pass_time(timeouts=5)
    assert broker.reason() is None


async def test_gateway_is_cut_off_when_brokers_reach_the_store_and_it_does_not(add: Add) -> None:
    await add(1)
    gateway = await add(FIRST_GATEWAY_ID)
    await gateway.pass_time()
    assert gateway.reason() is None
    gateway.member.store.cut()
    await gateway.pass_time(timeouts=0.9)
    assert gateway.reason() is None
    await gateway.pass_time(timeouts=1)
    assert gateway.reason() == isolation.OUTDATED
    gateway.member.store.expire()
    gateway.member.store.reconnect()
    await until(lambda: gateway.reason() is None)
    assert gateway.member.session.holds_lease()


async def test_gateway_serves_while_nobody_reaches_the_store_until_it_is_alone(add: Add, cable: Cable) -> None:
    broker, gateway = await add(1), await add(FIRST_GATEWAY_ID)
    for member in (broker, gateway):
        member.member.store.cut()
    await broker.pass_time(timeouts=5)
    await gateway.pass_time(timeouts=5)
    assert (broker.reason(), gateway.reason()) == (None, None)
    cable.unplug(NodeId(1))
    await gateway.pass_time(timeouts=2)
    assert gateway.reason() == isolation.ALONE
