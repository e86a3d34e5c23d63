"""Peek and statistics of many partitions share the event loop; metrics read no message."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from typing import TypeVar

import pytest

from conveyor.broker.broker_node import BrokerNode
from conveyor.cluster.topic_creation import TopicRequest
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.log.record_source import MessageSource
from conveyor.queues.subscription.policy import StartPosition
from conveyor.records.checked_batch import own_batch
from conveyor.records.message import Message
from tests.callers import CALLER
from tests.unit.broker.parts import Storage, running_parts
from tests.unit.log.test_record_source import batch, thinned

PARTITIONS = 60
KEPT = range(0, 1_000, 10)

Result = TypeVar("Result")


@pytest.fixture
async def broker(storage: Storage) -> AsyncIterator[BrokerNode]:
    """A broker with a topic `t` of many partitions, thinned out by compaction, and a subscription `s`."""
    async with running_parts(storage=storage) as running:
        await running.topics.create(CALLER, TopicRequest(name="t", partitions=PARTITIONS))
        await running.queues.lifecycle.create(CALLER, "t", "s", StartPosition(kind="earliest"), {})
        for number in range(PARTITIONS):
            partition = running.partitions.table.find("t", number)
            partition.append(own_batch(thinned(batch(1_000), KEPT)), 0)
        await running.partitions.flusher.drain()
        unsettled = 0
        while unsettled < 1_000 * PARTITIONS:
            unsettled = (await running.queues.statistics.stats(CALLER, "s")).unsettled
        yield running


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of offsets that were read in each turn of the event loop while `in_turns` waits."""
    counts = [0]
    get = MessageSource.get

    def read(self: MessageSource, offset: int) -> Message | None:
        counts[-1] += 1
        return get(self, offset)

    monkeypatch.setattr(MessageSource, "get", read)
    return counts


async def in_turns(reads: list[int], work: Awaitable[Result]) -> Result:
    """Wait for work, and count each turn for itself."""
    reads[:] = [0]
    task = asyncio.ensure_future(work)
    while not task.done():
        await asyncio.sleep(0)
        reads.append(0)
    return await task


async def test_peek_reads_in_slices(broker: BrokerNode, reads: list[int]) -> None:
    peeked = await in_turns(reads, broker.queues.inspection.peek(CALLER, "s", 1_000))
    expected = [(number, offset) for number in range(10) for offset in KEPT]
    assert [(found.message.partition, found.message.offset) for found in peeked] == expected
    assert max(reads) <= 500
    assert sum(reads) < 2_100


async def test_statistics_look_for_the_oldest_message_in_slices(broker: BrokerNode, reads: list[int]) -> None:
    stats = await in_turns(reads, broker.queues.statistics.stats(CALLER, "s"))
    assert stats.oldest_age_ms is not None
    assert (max(reads), sum(reads)) == (20, PARTITIONS)


async def test_metrics_read_no_message(broker: BrokerNode, reads: list[int]) -> None:
    [(_, counts, _)] = broker.queues.statistics.measures()
    assert counts.unsettled == 1_000 * PARTITIONS
    assert reads == [0]


async def test_peek_whose_partitions_are_closed_meanwhile_is_refused(broker: BrokerNode, reads: list[int]) -> None:
    peek = asyncio.ensure_future(broker.queues.inspection.peek(CALLER, "s", 1_000))
    await asyncio.sleep(0)
    assert sum(reads) > 0
    for partition in broker.coordinators.queues.of(broker.topics.existing("t").topic_id):
        partition.stop()
    with pytest.raises(RequestError) as refused:
        await peek
    assert refused.value.kind is ErrorKind.COORDINATOR_NOT_AVAILABLE
