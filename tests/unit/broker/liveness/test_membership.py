"""Brokers of one cluster with partitions: who leads after a start, a stop, a lost session, a crash."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from uuid import UUID

import pytest

from conveyor.broker.broker_node import BrokerNode
from conveyor.broker.liveness.membership import DATA_ID
from conveyor.cluster.changes import topic_put
from conveyor.cluster.image import PartitionImage, TopicImage
from conveyor.kernel.errors import StartupError, StorageFailure
from conveyor.kernel.ids import LeaderEpoch, NodeId, TopicId
from conveyor.log.checked_file import read_checked
from conveyor.replication.partition import Partition
from conveyor.replication.replica_facts import NAME, DirectoryFacts, decode_facts
from conveyor.replication.roles import Follower
from conveyor.testing.memory_store import MemoryStore, MemoryTree
from tests.unit.broker.metadata.members import TIMEOUT_MS, until
from tests.unit.broker.parts import Storage, propose, running_parts
from tests.unit.replication.parts import led

ONE, TWO = NodeId(1), NodeId(2)


class Brokers:
    """Brokers that share one tree. Each keeps its disk when it starts again."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self.tree = MemoryTree()
        self.storages: dict[int, Storage] = {}
        self.sessions: dict[int, MemoryStore] = {}
        self.cache_id = ""
        self._stack = stack

    async def start(self, node_id: int, stack: AsyncExitStack | None = None) -> BrokerNode:
        """Start a broker that the stack stops."""
        storage = self.storages.setdefault(node_id, Storage())
        storage.store = self.sessions[node_id] = self.tree.open_session(TIMEOUT_MS)
        running = running_parts({"broker.node_id": node_id}, storage, cache_id=self.cache_id)
        return await (stack or self._stack).enter_async_context(running)

    def expire(self, node_id: int) -> None:
        self.sessions[node_id].cut()
        self.sessions[node_id].expire()


@pytest.fixture
async def brokers() -> AsyncIterator[Brokers]:
    async with AsyncExitStack() as stack:
        yield Brokers(stack)


async def create(broker: BrokerNode, *replicas: NodeId) -> None:
    partition = PartitionImage(leader=replicas[0], leader_epoch=LeaderEpoch(0), replicas=replicas, isr=replicas)
    await propose(broker, topic_put(TopicImage(name="t", topic_id=TopicId(UUID(int=1)), partitions=(partition,))))


def held(broker: BrokerNode) -> Partition:
    return broker.partitions.table.find("t", 0)


def leads(partition: Partition) -> tuple[NodeId, LeaderEpoch, tuple[NodeId, ...]]:
    role = led(partition).role
    return role.leader, role.epoch, role.isr


async def settled(*brokers: BrokerNode) -> None:
    """Wait until all brokers have applied the newest image."""
    newest = max(broker.metadata.image.seq for broker in brokers)
    await until(lambda: all(broker.metadata.image.seq >= newest for broker in brokers))
    for broker in brokers:
        await broker.metadata.applied.settled(newest)


async def test_partition_is_led_by_one_of_two_brokers(brokers: Brokers) -> None:
    first, second = await brokers.start(1), await brokers.start(2)
    await create(first, TWO, ONE)
    await settled(first, second)
    assert held(first).term.role == Follower(leader=TWO, epoch=LeaderEpoch(0), has_all_committed=True)
    assert leads(held(second)) == (TWO, 0, (TWO, ONE))


async def test_broker_resigns_at_once_when_its_session_ends(brokers: Brokers) -> None:
    first, second = await brokers.start(1), await brokers.start(2)
    await create(first, TWO, ONE)
    await settled(first, second)
    brokers.expire(2)
    assert held(second).term.role == Follower(leader=None, epoch=LeaderEpoch(0))
    await until(lambda: held(first).leader_term is not None)
    assert leads(held(first)) == (ONE, 1, (ONE,))
    brokers.sessions[2].reconnect()
    await until(lambda: held(second).term.role == Follower(leader=ONE, epoch=LeaderEpoch(1)))


async def test_broker_leads_again_in_a_higher_epoch_what_only_it_holds(brokers: Brokers) -> None:
    first, second = await brokers.start(1), await brokers.start(2)
    await create(first, TWO)
    await settled(first, second)
    brokers.expire(2)
    brokers.sessions[2].reconnect()
    await until(lambda: held(second).leader_term is not None)
    assert leads(held(second)) == (TWO, 2, (TWO,))


async def test_lost_connection_changes_no_role(brokers: Brokers) -> None:
    first, second = await brokers.start(1), await brokers.start(2)
    await create(first, TWO, ONE)
    await settled(first, second)
    brokers.sessions[2].cut()
    assert held(second).leader_term is not None
    brokers.sessions[2].reconnect()
    await settled(first, second)
    assert leads(held(second)) == (TWO, 0, (TWO, ONE))


async def test_broker_that_stops_hands_its_leaderships_over(brokers: Brokers) -> None:
    first = await brokers.start(1)
    async with AsyncExitStack() as stack:
        second = await brokers.start(2, stack)
        await create(first, TWO, ONE)
        await settled(first, second)
        await second.finish_requests()
        await until(lambda: held(first).leader_term is not None)
        assert leads(held(first)) == (ONE, 1, (ONE,))
        assert first.metadata.image.brokers[TWO].is_stopping
        assert not first.metadata.image.brokers[TWO].is_fenced
    await until(lambda: first.metadata.image.brokers[TWO].is_fenced)
    again = await brokers.start(2)
    await settled(first, again)
    assert held(again).term.role == Follower(leader=ONE, epoch=LeaderEpoch(1))
    assert not first.metadata.image.brokers[TWO].is_stopping


async def test_broker_stops_though_the_store_is_away(brokers: Brokers) -> None:
    first = await brokers.start(1)
    async with AsyncExitStack() as stack:
        await create(first, ONE)
        second = await brokers.start(2, stack)
        brokers.sessions[2].cut()
        assert second.metadata.session.may_lead(second.metadata.image)
    brokers.sessions[2].reconnect()


def facts(storage: Storage) -> DirectoryFacts:
    found = decode_facts(read_checked(storage.disk, NAME))
    assert found is not None
    return found


async def test_data_directory_keeps_its_id_and_knows_its_incarnations(brokers: Brokers) -> None:
    known: tuple[str, ...] = ()
    for _ in range(3):
        async with AsyncExitStack() as stack:
            broker = await brokers.start(1, stack)
            disk, registered = brokers.storages[1].disk, broker.metadata.image.brokers[ONE]
            known = (*known[-1:], registered.incarnation)
            assert facts(brokers.storages[1]).incarnations == known
            assert registered.data_id == disk.read(DATA_ID).decode()


async def test_damaged_data_id_counts_as_that_of_another_directory(brokers: Brokers) -> None:
    async with AsyncExitStack() as stack:
        await create(await brokers.start(1, stack), ONE)
    disk = brokers.storages[1].disk
    before = disk.read(DATA_ID)
    disk.flip(DATA_ID, 0, 7)
    again = await brokers.start(1)
    assert again.metadata.image.brokers[ONE].data_id not in ("", before.decode())


@pytest.mark.parametrize("is_clean", [True, False])
async def test_stop_that_leaves_a_log_unsealed_is_not_clean(brokers: Brokers, is_clean: bool) -> None:
    brokers.cache_id = "cache"
    async with AsyncExitStack() as stack:
        broker = await brokers.start(1, stack)
        await create(broker, ONE)
        assert not facts(brokers.storages[1]).is_clean
        if not is_clean:
            held(broker).go_offline(StorageFailure("the disk is broken"))
    assert facts(brokers.storages[1]).is_clean == is_clean


async def test_data_directory_of_another_broker_is_refused(brokers: Brokers) -> None:
    """Otherwise the broker would set aside the directories of all partitions."""
    async with AsyncExitStack() as stack:
        await create(await brokers.start(1, stack), ONE)
    brokers.storages[2] = brokers.storages[1]
    with pytest.raises(StartupError, match="and the data directory belongs to broker 1: start with --node-id 1"):
        await brokers.start(2)
    assert brokers.storages[1].disk.list("logs") == ["t-0"]


async def test_embedded_broker_writes_nothing_before_it_has_a_partition(storage: Storage) -> None:
    for _ in range(2):
        async with running_parts({}, storage):
            assert not storage.disk.exists(DATA_ID)
        assert not storage.disk.exists(NAME)
