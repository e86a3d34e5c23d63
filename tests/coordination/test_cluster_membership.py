"""Brokers of one cluster on a real ZooKeeper: registration, fencing, elections, changes at once, lost sessions."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

import pytest

from conveyor.adapters.system_clock import SystemClock
from conveyor.adapters.zookeeper.zookeeper_address import parse_zookeeper_address
from conveyor.adapters.zookeeper.zookeeper_store import ZookeeperStore, open_zookeeper_store
from conveyor.broker.metadata.broker_session import BROKERS_PATH
from conveyor.broker.metadata.controller import Controller
from conveyor.broker.metadata.metadata import Metadata
from conveyor.cluster.changes import Change, ProducerIdsTaken
from conveyor.cluster.controller.registrations import Registration
from conveyor.cluster.image import BrokerImage, ClusterImage
from conveyor.kernel.ids import NodeId
from tests.coordination.tcp_proxy import TcpProxy
from tests.coordination.zookeeper_process import ZookeeperProcess
from tests.unit.broker.room_services import room_services

_TIMEOUT_MS = 2_000


class Member:
    """The metadata, the session and the controller of one broker, which reaches ZooKeeper through its own proxy."""

    def __init__(self, node_id: int, store: ZookeeperStore, proxy: TcpProxy, threads: ThreadPoolExecutor) -> None:
        self.node_id = NodeId(node_id)
        self.proxy = proxy
        self.failures: list[BaseException] = []
        self.clock = SystemClock(asyncio.get_running_loop())
        self.metadata = Metadata(store, threads, uuid4, self.clock, self.failures.append)
        self.session = self.metadata.session
        self.controller = Controller(room_services(self.clock, metadata=self.metadata, me=self.node_id), store)

    @property
    def is_registered(self) -> bool:
        return self.session.may_lead(self.metadata.image)

    def sees_all(self) -> bool:
        return len(self.metadata.image.brokers) == 3

    def is_fenced(self, node_id: int) -> bool:
        """Whether this member sees another one as fenced."""
        return self.metadata.image.brokers[NodeId(node_id)].is_fenced

    async def start(self) -> None:
        broker = BrokerImage(node_id=self.node_id, host="host", port=9092)
        await self.metadata.load(broker)
        registration = Registration(
            node_id=self.node_id,
            host="host",
            port=9092,
            incarnation="",
            broker_epoch=0,
            boot_id="boot",
            data_id=f"data {self.node_id}",
        )
        await self.session.start(registration)
        self.controller.start()
        await self.until(lambda: self.is_registered)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition of the image holds."""
        await self.metadata.until(lambda _: condition())

    async def stop(self) -> None:
        self.controller.stop()
        await self.session.close()
        await self.metadata.close()
        self.clock.close()
        await self.proxy.stop()
        assert not self.failures


@pytest.fixture
async def members(zookeeper: ZookeeperProcess, root: str) -> AsyncIterator[list[Member]]:
    """Three members, with the ids 1 to 3, started in this order."""
    members: list[Member] = []
    with ThreadPoolExecutor(1) as threads:
        for node_id in (1, 2, 3):
            proxy = await TcpProxy(zookeeper.port).start()
            address = parse_zookeeper_address(f"zookeeper://127.0.0.1:{proxy.port}{root}")
            store = await open_zookeeper_store(address, session_timeout_ms=_TIMEOUT_MS)
            members.append(Member(node_id, store, proxy, threads))
            await members[-1].start()
        for member in members:
            await member.until(member.sees_all)
        yield members
        for member in members:
            await member.stop()


def take_ten(image: ClusterImage) -> list[Change]:
    return [ProducerIdsTaken(next_producer_id=image.next_producer_id + 10)]


async def test_brokers_see_each_other_and_one_controller(members: list[Member]) -> None:
    for member in members:
        assert member.metadata.controller_id == 1
        assert member.session.holds_lease()
    assert [broker.broker_epoch for broker in members[2].metadata.image.brokers.values()] == [1, 2, 3]


async def test_proposals_of_three_brokers_at_once_are_all_written(members: list[Member]) -> None:
    began = time.monotonic()
    await asyncio.gather(*(member.metadata.propose(take_ten) for _ in range(20) for member in members))
    for member in members:
        await member.until(lambda member=member: member.metadata.image.next_producer_id == 600)  # type: ignore[misc]
    assert time.monotonic() - began < 10


async def test_broker_that_is_cut_off_is_fenced_and_comes_back(members: list[Member]) -> None:
    first, _, third = members
    lost = asyncio.Event()
    third.session.lost.listen(lambda _: lost.set())
    third.proxy.cut()
    await first.until(lambda: first.is_fenced(3))
    assert not third.session.holds_lease(), "it has known before the others did"
    third.proxy.heal()
    await lost.wait()
    await third.until(lambda: third.is_registered)
    await first.until(lambda: not first.is_fenced(3))
    assert first.metadata.image.brokers[NodeId(3)].broker_epoch == third.session.broker_epoch == 4


async def test_another_broker_takes_over_from_a_controller_that_is_cut_off(members: list[Member]) -> None:
    first, second, third = members
    first.proxy.cut()
    await second.until(lambda: second.is_fenced(1))
    await third.until(lambda: third.is_fenced(1))
    assert third.metadata.controller_id != 1
    first.proxy.heal()
    await first.until(lambda: first.is_registered)
    await second.until(lambda: not second.is_fenced(1))
    assert first.metadata.term is None
    assert second.metadata.term is not None or third.metadata.term is not None


async def test_broker_that_stops_leaves_no_registration(members: list[Member]) -> None:
    first, _, third = members
    await third.session.close()
    await first.until(lambda: first.is_fenced(3))
    assert len(await first.metadata._store.children(BROKERS_PATH)) == 2
