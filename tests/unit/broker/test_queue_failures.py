"""Queues during failures: of a partition, a read, or a dead-letter topic that refuses messages."""

import asyncio
from collections.abc import Sequence

import pytest

from conveyor.broker.broker_node import BrokerNode
from conveyor.broker.coordinators.queue_partition import QueuePartition
from conveyor.broker.produce.outgoing_message import OutgoingMessage
from conveyor.cluster.topic_creation import TopicRequest
from conveyor.kernel.errors import ErrorKind, RequestError, StorageFailure
from conveyor.kernel.ids import TopicPartition
from conveyor.queues.subscription.policy import StartPosition
from tests.callers import CALLER, answer_of
from tests.unit.broker.parts import Storage, running_parts

EARLIEST = StartPosition(kind="earliest")
SMALL, LARGE = b"small", b"large" * 1000


async def publish(broker: BrokerNode, *payloads: bytes, partition: int = 0) -> None:
    await broker.produce.messages.publish(
        CALLER, "t", [OutgoingMessage(payload, partition=partition) for payload in payloads]
    )


async def leased(broker: BrokerNode, count: int = 10) -> list[str]:
    return [lease.message.message_id for lease in await broker.queues.leases.lease(CALLER, "s", count, 0, None)]


async def all_leased(broker: BrokerNode, count: int) -> list[str]:
    """Return leases until there are `count`: a queue that scans its log returns the messages found so far."""
    found: list[str] = []
    while len(found) < count:
        await asyncio.sleep(0)
        found += await leased(broker, count - len(found))
    return found


async def reject(broker: BrokerNode, message_ids: Sequence[str]) -> None:
    assert await answer_of(broker.queues.settlements.reject, CALLER, "s", message_ids, "no stock") == [None] * len(
        message_ids
    )


async def letters(broker: BrokerNode, topic: str, count: int) -> list[bytes | None]:
    """Return the payloads in a dead-letter topic once there are `count`."""
    found: list[bytes | None] = []
    while len(found) < count:
        await asyncio.sleep(0)
        if broker.partitions.table.get(topic, 0) is not None:
            found = [message.value for message in await broker.fetch.browser.browse(CALLER, topic, None, EARLIEST, 100)]
    return found


async def dead(broker: BrokerNode, storage: Storage, count: int) -> int:
    """Wait until there are `count` dead letters; moves are retried meanwhile."""
    found = 0
    while found < count:
        await asyncio.sleep(0)
        storage.clock.advance(seconds=31)
        found = (await broker.queues.statistics.stats(CALLER, "s")).dead
    return found


def queue_partition(broker: BrokerNode, number: int = 0) -> QueuePartition:
    found = broker.coordinators.queues.find(TopicPartition("t", number))
    assert found is not None
    return found


async def test_partition_that_is_offline_takes_no_leases_of_others_with_it(broker: BrokerNode) -> None:
    await broker.queues.lifecycle.create(CALLER, "t", "s", EARLIEST, {})
    await publish(broker, SMALL, SMALL, partition=0)
    await publish(broker, SMALL, partition=1)
    broker.partitions.table.find("__queue_state.t", 1).go_offline(StorageFailure("the disk is gone"))
    assert await leased(broker) == ["0-0", "0-1"]
    with pytest.raises(RequestError, match="offline"):
        await leased(broker)


async def test_lease_that_was_given_up_may_fail(broker: BrokerNode) -> None:
    await broker.queues.lifecycle.create(CALLER, "t", "s", EARLIEST, {"delivery": "at_most_once"})
    await publish(broker, SMALL)
    lease = asyncio.ensure_future(leased(broker))
    for _ in range(100):
        if not queue_partition(broker).machine.settled_offset():
            await asyncio.sleep(0)
    lease.cancel()
    broker.partitions.table.find("__queue_state.t", 0).go_offline(StorageFailure("the disk is gone"))
    with pytest.raises(asyncio.CancelledError):
        await lease


async def test_read_that_fails_is_told(storage: Storage) -> None:
    async with running_parts(storage=storage) as broker:
        await broker.topics.create(CALLER, TopicRequest(name="t"))
        await broker.queues.lifecycle.create(CALLER, "t", "s", EARLIEST, {})
        await publish(broker, SMALL)
    async with running_parts(storage=storage) as broker:
        await broker.queues.lifecycle.resume(CALLER, "s")
        storage.disk.faults.fail("read")
        assert (await broker.queues.statistics.stats(CALLER, "s")).unsettled == 1
        with pytest.raises(RequestError) as refused:
            await broker.queues.inspection.peek(CALLER, "s", 1)
        assert refused.value.kind is ErrorKind.PARTITION_OFFLINE
        storage.disk.faults.heal()


async def test_lease_that_cannot_read_its_messages_takes_them_offline(broker: BrokerNode, storage: Storage) -> None:
    await broker.queues.lifecycle.create(CALLER, "t", "s", EARLIEST, {})
    await publish(broker, SMALL, SMALL)
    assert len(await leased(broker, 1)) == 1
    queue_partition(broker).source.use(broker.partitions.table.find("t", 0).log)  # With an empty cache.
    storage.disk.faults.fail("read")
    with pytest.raises(RequestError, match="t-0 is offline") as refused:
        await leased(broker)
    assert refused.value.kind is ErrorKind.PARTITION_OFFLINE
    storage.disk.faults.heal()
    assert broker.partitions.table.find("t", 0).offline.reason is not None
    assert (await broker.queues.statistics.stats(CALLER, "s")).unsettled == 2


async def test_lease_that_needs_a_lost_index_is_refused_until_a_thread_has_rebuilt_it(storage: Storage) -> None:
    settings = {"topics.segment_bytes": 2_000, "topics.index_interval_bytes": 0}
    async with running_parts(settings, storage) as broker:
        await broker.topics.create(CALLER, TopicRequest(name="t"))
        await broker.queues.lifecycle.create(CALLER, "t", "s", EARLIEST, {})
        for _ in range(40):
            await publish(broker, SMALL)
        sealed = broker.partitions.table.find("t", 0).log.segments.all[:-1]
    for segment in sealed:
        storage.disk.remove(segment.files.path("index"))
    async with running_parts(settings, storage) as broker:
        await broker.queues.lifecycle.resume(CALLER, "s")
        found: list[str] = []
        refusals: list[RequestError] = []
        while len(found) < 40:
            await asyncio.sleep(0)
            try:
                found += await leased(broker, 1)
            except RequestError as error:
                refusals.append(error)
        assert sorted(found) == sorted(f"0-{offset}" for offset in range(40))
        assert {error.kind for error in refusals} == {ErrorKind.PARTITION_OFFLINE}
        assert broker.partitions.table.find("t", 0).offline.reason is None


async def test_letter_that_is_too_large_keeps_no_other_back(broker: BrokerNode, storage: Storage) -> None:
    await broker.topics.create(CALLER, TopicRequest(name="small", config={"max.message.bytes": "2000"}))
    await broker.queues.lifecycle.create(CALLER, "t", "s", EARLIEST, {"dead_letter_topic": "small"})
    await publish(broker, LARGE, *[SMALL] * 3)
    await reject(broker, await leased(broker))
    assert await dead(broker, storage, 3) == 3
    for _ in range(100):
        await asyncio.sleep(0)
        storage.clock.advance(seconds=31)
    assert await letters(broker, "small", 3) == [SMALL] * 3
    await broker.topics.replace_config(CALLER, "small", {"max.message.bytes": "20000"})
    assert await dead(broker, storage, 4) == 4
    assert await letters(broker, "small", 4) == [*[SMALL] * 3, LARGE]


async def test_dead_letter_topic_takes_what_its_topic_takes(broker: BrokerNode) -> None:
    await broker.queues.lifecycle.create(CALLER, "t", "s", EARLIEST, {})
    largest = bytes(broker.settings.topics.max_message_bytes - 200)
    await publish(broker, largest)
    await reject(broker, await leased(broker))
    assert await letters(broker, "t.dlq", 1) == [largest]


async def test_dead_letters_whose_copies_are_gone_are_delivered_again_or_given_up(
    broker: BrokerNode, storage: Storage
) -> None:
    await broker.queues.lifecycle.create(CALLER, "t", "s", EARLIEST, {})
    await publish(broker, *[SMALL] * 4)
    await reject(broker, await leased(broker))
    assert await dead(broker, storage, 4) == 4
    await broker.topics.delete(CALLER, "t.dlq")
    peeked = await broker.queues.dead_letters.peek(CALLER, "s", 10)
    assert (peeked.letters, peeked.without_copy) == ([], 4)
    assert await broker.queues.dead_letters.unknown(CALLER, "s", ["0-0", "0-4", "7-0", "x", "0-4"]) == [
        "0-4",
        "7-0",
        "x",
    ]
    assert await broker.queues.dead_letters.redrive.redrive(CALLER, "s", message_ids=["0-2"]) == 1
    assert await leased(broker) == ["0-2"]
    assert await broker.queues.dead_letters.redrive.drop(CALLER, "s", message_ids=["0-0"]) == 1
    assert await broker.queues.dead_letters.redrive.redrive(CALLER, "s") == 2
    assert await leased(broker) == ["0-1", "0-3"]
    assert (await broker.queues.statistics.stats(CALLER, "s")).dead == 0


async def test_look_at_large_messages_is_not_answered_without_bounds(broker: BrokerNode, storage: Storage) -> None:
    await broker.queues.lifecycle.create(CALLER, "t", "s", EARLIEST, {})
    large = bytes(1_000_000)
    await publish(broker, *[large] * 10)
    await publish(broker, large, partition=1)
    assert len(await broker.queues.inspection.peek(CALLER, "s", 1000)) == 9
    await reject(broker, await all_leased(broker, 11))
    assert await dead(broker, storage, 11) == 11
    peeked = await broker.queues.dead_letters.peek(CALLER, "s", 1000)
    assert (len(peeked.letters), peeked.without_copy) == (9, None)


async def test_subscription_is_deleted_though_a_partition_is_offline(broker: BrokerNode) -> None:
    await broker.queues.lifecycle.create(CALLER, "t", "s", EARLIEST, {})
    broker.partitions.table.find("__queue_state.t", 1).go_offline(StorageFailure("the disk is gone"))
    await broker.queues.lifecycle.delete(CALLER, "s")
    assert broker.cluster.subscriptions.all() == []
    assert broker.coordinators.queues.find(TopicPartition("t", 0)) is None


async def test_message_that_could_not_be_read_when_it_expired_expires_later(storage: Storage) -> None:
    async with running_parts(storage=storage) as broker:
        await broker.topics.create(CALLER, TopicRequest(name="t"))
        await broker.queues.lifecycle.create(CALLER, "t", "s", EARLIEST, {})
        message = OutgoingMessage(SMALL, partition=0, headers=(("conveyor-ttl-ms", b"5000"),))
        await broker.produce.messages.publish(CALLER, "t", [message])
        for _ in range(50):
            await asyncio.sleep(0)
        assert queue_partition(broker).machine.next_deadline_ms() is not None
        queue_partition(broker).source.use(broker.partitions.table.find("t", 0).log)  # With an empty cache.
        storage.disk.faults.fail("read")
        storage.clock.advance(seconds=6)
        assert (await broker.queues.statistics.stats(CALLER, "s")).unsettled == 1
        storage.disk.faults.heal()
        while (await broker.queues.statistics.stats(CALLER, "s")).unsettled:
            storage.clock.advance(seconds=1)
