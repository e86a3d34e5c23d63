"""A full disk, and the work that resumes once the disk has space again."""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from conveyor.broker.broker_node import BrokerNode
from conveyor.broker.produce.outgoing_message import OutgoingMessage, PublishedMessage
from conveyor.cluster.topic_change import ConfigChange, Operation
from conveyor.cluster.topic_creation import TopicRequest
from conveyor.groups.group_commands import CommitOffsets, FetchOffsets, OffsetToCommit
from conveyor.groups.replies import FetchedOffsets
from conveyor.kernel.coordinator_partition import partition_for_key
from conveyor.kernel.errors import DiskFull, ErrorKind, OutOfFiles, RequestError, StorageFailure
from conveyor.kernel.ids import TopicPartition
from conveyor.log.segments.offset_file import LOG_START, read_offset
from conveyor.queues.subscription.policy import StartPosition
from conveyor.records.message_attributes import DELAY_MS
from conveyor.replication.reads import read_available
from conveyor.replication.replica_facts import NAME
from tests.callers import CALLER, answer_of
from tests.unit.broker.parts import LosesAll, Storage, publish, running_parts

EARLIEST = StartPosition(kind="earliest")
SIZE_BYTES = 4 << 20


@pytest.fixture
def small(storage: Storage) -> Storage:
    storage.disk.faults.free_bytes = storage.disk.faults.total_bytes = SIZE_BYTES
    return storage


@pytest.fixture
async def broker(small: Storage) -> AsyncIterator[BrokerNode]:
    """A broker on a small disk, with one topic, `t`, of one partition."""
    async with running_parts(storage=small) as running:
        await running.topics.create(CALLER, TopicRequest(name="t"))
        yield running


def fill(storage: Storage, but_bytes: int = 0) -> None:
    storage.disk.remove("filler")
    storage.disk.allocate("filler", (storage.disk.faults.free_bytes or 0) - but_bytes)


def free(storage: Storage) -> None:
    storage.disk.remove("filler")


async def until(storage: Storage, seen: Callable[[], bool]) -> None:
    """Advance the time until a condition holds."""
    while not seen():
        storage.clock.advance(ms=1)
        await asyncio.sleep(0)


def is_online(broker: BrokerNode, topic: str = "t") -> Callable[[], bool]:
    return lambda: broker.partitions.table.offline_reason(topic, 0) is None


async def refused(broker: BrokerNode, topic: str = "t") -> ErrorKind | None:
    [result] = await publish(broker, (topic, 0))
    return None if result.error is None else result.error.kind


async def test_a_partition_that_met_a_full_disk_comes_back_without_a_restart(
    broker: BrokerNode, small: Storage
) -> None:
    assert await refused(broker) is None
    fill(small)
    assert await refused(broker) is ErrorKind.PARTITION_OFFLINE
    assert await refused(broker) is ErrorKind.DISK_FULL or not is_online(broker)()
    await until(small, is_online(broker))
    partition = broker.partitions.table.find("t", 0)
    assert (partition.term.high_watermark, read_available(partition, 0, 1 << 20, at_least_one=True) is not None) == (
        1,
        True,
    )
    assert await refused(broker) is ErrorKind.DISK_FULL
    free(small)
    await until(small, lambda: not broker.partitions.disk_room.is_low)
    assert await refused(broker) is None
    assert broker.partitions.table.find("t", 0).term.high_watermark == 2


async def test_everybody_who_waited_is_answered_before(broker: BrokerNode, small: Storage) -> None:
    fill(small)
    partition = broker.partitions.table.find("t", 0)
    results = await asyncio.gather(*(publish(broker, ("t", 0)) for _ in range(5)))
    assert {result.error.kind for [result] in results if result.error} == {ErrorKind.PARTITION_OFFLINE}
    await until(small, is_online(broker))
    assert broker.partitions.table.find("t", 0) is not partition


async def test_a_failed_sync_takes_a_restart_though_the_disk_was_full_too(broker: BrokerNode, small: Storage) -> None:
    """The data to sync may be lost although it can still be read."""
    await publish(broker, ("t", 0))
    partition = broker.partitions.table.find("t", 0)
    publishing = asyncio.ensure_future(publish(broker, ("t", 0)))
    await asyncio.sleep(0)
    partition.write()
    job = partition.begin_flush()
    assert job is not None
    partition.go_offline(DiskFull("no room"))
    partition.complete_flush(job, StorageFailure("sync failed"))
    [result] = await publishing
    assert result.error is not None
    assert broker.partitions.table.returning() == []


@pytest.mark.parametrize("failure", [DiskFull("no room"), OutOfFiles("too many open files")])
async def test_what_may_pass_is_tried_again(broker: BrokerNode, small: Storage, failure: StorageFailure) -> None:
    broker.partitions.table.find("t", 0).go_offline(failure)
    await until(small, is_online(broker))


async def test_what_does_not_pass_is_not(broker: BrokerNode, small: Storage) -> None:
    broker.partitions.table.find("t", 0).go_offline(StorageFailure("the disk is gone"))
    for _ in range(100):
        small.clock.advance(seconds=1)
        await asyncio.sleep(0)
    assert not is_online(broker)()


async def test_a_partition_is_not_opened_while_a_job_works_on_its_files(broker: BrokerNode, small: Storage) -> None:
    partition = broker.partitions.table.find("t", 0)
    with partition.offline.job():
        partition.go_offline(DiskFull("no room"))
        assert broker.partitions.table.returning() == []
    assert broker.partitions.table.returning() == [partition.identity]


async def test_a_trim_of_a_log_that_was_opened_again_is_not_carried_out(broker: BrokerNode, small: Storage) -> None:
    """The file that it would remove belongs to the new log."""
    await broker.topics.change_config(
        CALLER, "t", [ConfigChange(name="segment.bytes", operation=Operation.SET, value="1024")]
    )
    await publish(broker, *[("t", 0)] * 40)
    partition = broker.partitions.table.find("t", 0)
    deleting = [
        asyncio.ensure_future(broker.partitions.retention.delete_records(CALLER, "t", 0, offset, 1000))
        for offset in (10, 30)
    ]
    while not partition.offline._jobs_count:
        await broker.partitions.tick.end()
    partition.go_offline(DiskFull("no room"))
    assert await deleting[0] == 10
    with pytest.raises(RequestError, match="t-0 is offline: no room"):
        await deleting[1]
    await until(small, is_online(broker))
    log = broker.partitions.table.find("t", 0).log
    assert (log.log_start_offset, log.log_end_offset) == (10, 40)


async def test_a_partition_that_could_not_be_opened_comes_back(small: Storage) -> None:
    async with running_parts(storage=small) as broker:
        await broker.topics.create(CALLER, TopicRequest(name="t"))
        await publish(broker, ("t", 0))
    small.disk.remove(NAME)  # Otherwise the broker would not start.
    small.disk.faults.out_of_files = True
    async with running_parts(storage=small) as broker:
        assert "Too many open files" in str(broker.partitions.table.offline_reason("t", 0))
        small.disk.faults.out_of_files = False
        await until(small, is_online(broker))
        assert broker.partitions.table.find("t", 0).term.high_watermark == 1


async def test_retention_makes_room_when_the_disk_is_low(small: Storage) -> None:
    """Retention runs before its interval has passed."""
    settings = {"topics.segment_bytes": "10000", "topics.retention_bytes": "20000"}
    async with running_parts(settings, small) as broker:
        await broker.topics.create(CALLER, TopicRequest(name="t"))
        for _ in range(100):
            await broker.produce.messages.publish(CALLER, "t", [OutgoingMessage(bytes(1000))])
        log = broker.partitions.table.find("t", 0).log
        size_before = log.segments.size_bytes
        fill(small, but_bytes=1000)
        await until(small, lambda: broker.partitions.table.find("t", 0).log.log_start_offset > 0)
        assert broker.partitions.table.find("t", 0).log.segments.size_bytes < size_before // 2


async def test_retention_makes_room_as_soon_as_the_log_that_takes_it_is_reopened(small: Storage) -> None:
    """Soon after the first failure it stays offline for a second, and retention passes it over."""
    settings = {"topics.segment_bytes": "10000", "topics.retention_bytes": "20000"}
    async with running_parts(settings, small) as broker:
        await broker.topics.create(CALLER, TopicRequest(name="t"))
        for _ in range(100):
            await broker.produce.messages.publish(CALLER, "t", [OutgoingMessage(bytes(1000))])
        broker.partitions.table.find("t", 0).go_offline(OutOfFiles("too many open files"))
        await until(small, is_online(broker))
        fill(small, but_bytes=1000)
        broker.partitions.table.find("t", 0).go_offline(DiskFull("no room"))
        await until(small, lambda: broker.partitions.disk_room.is_low and is_online(broker)())
        online_ms = small.clock.steady_ms()
        await until(small, lambda: broker.partitions.table.find("t", 0).log.log_start_offset > 0)
        assert small.clock.steady_ms() - online_ms < 1000


async def test_a_log_is_trimmed_with_no_room_for_its_new_start_offset(broker: BrokerNode, small: Storage) -> None:
    await broker.topics.change_config(
        CALLER, "t", [ConfigChange(name="segment.bytes", operation=Operation.SET, value="1024")]
    )
    await publish(broker, *[("t", 0)] * 40)
    await broker.partitions.flusher.drain()
    small.disk.remove("reserve")
    fill(small)
    assert await broker.partitions.retention.delete_records(CALLER, "t", 0, 39, 1000) == 39
    assert read_offset(small.disk, "logs/t-0", LOG_START) == 39


async def test_groups_go_on_from_what_they_had_committed(broker: BrokerNode, small: Storage) -> None:
    await commit(broker, 5)
    number = partition_for_key("g", broker.settings.groups.offsets_partitions)
    broker.partitions.table.find("__consumer_offsets", number).go_offline(DiskFull("no room"))
    await until(small, lambda: not broker.partitions.table.offline())
    assert await committed(broker) == 5
    await commit(broker, 6)
    assert await committed(broker) == 6


async def test_leases_hold_though_the_messages_were_offline(broker: BrokerNode, small: Storage) -> None:
    await broker.queues.lifecycle.create(CALLER, "t", "s", EARLIEST, {})
    await publish(broker, ("t", 0), ("t", 0), ("t", 0))
    leases = await broker.queues.leases.lease(CALLER, "s", 2, 0, None)
    broker.partitions.table.find("t", 0).go_offline(OutOfFiles("no room"))
    assert await answer_of(broker.queues.settlements.ack, CALLER, "s", [leases[0].ack_id]) == [None]
    with pytest.raises(RequestError, match="t-0 is offline: no room"):
        await broker.queues.leases.lease(CALLER, "s", 1, 0, None)
    await until(small, is_online(broker))
    assert await answer_of(broker.queues.settlements.ack, CALLER, "s", [leases[1].ack_id]) == [None]
    assert [lease.message.offset for lease in await broker.queues.leases.lease(CALLER, "s", 10, 0, None)] == [2]
    await publish(broker, ("t", 0))
    assert [lease.message.offset for lease in await broker.queues.leases.lease(CALLER, "s", 10, 1000, None)] == [3]


async def test_a_queue_is_loaded_again_when_its_state_was_offline(broker: BrokerNode, small: Storage) -> None:
    await broker.queues.lifecycle.create(CALLER, "t", "s", EARLIEST, {})
    await publish(broker, ("t", 0), ("t", 0))
    [done, _] = await broker.queues.leases.lease(CALLER, "s", 2, 0, None)
    assert await answer_of(broker.queues.settlements.ack, CALLER, "s", [done.ack_id]) == [None]
    before = broker.coordinators.queues.find(TopicPartition("t", 0))
    broker.partitions.table.find("__queue_state.t", 0).go_offline(DiskFull("no room"))
    with pytest.raises(RequestError, match=r"__queue_state\.t-0 is offline: no room"):
        await broker.queues.leases.lease(CALLER, "s", 1, 0, None)
    await until(small, lambda: broker.coordinators.queues.find(TopicPartition("t", 0)) not in (None, before))
    await broker.queues.lifecycle.change(CALLER, "s", {"max_deliveries": 7})
    assert [lease.message.offset for lease in await broker.queues.leases.lease(CALLER, "s", 10, 0, None)] == [1]


async def create_delayed(broker: BrokerNode) -> None:
    await broker.topics.create(CALLER, TopicRequest(name="later", config={"delay.target": "t"}))


@pytest.mark.parametrize("side", ["t", "later", "__delay_state.later"])
async def test_what_waits_in_a_delayed_topic_is_forwarded_when_all_partitions_are_back(
    broker: BrokerNode, small: Storage, side: str
) -> None:
    await create_delayed(broker)
    message = OutgoingMessage(b"later", headers=((DELAY_MS, b"60000"),), partition=0)
    [sent] = await broker.produce.messages.publish(CALLER, "later", [message])
    assert isinstance(sent, PublishedMessage)
    broker.partitions.table.find(side, 0).go_offline(DiskFull("no room"))
    await until(small, lambda: not broker.partitions.table.offline())
    await until(small, lambda: broker.partitions.table.find("t", 0).term.high_watermark == 1)


async def test_nothing_is_forwarded_while_the_disk_is_low(broker: BrokerNode, small: Storage) -> None:
    await create_delayed(broker)
    message = OutgoingMessage(b"later", headers=((DELAY_MS, b"90000"),), partition=0)
    await broker.produce.messages.publish(CALLER, "later", [message])
    fill(small, but_bytes=100_000)
    await until(small, lambda: broker.partitions.disk_room.is_low)
    for _ in range(100):
        small.clock.advance(seconds=1)
        await broker.partitions.tick.end()
    assert broker.partitions.table.find("t", 0).log.log_end_offset == 0
    free(small)
    await until(small, lambda: broker.partitions.table.find("t", 0).term.high_watermark == 1)


async def test_a_leader_epoch_that_cannot_be_stored_is_raised_when_there_is_room(small: Storage) -> None:
    """Until then the partition refuses appends: a consumer may know records of the previous epoch that are lost."""
    async with running_parts(storage=small) as broker:
        await broker.topics.create(CALLER, TopicRequest(name="t"))
        await publish(broker, ("t", 0))
        crashed = small.disk.power_cut(LosesAll())
    after = Storage()
    after.disk, after.store = crashed, small.store
    crashed.faults.free_bytes = crashed.faults.total_bytes = SIZE_BYTES
    fill(after)
    after.store.is_full = True
    async with running_parts(storage=after) as broker:
        partition = broker.partitions.table.find("t", 0)
        assert (partition.term.epoch, partition.term.high_watermark) == (0, 1)
        free(after)
        await until(after, lambda: not broker.partitions.disk_room.is_low)
        assert await refused(broker) is ErrorKind.DISK_FULL
        after.store.is_full = False
        await until(after, lambda: partition.term.epoch == 1)
        assert (partition.term.epoch, broker.metadata.image.topics["t"].partitions[0].leader_epoch) == (1, 1)
        assert await refused(broker) is None


async def test_a_clean_stop_does_not_forget_a_leader_epoch_that_could_not_be_stored(small: Storage) -> None:
    async with running_parts(storage=small) as broker:
        await broker.topics.create(CALLER, TopicRequest(name="t"))
        await publish(broker, ("t", 0))
        crashed = small.disk.power_cut(LosesAll())
    after = Storage()
    after.disk, after.store = crashed, small.store
    after.store.is_full = True
    async with running_parts(storage=after) as broker:
        assert await refused(broker) is ErrorKind.DISK_FULL
    after.store.is_full = False
    async with running_parts(storage=after) as broker:
        assert broker.partitions.table.find("t", 0).term.epoch == 1
        assert await refused(broker) is None


async def test_metadata_that_finds_no_room_says_so_and_may_be_tried_again(broker: BrokerNode, small: Storage) -> None:
    small.store.is_full = True
    with pytest.raises(RequestError) as error:
        await broker.topics.create(CALLER, TopicRequest(name="other"))
    assert error.value.kind is ErrorKind.DISK_FULL
    with pytest.raises(RequestError) as error:
        await broker.coordinators.groups.find_coordinator(CALLER, "g")
    assert error.value.kind is ErrorKind.COORDINATOR_NOT_AVAILABLE


async def answer(broker: BrokerNode, command: CommitOffsets | FetchOffsets) -> object:
    """Return the coordinator's reply."""
    while True:
        answered: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        broker.coordinators.groups.submit(CALLER, command, answered.set_result)
        reply = await answered
        if not isinstance(reply, RequestError) or reply.kind is not ErrorKind.COORDINATOR_NOT_AVAILABLE:
            return reply


async def commit(broker: BrokerNode, offset: int) -> None:
    place = OffsetToCommit(topic="t", partition=0, offset=offset, leader_epoch=-1, metadata="")
    await answer(broker, CommitOffsets(group_id="g", generation_id=-1, member_id="", offsets=(place,)))


async def committed(broker: BrokerNode) -> int:
    reply = await answer(broker, FetchOffsets(group_id="g", partitions=(("t", 0),)))
    assert isinstance(reply, FetchedOffsets)
    return reply.offsets[0].offset


async def test_what_was_paused_for_a_moment_goes_on(storage: Storage) -> None:
    """The disk does not report its free space."""
    async with running_parts(storage=storage) as broker:
        await broker.topics.create(CALLER, TopicRequest(name="t"))
        await create_delayed(broker)
        await broker.topics.create(CALLER, TopicRequest(name="other"))
        await broker.produce.messages.publish(
            CALLER, "later", [OutgoingMessage(b"later", headers=((DELAY_MS, b"10"),))]
        )
        broker.partitions.table.find("other", 0).go_offline(DiskFull("no room"))
        storage.clock.advance(ms=20)
        assert broker.partitions.disk_room.is_low
        await until(storage, lambda: broker.partitions.table.find("t", 0).term.high_watermark == 1)
