"""Records acknowledged under acks=1 are visible to the next reader, even on a slow disk."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from conveyor.broker.broker_node import BrokerNode
from conveyor.broker.partitions.own_writes import COMMIT_TIMEOUT_MS, is_behind, wait_for_commit, wait_for_commits
from conveyor.broker.partitions.retention import HIGH_WATERMARK
from conveyor.broker.produce.publisher import ACKS_LEADER
from conveyor.cluster.topic_creation import TopicRequest
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.queues.subscription.policy import StartPosition
from conveyor.replication.partition import Partition
from conveyor.replication.reads import read_available
from tests.callers import CALLER
from tests.unit.broker.held_disk import HeldDisk
from tests.unit.broker.parts import Storage, publish, running_parts
from tests.unit.replication.parts import led

EARLIEST = StartPosition(kind="earliest")


@pytest.fixture
def disk() -> HeldDisk:
    return HeldDisk()


@pytest.fixture
def storage(disk: HeldDisk) -> Storage:
    storage = Storage()
    storage.disk = disk
    return storage


@pytest.fixture
async def broker(storage: Storage, disk: HeldDisk) -> AsyncIterator[BrokerNode]:
    """A broker with a topic `t` of one partition and a subscription `q`."""
    async with running_parts(storage=storage) as running:
        await running.topics.create(CALLER, TopicRequest(name="t"))
        await running.queues.lifecycle.create(CALLER, "t", "q", EARLIEST, {})
        yield running
        disk.release()


@pytest.fixture
async def behind(broker: BrokerNode, disk: HeldDisk) -> Partition:
    """Append three records that are acknowledged and not committed."""
    disk.hold_syncs()
    await publish(broker, ("t", 0), ("t", 0), ("t", 0), acks=ACKS_LEADER)
    partition = broker.partitions.table.find("t", 0)
    assert is_behind(led(partition))
    return partition


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def peeked(broker: BrokerNode) -> int:
    return len(await broker.queues.inspection.peek(CALLER, "q", 10))


async def unsettled(broker: BrokerNode) -> int:
    return (await broker.queues.statistics.stats(CALLER, "q")).unsettled


async def browsed(broker: BrokerNode) -> int:
    return len(await broker.fetch.browser.browse(CALLER, "t", None, EARLIEST, 10))


async def got(broker: BrokerNode) -> int:
    return (await broker.fetch.browser.get(CALLER, "t", "0-2")).offset + 1


async def read(broker: BrokerNode) -> int:
    return len(await broker.fetch.browser.read(CALLER, "t", 0, 0, 10, 1 << 20))


async def purged(broker: BrokerNode) -> int:
    return await broker.queues.lifecycle.purge(CALLER, "q")


async def deleted(broker: BrokerNode) -> int:
    return await broker.partitions.retention.delete_records(CALLER, "t", 0, 3, 1000)


async def deleted_to_the_end(broker: BrokerNode) -> int:
    return await broker.partitions.retention.delete_records(CALLER, "t", 0, HIGH_WATERMARK, 1000)


async def sought(broker: BrokerNode) -> int:
    await broker.queues.lifecycle.seek(CALLER, "q", {0: 3})
    return 3 + await unsettled(broker)


async def begun_at_the_end(broker: BrokerNode) -> int:
    await broker.queues.lifecycle.create(CALLER, "t", "late", StartPosition(kind="latest"), {})
    return 3 + (await broker.queues.statistics.stats(CALLER, "late")).unsettled


READERS = [
    peeked, unsettled, browsed, got, read, purged, deleted, deleted_to_the_end, sought, begun_at_the_end,
]  # fmt: skip


@pytest.mark.parametrize("reader", READERS, ids=lambda each: each.__name__)
async def test_reader_waits_for_what_was_acknowledged(
    broker: BrokerNode, disk: HeldDisk, behind: Partition, reader: Callable[[BrokerNode], Awaitable[int]]
) -> None:
    reading = asyncio.ensure_future(reader(broker))
    for _ in range(20):
        await broker.partitions.tick.end()
    assert not reading.done()
    disk.release()
    assert await reading == 3


async def test_wait_ends_with_the_time(broker: BrokerNode, storage: Storage, behind: Partition) -> None:
    waiting = asyncio.ensure_future(wait_for_commits([behind], broker.clock))
    await broker.partitions.tick.end()
    storage.clock.advance(seconds=COMMIT_TIMEOUT_MS / 1000)
    with pytest.raises(RequestError) as late:
        await waiting
    assert late.value.kind is ErrorKind.REQUEST_TIMED_OUT
    with pytest.raises(RequestError):
        await wait_for_commit(behind, broker.clock, 0)


@pytest.mark.parametrize("by_seconds", [3600, -3600])
async def test_wait_is_as_long_as_before_when_the_wall_clock_is_set(
    broker: BrokerNode, storage: Storage, disk: HeldDisk, behind: Partition, by_seconds: int
) -> None:
    waiting = asyncio.ensure_future(wait_for_commits([behind], broker.clock))
    await broker.partitions.tick.end()
    storage.clock.set_wall_clock(by_seconds=by_seconds)
    storage.clock.advance(seconds=COMMIT_TIMEOUT_MS / 1000 - 1)
    await turns()
    is_early = waiting.done()
    storage.clock.advance(seconds=1)
    await turns()
    is_late = not waiting.done()
    waiting.cancel()
    with pytest.raises((RequestError, asyncio.CancelledError)):
        await waiting
    assert not is_early
    assert not is_late


async def test_wait_ends_with_the_partition(broker: BrokerNode, behind: Partition) -> None:
    waiting = asyncio.ensure_future(wait_for_commits([behind], broker.clock))
    await broker.partitions.tick.end()
    behind.end("its topic was deleted")
    with pytest.raises(RequestError, match="its topic was deleted"):
        await waiting


async def test_nothing_waits_for_what_nobody_was_promised(broker: BrokerNode, disk: HeldDisk) -> None:
    """With acks=all the answer comes later, and with acks=0 never, so a reader may miss the records."""
    disk.hold_syncs()
    await publish(broker, ("t", 0), acks=0)
    publishing = asyncio.ensure_future(publish(broker, ("t", 0)))
    await broker.partitions.tick.end()
    await broker.partitions.tick.end()
    assert broker.partitions.table.find("t", 0).log.written_offset == 2
    assert await unsettled(broker) == 0
    disk.release()
    await publishing


async def test_records_that_are_not_committed_are_no_reason_to_refuse_a_reader(
    broker: BrokerNode, disk: HeldDisk, behind: Partition
) -> None:
    assert read_available(behind, 3, 1 << 20, at_least_one=True) is None
    with pytest.raises(RequestError, match="offset 4 is outside"):
        read_available(behind, 4, 1 << 20, at_least_one=True)
    disk.release()
    await wait_for_commits([behind], broker.clock)
    assert read_available(behind, 2, 1 << 20, at_least_one=True) is not None
