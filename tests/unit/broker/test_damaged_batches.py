"""Bits of stored batches that have changed on the disk: no reader takes a batch for another one, or for none."""

import asyncio
from collections.abc import Callable
from typing import NamedTuple

import pytest

from conveyor.broker.broker_node import BrokerNode
from conveyor.broker.produce.outgoing_message import OutgoingMessage
from conveyor.cluster.topic_creation import TopicRequest
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.ids import TopicPartition
from conveyor.queues.subscription.policy import StartPosition
from conveyor.records import compression
from conveyor.records.batch import HEADER_BYTES, iterate_batches
from conveyor.records.message_attributes import DEDUP_ID, DELAY_MS
from conveyor.records.record import encode_batch
from conveyor.replication.partition import Partition
from tests.callers import CALLER, answer_of
from tests.unit.broker.parts import NOW_MS, Storage, publish, running_parts
from tests.unit.replication.parts import set_at_change

EARLIEST = StartPosition(kind="earliest")
QUEUE, LATER, DUE_LATER = "q", "later", 60_000
BATCHES, OF_A_BATCH = 40, 10
DAMAGED = 5


class Damage(NamedTuple):
    """A bit that changes in a batch that was compressed by a codec. place: returns its position and number, for a log's
    bytes and the bounds of the batch.
    """

    place: Callable[[bytes, int, int], tuple[int, int]]
    codec: int = compression.NONE


def length_beyond_the_slice(_: bytes, start: int, end: int) -> tuple[int, int]:
    """The batch seems to have two more megabytes, which the segment has, but no slice that is read at once."""
    return start + 9, 5


def length_of_nothing(content: bytes, start: int, end: int) -> tuple[int, int]:
    """The highest bit of the length that is set."""
    length = int.from_bytes(content[start + 8 : start + 12], "big")
    bit = length.bit_length() - 1
    return start + 11 - bit // 8, bit % 8


def number_of_records(_: bytes, start: int, end: int) -> tuple[int, int]:
    return start + HEADER_BYTES - 1, 0


def end_of_the_records(_: bytes, start: int, end: int) -> tuple[int, int]:
    return end - 12, 3


DAMAGES = [
    Damage(length_beyond_the_slice),
    Damage(length_of_nothing),
    Damage(number_of_records),
    *(Damage(end_of_the_records, codec) for codec in range(compression.ZSTD + 1)),
]


@pytest.fixture(params=DAMAGES, ids=lambda damage: f"{damage.place.__name__}-{damage.codec}")
def damage(request: pytest.FixtureRequest) -> Damage:
    found: Damage = request.param
    return found


async def fill(storage: Storage, damage: Damage, *subscriptions: str) -> None:
    """Create a queue and a delayed topic with the same batches of about 100 kB."""
    async with running_parts(storage=storage) as broker:
        await broker.topics.create(CALLER, TopicRequest(name=QUEUE, partitions=1))
        await broker.topics.create(CALLER, TopicRequest(name=LATER, config={"delay.target": QUEUE}))
        for subscription in subscriptions:
            await broker.queues.lifecycle.create(CALLER, QUEUE, subscription, EARLIEST, {})
        for topic, headers in ((QUEUE, ()), (LATER, ((DELAY_MS, b"%d" % DUE_LATER),))):
            for first in range(0, BATCHES * OF_A_BATCH, OF_A_BATCH):
                numbers = range(first, first + OF_A_BATCH)
                values = [b"%06d" % number + bytes(10_000) for number in numbers]
                batch = encode_batch([(NOW_MS, None, value, headers) for value in values], codec=damage.codec)
                (published,) = await publish(broker, (topic, 0), batch=batch)
                assert published.error is None


def harm(storage: Storage, topic: str, damage: Damage) -> None:
    path = f"logs/{topic}-0/{0:020}.log"
    content = storage.disk.read(path)
    start, header = list(iterate_batches(content))[DAMAGED]
    storage.disk.flip(path, *damage.place(content, start, start + header.size))


async def goes_offline(partition: Partition) -> None:
    while partition.offline.reason is None:
        changed = asyncio.Event()
        set_at_change(partition, changed)
        await changed.wait()


def partition_of(broker: BrokerNode, topic: str) -> Partition:
    return broker.partitions.table.find(topic, 0)


async def is_refused(broker: BrokerNode, subscription: str) -> bool:
    """Return whether the next messages are refused because their partition is offline."""
    await goes_offline(partition_of(broker, QUEUE))
    with pytest.raises(RequestError) as refused:
        await broker.queues.leases.lease(CALLER, subscription, 1_000, 0, None)
    return refused.value.kind is ErrorKind.PARTITION_OFFLINE


@pytest.mark.timeout(20)
async def test_queue_that_is_loaded_settles_no_message_behind_the_damage(storage: Storage, damage: Damage) -> None:
    await fill(storage, damage, "s")
    harm(storage, QUEUE, damage)
    async with running_parts(storage=storage) as broker:
        assert await is_refused(broker, "s")
        assert broker.coordinators.queues.find(TopicPartition(QUEUE, 0)) is None


@pytest.mark.timeout(20)
async def test_queue_that_runs_settles_no_message_behind_the_damage(storage: Storage, damage: Damage) -> None:
    await fill(storage, damage, "s")
    async with running_parts(storage=storage) as broker:
        await broker.coordinators.queues.load_topic(QUEUE)
        harm(storage, QUEUE, damage)
        await broker.queues.lifecycle.create(CALLER, QUEUE, "new", EARLIEST, {})
        assert await is_refused(broker, "new")
        queue = broker.coordinators.queues.find(TopicPartition(QUEUE, 0))
        assert queue is not None
        assert queue.machine.settled_offset() == 0


@pytest.mark.timeout(20)
async def test_delayed_topic_forgets_no_record_behind_the_damage(storage: Storage, damage: Damage) -> None:
    await fill(storage, damage)
    harm(storage, LATER, damage)
    async with running_parts(storage=storage) as broker:
        await goes_offline(partition_of(broker, LATER))
        storage.clock.advance(ms=DUE_LATER)
        for _ in range(100):
            await asyncio.sleep(0)
        assert partition_of(broker, QUEUE).log.log_end_offset <= (BATCHES + DAMAGED) * OF_A_BATCH


@pytest.mark.timeout(20)
async def test_browsing_ends_at_the_damage(storage: Storage, damage: Damage) -> None:
    await fill(storage, damage)
    harm(storage, QUEUE, damage)
    async with running_parts(storage=storage) as broker:
        found = await broker.fetch.browser.browse(CALLER, QUEUE, 0, 0, DAMAGED * OF_A_BATCH)
        assert len(found) == DAMAGED * OF_A_BATCH
        with pytest.raises(RequestError) as refused:
            await broker.fetch.browser.browse(CALLER, QUEUE, 0, len(found), 1_000)
        assert refused.value.kind is ErrorKind.PARTITION_OFFLINE


@pytest.mark.timeout(20)
async def test_message_with_an_id_is_refused_if_earlier_ids_cannot_be_read(storage: Storage, damage: Damage) -> None:
    await fill(storage, damage)
    harm(storage, QUEUE, damage)
    async with running_parts(storage=storage) as broker:
        message = OutgoingMessage(b"v", partition=0, headers=((DEDUP_ID, b"1"),))
        (refused,) = await broker.produce.messages.publish(CALLER, QUEUE, [message])
        assert isinstance(refused, RequestError)
        assert refused.kind is ErrorKind.PARTITION_OFFLINE
        assert partition_of(broker, QUEUE).offline.reason is not None


@pytest.mark.timeout(20)
async def test_length_that_hides_the_next_batch_settles_no_message(storage: Storage) -> None:
    """The batches have 2048 bytes each. A queue that goes on at the second one looks for it behind the first."""
    async with running_parts(storage=storage) as broker:
        await broker.topics.create(CALLER, TopicRequest(name=QUEUE, partitions=1))
        await broker.queues.lifecycle.create(CALLER, QUEUE, "s", EARLIEST, {})
        other_bytes = len(encode_batch([(NOW_MS, None, bytes(1_000), ())])) - 1_000
        for _ in range(4):
            await publish(broker, (QUEUE, 0), batch=encode_batch([(NOW_MS, None, bytes(2_048 - other_bytes), ())]))
        (lease,) = await broker.queues.leases.lease(CALLER, "s", 1, 0, None)
        assert await answer_of(broker.queues.settlements.ack, CALLER, "s", [lease.ack_id]) == [None]
    path = f"logs/{QUEUE}-0/{0:020}.log"
    storage.disk.flip(path, 10, 3)
    assert [header.base_offset for _, header in iterate_batches(storage.disk.read(path))] == [0, 2, 3]
    async with running_parts(storage=storage) as broker:
        assert await is_refused(broker, "s")
        assert partition_of(broker, QUEUE).offline.reason == f"logs/{QUEUE}-0 has no batch from offset 1 to 1"


@pytest.mark.timeout(20)
async def test_dead_letter_that_the_disk_has_changed_is_not_settled_without_its_copy(storage: Storage) -> None:
    async with running_parts(storage=storage) as broker:
        await broker.topics.create(CALLER, TopicRequest(name=QUEUE, partitions=1))
        await broker.queues.lifecycle.create(CALLER, QUEUE, "s", EARLIEST, {})
        await publish(broker, (QUEUE, 0), batch=encode_batch([(NOW_MS, None, b"value", ())], codec=compression.ZSTD))
        (lease,) = await broker.queues.leases.lease(CALLER, "s", 10, 0, None)
        queue = broker.coordinators.queues.find(TopicPartition(QUEUE, 0))
        assert queue is not None
        queue.source.use(queue.messages.log)  # With an empty cache.
        storage.disk.flip(f"logs/{QUEUE}-0/{0:020}.log", HEADER_BYTES + 5, 3)
        assert await answer_of(broker.queues.settlements.reject, CALLER, "s", [lease.ack_id], "no stock") == [None]
        await goes_offline(partition_of(broker, QUEUE))
        stats = await broker.queues.statistics.stats(CALLER, "s")
        assert (stats.unsettled, stats.dead) == (1, 0)
        assert broker.partitions.table.get(f"{QUEUE}.dlq", 0) is None
