"""Records are deleted by age and on request, and stay deleted."""

import asyncio
from threading import Event

import pytest

from conveyor.broker.broker_node import BrokerNode
from conveyor.cluster.topic_change import ConfigChange, Operation
from conveyor.cluster.topic_creation import TopicRequest
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.log.log_start import TrimJob
from tests.callers import CALLER
from tests.unit.broker.parts import Storage, publish, running_parts

SHORT = ConfigChange(name="retention.ms", operation=Operation.SET, value="1000")


async def test_retention_deletes_what_is_too_old(broker: BrokerNode, storage: Storage) -> None:
    await publish(broker, ("t", 0), ("t", 0))
    await broker.topics.change_config(CALLER, "t", [SHORT])
    storage.clock.advance(seconds=2)
    await broker.partitions.retention.run_once()
    await broker.partitions.flusher.drain()
    await broker.partitions.retention.run_once()
    log = broker.partitions.table.find("t", 0).log
    assert (log.log_start_offset, log.log_end_offset) == (2, 2)
    assert log.segments.size_bytes == 0


async def test_retention_looks_partitions_over_every_now_and_then(storage: Storage) -> None:
    async with running_parts({"broker.retention_check_ms": "1000", "topics.retention_ms": "1"}, storage) as broker:
        await broker.topics.create(CALLER, TopicRequest(name="t"))
        await publish(broker, ("t", 0))
        log = broker.partitions.table.find("t", 0).log
        while log.log_start_offset == 0:
            storage.clock.advance(seconds=1)
            await broker.partitions.tick.end()
            await broker.partitions.flusher.drain()


async def test_deleted_records_stay_deleted_after_a_restart(storage: Storage) -> None:
    async with running_parts(storage=storage) as broker:
        await broker.topics.create(CALLER, TopicRequest(name="t"))
        await publish(broker, ("t", 0), ("t", 0), ("t", 0))
        assert await broker.partitions.retention.delete_records(CALLER, "t", 0, 2, 1000) == 2
        assert not broker.partitions.table.find("t", 0).log.start.is_trimming
    async with running_parts(storage=storage) as broker:
        assert broker.partitions.table.find("t", 0).log.log_start_offset == 2


async def test_deletion_whose_client_has_gone_is_completed(broker: BrokerNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise this broker could not truncate the log as a follower any more."""
    await publish(broker, ("t", 0), ("t", 0), ("t", 0))
    log, released, run = broker.partitions.table.find("t", 0).log, Event(), TrimJob.run

    def held(job: TrimJob) -> None:
        assert released.wait(20)
        run(job)

    monkeypatch.setattr(TrimJob, "run", held)
    deletions = [
        asyncio.ensure_future(broker.partitions.retention.delete_records(CALLER, "t", 0, offset, 1000))
        for offset in (1, 2)
    ]
    while not log.start.is_trimming:
        await broker.partitions.tick.end()
    for deletion in deletions:
        deletion.cancel()
    await asyncio.wait(deletions)
    released.set()
    assert await broker.partitions.retention.delete_records(CALLER, "t", 0, 3, 1000) == 3
    assert not log.start.is_trimming


async def test_deletion_begins_after_the_earlier_ones_and_within_its_timeout(
    broker: BrokerNode, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    await publish(broker, ("t", 0), ("t", 0), ("t", 0))
    released, offsets, run = Event(), list[int](), TrimJob.run

    def held(job: TrimJob) -> None:
        assert released.wait(20)
        offsets.append(job.log_start_offset)
        run(job)

    monkeypatch.setattr(TrimJob, "run", held)
    wanted = ((2, 1_000), (1, 1_000), (2, 5_000), (3, 1_000), (3, 5_000), (3, 5_000))
    deletions = [
        asyncio.ensure_future(broker.partitions.retention.delete_records(CALLER, "t", 0, *each)) for each in wanted
    ]
    while not broker.partitions.table.find("t", 0).log.start.is_trimming:
        await broker.partitions.tick.end()
    storage.clock.advance(seconds=2)
    released.set()
    *others, late, _, _ = await asyncio.gather(*deletions, return_exceptions=True)
    assert others == [2, 2, 2]
    assert isinstance(late, RequestError)
    assert late.kind is ErrorKind.REQUEST_TIMED_OUT
    assert offsets == [2, 3]


@pytest.mark.parametrize(
    ("topic", "offset", "kind"),
    [
        ("t", 5, ErrorKind.OFFSET_OUT_OF_RANGE),
        ("t", -2, ErrorKind.OFFSET_OUT_OF_RANGE),
        ("nothing", 0, ErrorKind.UNKNOWN_TOPIC),
        ("__consumer_offsets", 0, ErrorKind.INVALID_TOPIC),
    ],
)
async def test_delete_records_refuses(broker: BrokerNode, topic: str, offset: int, kind: ErrorKind) -> None:
    with pytest.raises(RequestError) as refused:
        await broker.partitions.retention.delete_records(CALLER, topic, 0, offset, 1000)
    assert refused.value.kind is kind


async def test_delete_records_that_cannot_be_made_durable_takes_the_partition_offline(
    broker: BrokerNode, storage: Storage
) -> None:
    await publish(broker, ("t", 0))
    storage.disk.faults.fail("write_atomic")
    with pytest.raises(RequestError) as refused:
        await broker.partitions.retention.delete_records(CALLER, "t", 0, 1, 1000)
    assert refused.value.kind is ErrorKind.PARTITION_OFFLINE
    assert broker.partitions.table.offline_reason("t", 0) is not None
    storage.disk.faults.heal()
