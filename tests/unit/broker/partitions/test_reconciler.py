"""The partitions of a broker follow the cluster image, and the hosts learn which ones it leads."""

import asyncio
from dataclasses import replace
from uuid import uuid4

import msgspec
import pytest

from conveyor.broker.broker_node import BrokerNode
from conveyor.broker.partitions import reconciler
from conveyor.broker.partitions.reconciler import _is_older
from conveyor.cluster import metadata_log
from conveyor.cluster.changes import BrokerRegistered, TopicPut, partition_changed, topic_put
from conveyor.cluster.image import NO_LEADER, QUEUE_STATE, PartitionImage, companion
from conveyor.cluster.topic_creation import TopicRequest
from conveyor.kernel.errors import DiskFull, ErrorKind, NotLeader, RequestError, StorageFailure
from conveyor.kernel.ids import LeaderEpoch, NodeId, TopicId, TopicPartition
from conveyor.records.checked_batch import own_batch
from conveyor.replication.partition import Partition
from conveyor.replication.roles import Follower, Leader, Role
from conveyor.testing.memory_disk import MemoryDisk, MemoryFile
from tests.callers import CALLER
from tests.unit.broker.parts import BATCH, LosesAll, LosesNothing, Storage, propose, publish, running_parts

ME, OTHER = NodeId(1), NodeId(2)
OTHER_BROKER = BrokerRegistered(node_id=OTHER, host="other.example", port=9093)


def test_role_of_an_older_image_is_not_assumed() -> None:
    """An image may be applied late, because a disk hangs; the leader may have resigned since."""

    def leader(epoch: int, partition_epoch: int) -> Leader:
        return Leader(leader=ME, epoch=LeaderEpoch(epoch), isr=(ME,), partition_epoch=partition_epoch)

    resigned = Follower(leader=None, epoch=LeaderEpoch(5))
    assert _is_older(leader(5, 7), resigned, is_late=True)
    assert not _is_older(leader(5, 7), resigned, is_late=False), "a bug of the controller stops this broker"
    for is_late in (False, True):
        assert not _is_older(leader(6, 8), resigned, is_late=is_late)
        assert _is_older(leader(5, 6), leader(5, 7), is_late=is_late)
        assert not _is_older(leader(5, 7), leader(5, 7), is_late=is_late)
        assert not _is_older(resigned, leader(5, 7), is_late=is_late)
        assert _is_older(resigned, leader(6, 7), is_late=is_late)


class Listener:
    """Stores its notifications in order."""

    def __init__(self, broker: BrokerNode) -> None:
        self.changes: list[tuple[str, Partition]] = []
        broker.partitions.reconciler.leadership.listen(self)

    def gained(self, partition: Partition) -> None:
        assert partition.leader_term is not None
        self.changes.append(("gained", partition))

    def lost(self, partition: Partition) -> None:
        self.changes.append(("lost", partition))

    def news(self) -> list[str]:
        changes, self.changes = self.changes, []
        return [f"{what} {partition.identity}" for what, partition in changes]


def held_by(*replicas: NodeId, epoch: int = 1) -> PartitionImage:
    return PartitionImage(leader=replicas[0], leader_epoch=LeaderEpoch(epoch), replicas=replicas, isr=replicas)


def roles(partition: Partition) -> list[Role]:
    return [partition.term.role]


async def assign(broker: BrokerNode, topic: str, number: int, partition: PartitionImage) -> None:
    """Assign a partition to other brokers, or back to this one."""
    await propose(broker, OTHER_BROKER, partition_changed(topic, number, partition))


async def test_partition_that_another_broker_leads_is_followed(broker: BrokerNode) -> None:
    await publish(broker, ("t", 0))
    listener = Listener(broker)
    await assign(broker, "t", 0, held_by(OTHER, ME))
    partition = broker.partitions.table.find("t", 0)
    assert roles(partition) == [Follower(leader=OTHER, epoch=LeaderEpoch(1), has_all_committed=True)]
    assert listener.news() == ["lost t-0"]
    with pytest.raises(NotLeader):
        partition.leading()
    await assign(broker, "t", 0, held_by(ME, OTHER, epoch=2))
    assert broker.partitions.table.find("t", 0) is partition
    assert roles(partition) == [Leader(leader=ME, epoch=LeaderEpoch(2), isr=(ME, OTHER), replicas=(ME, OTHER))]
    assert listener.news() == ["gained t-0"]


async def test_partition_without_a_leader_has_none_to_name(broker: BrokerNode) -> None:
    await assign(broker, "t", 0, msgspec.structs.replace(held_by(ME, OTHER), leader=NO_LEADER))
    assert roles(broker.partitions.table.find("t", 0)) == [
        Follower(leader=None, epoch=LeaderEpoch(1), has_all_committed=True)
    ]


async def test_partition_that_only_others_hold_is_not_here(broker: BrokerNode, storage: Storage) -> None:
    await assign(broker, "t", 0, held_by(OTHER))
    await broker.partitions.reconciler.removed()
    assert storage.disk.list("logs") == ["t-1"]
    with pytest.raises(NotLeader) as refused:
        broker.partitions.table.find("t", 0)
    assert (refused.value.leader, refused.value.leader_epoch) == (2, 1)
    async with running_parts(storage=storage) as again:
        assert [str(partition.identity) for partition in again.partitions.table] == ["t-1"]
        assert again.partitions.table.offline() == {}


async def test_change_of_the_isr_is_no_change_of_leadership(broker: BrokerNode) -> None:
    listener = Listener(broker)
    shrunk = msgspec.structs.replace(held_by(ME, OTHER, epoch=0), isr=(ME,))
    await assign(broker, "t", 0, shrunk)
    leads = Leader(leader=ME, epoch=LeaderEpoch(0), isr=(ME,), replicas=(ME, OTHER))
    assert broker.partitions.table.find("t", 0).term.role == leads
    assert listener.news() == []


async def test_listeners_are_told_of_a_topic_and_its_companions_at_once(storage: Storage) -> None:
    async with running_parts(storage=storage) as broker:
        listener = Listener(broker)
        await broker.topics.create(CALLER, TopicRequest(name="d", partitions=2))
        assert listener.news() == ["gained d-0", "gained d-1"]
        await broker.topics.change_config(CALLER, "d", [])
        assert listener.news() == []
        await broker.topics.create(CALLER, TopicRequest(name="later", config={"delay.target": "d"}))
        assert listener.news() == ["gained later-0", "gained later-1"]
        await broker.topics.add_partitions(CALLER, "d", 3, None)
        assert sorted(listener.news()) == ["gained d-2", "gained later-2"]
        await broker.topics.ensure_companion(QUEUE_STATE, "d")
        assert listener.news() == ["gained d-0", "gained d-1", "gained d-2"]
        await broker.topics.delete(CALLER, "later")
        assert sorted(listener.news()) == ["lost later-0", "lost later-1", "lost later-2"]
        await broker.topics.delete(CALLER, "d")
        assert sorted(listener.news()) == ["lost d-0", "lost d-1", "lost d-2"]


async def test_topic_that_is_created_again_is_lost_and_then_gained(broker: BrokerNode) -> None:
    listener, first = Listener(broker), broker.partitions.table.find("t", 1)
    again = replace(broker.topics.existing("t"), topic_id=TopicId(uuid4()))
    await propose(broker, topic_put(again))
    second = broker.partitions.table.find("t", 1)
    assert [what for what, _ in listener.changes] == ["lost", "lost", "gained", "gained"]
    assert ("lost", first) in listener.changes
    assert ("gained", second) in listener.changes
    assert (first.offline.reason, second.offline.reason) == ("its topic was deleted", None)


@pytest.mark.parametrize("reopened", ["d", companion(QUEUE_STATE, "d")])
async def test_listeners_are_told_when_a_partition_or_its_companion_is_opened_again(
    storage: Storage, reopened: str
) -> None:
    async with running_parts(storage=storage) as broker:
        await broker.topics.create(CALLER, TopicRequest(name="d"))
        await broker.topics.ensure_companion(QUEUE_STATE, "d")
        await broker.topics.create(CALLER, TopicRequest(name="other"))
        listener, before = Listener(broker), broker.partitions.table.find(reopened, 0)
        before.go_offline(DiskFull("no room"))
        await broker.partitions.reconciler.reopen(TopicPartition(reopened, 0))
        assert broker.partitions.table.find(reopened, 0) is not before
        assert listener.changes == [("gained", broker.partitions.table.find("d", 0))]


async def test_partition_that_is_in_order_is_not_opened_again(broker: BrokerNode) -> None:
    before = broker.partitions.table.find("t", 0)
    await broker.partitions.reconciler.reopen(before.identity)
    await broker.partitions.reconciler.reopen(TopicPartition("gone", 0))
    assert broker.partitions.table.find("t", 0) is before


async def test_epoch_is_raised_in_one_change_before_the_partitions_are_led(storage: Storage) -> None:
    async with running_parts(storage=storage) as broker:
        for name in ("a", "b"):
            await broker.topics.create(CALLER, TopicRequest(name=name))
            await publish(broker, (name, 0))
        seq = broker.metadata.image.seq
        killed = storage.disk.power_cut(LosesNothing())
    storage.disk = killed
    async with running_parts(storage=storage) as broker:
        assert [broker.partitions.table.find(name, 0).term.epoch for name in ("a", "b")] == [1, 1]
        assert broker.metadata.image.seq == seq + 1


async def test_epochs_are_raised_in_as_many_changes_as_they_need(
    storage: Storage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The limits are scaled down: two partitions fit in an entry, and all do not."""
    names = [f"{uuid4().hex}{uuid4().hex}" for _ in range(5)]
    async with running_parts(storage=storage) as broker:
        for name in names:
            await broker.topics.create(CALLER, TopicRequest(name=name))
            await publish(broker, (name, 0))
        seq = broker.metadata.image.seq
        killed = storage.disk.power_cut(LosesNothing())
    storage.disk = killed
    monkeypatch.setattr(reconciler, "MOST_BUNDLES", 2)
    monkeypatch.setattr(metadata_log, "MAX_ENTRY_BYTES", 420)
    async with running_parts(storage=storage) as broker:
        assert [broker.partitions.table.find(name, 0).term.epoch for name in names] == [1] * 5
        assert broker.metadata.image.seq == seq + 3
    assert "leader epochs not stored" not in caplog.text


async def crash_and_fill_the_store(storage: Storage) -> None:
    """Cut the power of a broker that leads a partition, and leave its metadata no room for the next leader epoch."""
    async with running_parts(storage=storage) as broker:
        await broker.topics.create(CALLER, TopicRequest(name="t"))
        await publish(broker, ("t", 0))
        crashed = storage.disk.power_cut(LosesAll())
    storage.disk, storage.store.is_full = crashed, True


async def test_refusal_of_the_epochs_is_logged_once_in_a_while(
    storage: Storage, caplog: pytest.LogCaptureFixture
) -> None:
    await crash_and_fill_the_store(storage)
    async with running_parts(storage=storage) as broker:
        for _ in range(3):
            await broker.partitions.reconciler.raise_epochs()
        warnings = [record.message for record in caplog.records if record.levelname == "WARNING"]
        [warning] = [message for message in warnings if message.startswith("leader epochs not stored")]
        assert "partitions=1: read-only until they are; reason=" in warning


async def test_read_only_leader_gains_its_partition_when_its_epoch_is_stored(storage: Storage) -> None:
    await crash_and_fill_the_store(storage)
    async with running_parts(storage=storage) as broker:
        partition = broker.partitions.table.find("t", 0)
        assert roles(partition) == [
            Leader(leader=ME, epoch=LeaderEpoch(0), isr=(ME,), replicas=(ME,), is_read_only=True)
        ]
        with pytest.raises(RequestError) as refused:
            partition.append(own_batch(BATCH), 0)
        assert refused.value.kind is ErrorKind.DISK_FULL
        storage.store.is_full = False
        listener = Listener(broker)
        await broker.partitions.reconciler.raise_epochs()
        await broker.metadata.applied.settled(broker.metadata.image.seq)
        assert partition.term.role == Leader(
            leader=ME, epoch=LeaderEpoch(1), isr=(ME,), replicas=(ME,), partition_epoch=1
        )
        assert listener.changes == [("lost", partition), ("gained", partition)]


class BrokenDisk(MemoryDisk):
    """Fails to create files whose path begins with a prefix."""

    refused = "-"

    def open(self, path: str, *, create: bool = False) -> MemoryFile:
        if path.startswith(self.refused):
            raise StorageFailure("the disk is failing")
        return super().open(path, create=create)


async def test_partition_that_fails_to_open_leaves_the_others_served() -> None:
    storage = Storage()
    disk = storage.disk = BrokenDisk()
    disk.refused = "logs/t-1"
    async with running_parts(storage=storage) as broker:
        await broker.topics.create(CALLER, TopicRequest(name="t", partitions=3))
        assert broker.partitions.table.offline() == {"t-1": "the disk is failing"}
        assert [result.error for result in await publish(broker, ("t", 0), ("t", 2))] == [None, None]
        await broker.topics.create(CALLER, TopicRequest(name="next"))
        assert broker.partitions.table.find("next", 0).offline.reason is None


async def test_topic_of_two_changes_at_once_ends_as_the_last_one_says(broker: BrokerNode) -> None:
    """The reconciler takes the steps between two images once, even if several changes lie between them."""
    topic = broker.topics.existing("t")

    def changed(value: str) -> TopicPut:
        return topic_put(replace(topic, config={"segment.bytes": value}))

    await broker.metadata.propose(lambda _: [changed("1024")])
    image = await broker.metadata.propose(lambda _: [changed("2048")])
    await broker.metadata.applied.settled(image.seq)
    assert broker.partitions.table.find("t", 1).log.topic.segment_bytes == 2048


async def test_two_that_open_a_partition_again_open_it_once(broker: BrokerNode) -> None:
    """The other callers still wait for the result when one caller is cancelled."""
    partition = broker.partitions.table.find("t", 0)
    partition.go_offline(DiskFull("no room"))
    first, second = (asyncio.ensure_future(broker.partitions.reconciler.reopen(partition.identity)) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    await second
    assert broker.partitions.table.find("t", 0).offline.reason is None
    again = broker.partitions.table.find("t", 0)
    await broker.partitions.reconciler.reopen(partition.identity)
    assert broker.partitions.table.find("t", 0) is again
