"""Lookups by time wait for threads and leave some of them to other work. Only a leader answers with a result."""

import asyncio
from collections.abc import Sequence

import msgspec
import pytest

from conveyor.broker.broker_node import BrokerNode
from conveyor.broker.time_lookups import LOOKUPS_AT_ONCE, TimeLookups
from conveyor.kernel.access.caller import Caller
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.ids import LeaderEpoch, NodeId
from conveyor.queues.subscription.policy import StartPosition
from conveyor.records.record import Record, encode_batch
from conveyor.replication.partition import Partition
from conveyor.replication.roles import Follower
from tests.callers import CALLER
from tests.unit.broker.partitions.test_flusher import HeldThreads, turns
from tests.unit.broker.parts import NOW_MS, Storage, publish

COUNT = 3
OTHERS = [msgspec.structs.replace(CALLER, connection_id=number) for number in range(2, 5)]


@pytest.fixture
def threads() -> HeldThreads:
    return HeldThreads()


@pytest.fixture
def lookups(threads: HeldThreads) -> TimeLookups:
    return TimeLookups(threads)


@pytest.fixture
async def partition(broker: BrokerNode) -> Partition:
    """Return a partition with some records of one time."""
    await publish(broker, *[("t", 0)] * COUNT)
    return broker.partitions.table.find("t", 0)


def start(lookups: TimeLookups, partition: Partition, *callers: Caller) -> "Sequence[asyncio.Task[Record | None]]":
    return [asyncio.ensure_future(lookups.first(caller, partition, NOW_MS, COUNT)) for caller in callers]


async def refusal(lookup: "asyncio.Task[Record | None]") -> ErrorKind:
    """Return why a lookup is refused."""
    with pytest.raises(RequestError) as refused:
        await lookup
    return refused.value.kind


async def test_lookup_is_not_made_on_the_event_loop(
    lookups: TimeLookups, threads: HeldThreads, partition: Partition
) -> None:
    [first] = start(lookups, partition, CALLER)
    newest = asyncio.ensure_future(lookups.newest(OTHERS[0], partition, COUNT))
    await turns()
    assert not first.done()
    assert not newest.done()
    threads.run_all()
    for found in await first, await newest:
        assert found is not None
        assert (found.offset, found.timestamp_ms) == (0, NOW_MS)


async def test_caller_with_many_lookups_has_one_thread(
    lookups: TimeLookups, threads: HeldThreads, partition: Partition
) -> None:
    many = start(lookups, partition, *[CALLER] * 5)
    await turns()
    assert len(threads.held) == 1
    [other] = start(lookups, partition, OTHERS[0])
    await turns()
    assert len(threads.held) == 2
    threads.run_all()
    assert await other == await many[0]
    assert [lookup.done() for lookup in many] == [True] + [False] * 4
    while not many[-1].done():
        assert len(threads.held) <= 1
        threads.run_all()
        await turns()


async def test_callers_leave_threads_to_other_work(
    lookups: TimeLookups, threads: HeldThreads, partition: Partition
) -> None:
    started = start(lookups, partition, CALLER, *OTHERS)
    await turns()
    assert len(threads.held) == LOOKUPS_AT_ONCE < len(started)
    threads.run_all()
    await turns()
    threads.run_all()
    assert None not in await asyncio.gather(*started)


async def test_withdrawn_lookup_is_not_begun(lookups: TimeLookups, threads: HeldThreads, partition: Partition) -> None:
    first, second = start(lookups, partition, CALLER, CALLER)
    await turns()
    second.cancel()
    await turns()
    threads.run_all()
    await first
    await turns()
    assert not threads.held


async def test_thread_of_a_withdrawn_lookup_counts_until_it_ends(
    lookups: TimeLookups, threads: HeldThreads, partition: Partition
) -> None:
    for caller in (CALLER, *OTHERS):
        [lookup] = start(lookups, partition, caller)
        await turns()
        lookup.cancel()
        await turns()
    assert len(threads.held) == LOOKUPS_AT_ONCE
    [last] = start(lookups, partition, CALLER)
    threads.run_all()
    await turns()
    threads.run_all()
    assert await last is not None


async def test_record_that_is_deleted_meanwhile_is_not_found(
    lookups: TimeLookups, threads: HeldThreads, partition: Partition
) -> None:
    [lookup] = start(lookups, partition, CALLER)
    await turns()
    threads.run_all()  # Its result is on its way to the event loop.
    partition.log.start.trim(2).run()
    await turns()
    threads.run_all()
    found = await lookup
    assert found is not None
    assert found.offset == 2


@pytest.mark.parametrize("is_begun", [False, True])
async def test_leader_that_resigns_meanwhile_answers_that_it_does_not_lead(
    lookups: TimeLookups, threads: HeldThreads, partition: Partition, is_begun: bool
) -> None:
    [lookup] = start(lookups, partition, CALLER)
    await turns()
    if is_begun:
        threads.run_all()
    partition.assume(Follower(leader=NodeId(2), epoch=LeaderEpoch(partition.term.epoch + 1)))
    threads.run_all()
    assert await refusal(lookup) is ErrorKind.NOT_LEADER


async def test_partition_that_is_closed_meanwhile_takes_no_answer(
    lookups: TimeLookups, threads: HeldThreads, partition: Partition
) -> None:
    [lookup] = start(lookups, partition, CALLER)
    await turns()
    threads.run_all()
    partition.end("its topic was deleted")
    assert await refusal(lookup) is ErrorKind.PARTITION_OFFLINE


async def test_disk_that_fails_takes_the_partition_offline(
    broker: BrokerNode, storage: Storage, partition: Partition
) -> None:
    storage.disk.faults.fail("read")
    [lookup] = start(TimeLookups(broker._services.threads), partition, CALLER)
    assert await refusal(lookup) is ErrorKind.PARTITION_OFFLINE
    storage.disk.faults.heal()
    assert partition.offline.reason is not None


async def test_disk_that_fails_takes_the_partition_offline_though_the_caller_has_left(
    storage: Storage, lookups: TimeLookups, threads: HeldThreads, partition: Partition
) -> None:
    [lookup] = start(lookups, partition, CALLER)
    await turns()
    lookup.cancel()
    await turns()
    storage.disk.faults.fail("read")
    threads.run_all()
    await turns()
    storage.disk.faults.heal()
    assert partition.offline.reason is not None


@pytest.mark.parametrize(("late_ms", "first"), [(0, 0), (1, 1), (2, 2), (3, 3)])
async def test_subscription_begins_at_a_time_and_seeks_one(broker: BrokerNode, late_ms: int, first: int) -> None:
    """A time after all messages is their end."""
    batch = encode_batch([(NOW_MS + number, None, b"", ()) for number in range(3)])
    await publish(broker, ("t", 0), batch=batch)
    start = StartPosition(kind="timestamp", timestamp_ms=NOW_MS + late_ms)
    await broker.queues.lifecycle.create(CALLER, "t", "begins", start, {})
    await broker.queues.lifecycle.create(CALLER, "t", "seeks", StartPosition(kind="earliest"), {})
    await broker.queues.lifecycle.seek(CALLER, "seeks", start)
    for name in ("begins", "seeks"):
        peeked = await broker.queues.inspection.peek(CALLER, name, 10)
        assert [found.message.offset for found in peeked] == list(range(first, 3))
