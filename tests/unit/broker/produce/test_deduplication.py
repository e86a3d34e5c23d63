"""A message published twice is stored once: immediately, later, after a restart, through any door."""

import asyncio
from collections.abc import Sequence

import pytest

from conveyor.broker.broker_node import BrokerNode
from conveyor.broker.produce.outgoing_message import OutgoingMessage, PublishedMessage
from conveyor.broker.produce.publisher import ACKS_ALL, Published
from conveyor.cluster.topic_creation import TopicRequest
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.queues.subscription.policy import StartPosition
from conveyor.records.message_attributes import DEDUP_ID, DELAY_MS
from conveyor.records.record import encode_batch
from tests.callers import CALLER
from tests.unit.broker.parts import NOW_MS, Storage, running_parts

ONCE = TopicRequest(name="once", partitions=1, config={"dedup.enable": "true"})


def message(dedup_id: bytes, value: bytes = b"v") -> OutgoingMessage:
    return OutgoingMessage(value=value, headers=((DEDUP_ID, dedup_id),), partition=0)


async def put(broker: BrokerNode, *messages: OutgoingMessage, topic: str = "t") -> list[tuple[int, bool]]:
    """Publish messages. Returns (offset, duplicate) of each."""
    results = await broker.produce.messages.publish(CALLER, topic, messages)
    return [(result.offset, result.duplicate) for result in results if isinstance(result, PublishedMessage)]


async def produce(broker: BrokerNode, topic: str, *ids: bytes, now_ms: int = NOW_MS, **producer: int) -> Published:
    """Produce one batch, as a Kafka client does."""
    batch = encode_batch([(now_ms, None, b"v", ((DEDUP_ID, dedup_id),)) for dedup_id in ids], **producer)
    done: asyncio.Future[Sequence[Published]] = asyncio.get_running_loop().create_future()
    broker.produce.publisher.publish(CALLER, [(topic, 0, batch)], ACKS_ALL, done.set_result)
    return (await done)[0]


async def offsets(broker: BrokerNode, topic: str) -> list[int]:
    return [
        stored.offset
        for stored in await broker.fetch.browser.browse(CALLER, topic, 0, StartPosition(kind="earliest"), 100)
    ]


async def test_second_message_of_an_id_is_answered_with_the_first(broker: BrokerNode) -> None:
    assert await put(broker, message(b"a"), message(b"b")) == [(0, False), (1, False)]
    assert await put(broker, message(b"b"), message(b"a")) == [(1, True), (0, True)]
    assert await offsets(broker, "t") == [0, 1]


async def test_known_and_new_messages_may_come_together(broker: BrokerNode) -> None:
    await put(broker, message(b"a"))
    results = await put(broker, message(b"b"), message(b"a"), message(b"c"), message(b"b"))
    assert results == [(1, False), (0, True), (3, False), (1, True)]
    assert await offsets(broker, "t") == [0, 1, 3]
    assert await put(broker, message(b"d")) == [(5, False)]


async def test_message_that_was_left_out_is_not_found(broker: BrokerNode) -> None:
    await put(broker, message(b"a"), message(b"a"), message(b"b"))
    with pytest.raises(RequestError, match="left out as a duplicate") as refused:
        await broker.fetch.browser.get(CALLER, "t", "0-1")
    assert refused.value.kind is ErrorKind.UNKNOWN_MESSAGE


async def test_id_outlives_a_message_that_was_cancelled(broker: BrokerNode) -> None:
    delayed = OutgoingMessage(value=b"v", headers=((DELAY_MS, b"1h"), (DEDUP_ID, b"a")), partition=0)
    assert await put(broker, delayed) == [(0, False)]
    await broker.queues.delayed_messages.cancel(CALLER, "t", "0-0")
    assert await put(broker, message(b"a")) == [(0, True)]


async def test_readers_go_on_over_batches_of_which_nothing_was_left(broker: BrokerNode) -> None:
    await broker.topics.create(CALLER, ONCE)
    for number in range(4):
        await produce(broker, "once", b"a", producer_id=7, producer_epoch=0, base_sequence=number)
    await produce(broker, "once", b"b")
    browser = broker.fetch.browser
    assert [stored.offset for stored in await browser.browse(CALLER, "once", 0, 1, 1)] == [4]
    assert [stored.offset for stored in await browser.read(CALLER, "once", 0, 1, 1, 1 << 20)] == [4]


async def test_same_id_published_at_the_same_time_is_there_once(broker: BrokerNode) -> None:
    results = await asyncio.gather(*(put(broker, message(b"a")) for _ in range(5)))
    assert sorted(result for (result,) in results) == [(0, False), *[(0, True)] * 4]
    assert await offsets(broker, "t") == [0]


async def test_id_is_known_after_a_restart(storage: Storage) -> None:
    async with running_parts(storage=storage) as broker:
        await broker.topics.create(CALLER, TopicRequest(name="t", partitions=1))
        await put(broker, message(b"a"))
    storage.clock.advance(ms=299_999)
    async with running_parts(storage=storage) as broker:
        assert await put(broker, message(b"a")) == [(0, True)]


async def test_id_is_new_after_the_window(storage: Storage) -> None:
    async with running_parts(storage=storage) as broker:
        await broker.topics.create(CALLER, TopicRequest(name="t", partitions=1, config={"dedup.window.ms": "1000"}))
        await put(broker, message(b"a"))
        storage.clock.advance(ms=1000)
        assert await put(broker, message(b"a")) == [(1, False)]
    storage.clock.advance(ms=999)
    async with running_parts(storage=storage) as broker:
        assert await put(broker, message(b"a")) == [(1, True)]


async def test_record_of_a_clock_that_is_fast_ends_no_window(storage: Storage) -> None:
    async with running_parts(storage=storage) as broker:
        await broker.topics.create(CALLER, TopicRequest(name="t", partitions=1))
        await put(broker, message(b"a"))
        await produce(broker, "t", b"b", now_ms=NOW_MS + 600_000)
        await put(broker, message(b"c"))
        assert await put(broker, message(b"a")) == [(0, True)]
    async with running_parts(storage=storage) as broker:
        assert await put(broker, message(b"a")) == [(0, True)]
        storage.clock.advance(ms=300_000)
        assert await put(broker, message(b"b")) == [(3, False)]


async def test_ids_are_read_back_over_segments(storage: Storage) -> None:
    async with running_parts(storage=storage) as broker:
        await broker.topics.create(CALLER, TopicRequest(name="t", partitions=1, config={"segment.bytes": "1024"}))
        for number in range(30):
            await put(broker, message(b"%d" % number, bytes(100)))
        assert len(broker.partitions.table.find("t", 0).log.segments.all) > 3
    async with running_parts(storage=storage) as broker:
        results = await put(broker, *(message(b"%d" % number) for number in range(30)))
        assert results == [(number, True) for number in range(30)]


async def test_record_of_a_kafka_client_is_known_to_other_doors(broker: BrokerNode) -> None:
    await produce(broker, "t", b"a")
    assert await put(broker, message(b"a")) == [(0, True)]
    await produce(broker, "t", b"b")
    assert await put(broker, message(b"b")) == [(1, True)]


async def test_kafka_client_is_taken_at_its_word_unless_the_topic_says_otherwise(broker: BrokerNode) -> None:
    await put(broker, message(b"a"))
    result = await produce(broker, "t", b"a")
    assert (result.base_offset, result.duplicates) == (1, {})
    assert await put(broker, message(b"a")) == [(0, True)]


@pytest.fixture
async def once(broker: BrokerNode) -> BrokerNode:
    await broker.topics.create(CALLER, ONCE)
    return broker


async def test_topic_may_leave_out_duplicates_of_kafka_clients(once: BrokerNode) -> None:
    await produce(once, "once", b"a", b"b")
    mixed = await produce(once, "once", b"b", b"c")
    assert (mixed.base_offset, mixed.duplicates) == (2, {0: 1})
    repeated = await produce(once, "once", b"a", b"b")
    assert (repeated.base_offset, repeated.duplicates) == (0, {0: 0, 1: 1})
    assert await offsets(once, "once") == [0, 1, 3]


async def test_idempotent_producer_goes_on_after_duplicates(once: BrokerNode) -> None:
    producer = {"producer_id": 7, "producer_epoch": 0}
    await produce(once, "once", b"a", b"b", base_sequence=0, **producer)
    empty = await produce(once, "once", b"b", b"a", base_sequence=2, **producer)
    assert (empty.error, empty.base_offset) == (None, 2)
    after = await produce(once, "once", b"c", base_sequence=4, **producer)
    assert (after.error, after.base_offset) == (None, 4)
    assert await offsets(once, "once") == [0, 1, 4]


async def test_retry_of_an_idempotent_producer_is_answered_with_the_first_try(once: BrokerNode) -> None:
    for _ in range(2):
        result = await produce(once, "once", b"a", b"b", producer_id=7, producer_epoch=0, base_sequence=0)
        assert (result.error, result.base_offset) == (None, 0)
    assert await offsets(once, "once") == [0, 1]


async def test_gaps_are_kept_over_a_restart(storage: Storage) -> None:
    async with running_parts(storage=storage) as broker:
        await broker.topics.create(CALLER, ONCE)
        await produce(broker, "once", b"a")
        await produce(broker, "once", b"a", b"b", b"a", producer_id=7, producer_epoch=0, base_sequence=0)
        await produce(broker, "once", b"a", b"b", producer_id=7, producer_epoch=0, base_sequence=3)
    async with running_parts(storage=storage) as broker:
        assert await offsets(broker, "once") == [0, 2]
        result = await produce(broker, "once", b"c", producer_id=7, producer_epoch=0, base_sequence=5)
        assert (result.error, result.base_offset) == (None, 6)


async def test_damaged_batch_is_refused_as_ever(once: BrokerNode) -> None:
    batch = bytearray(encode_batch([(NOW_MS, None, b"v", ((DEDUP_ID, b"a"),))]))
    batch[-1] ^= 1
    done: asyncio.Future[Sequence[Published]] = asyncio.get_running_loop().create_future()
    once.produce.publisher.publish(CALLER, [("once", 0, batch)], ACKS_ALL, done.set_result)
    error = (await done)[0].error
    assert error is not None
    assert error.kind is ErrorKind.CORRUPT_BATCH


async def test_ids_that_cannot_be_read_back_fail_the_publish_only(storage: Storage) -> None:
    async with running_parts(storage=storage) as broker:
        await broker.topics.create(CALLER, TopicRequest(name="t", partitions=1))
        await put(broker, message(b"a"))
    async with running_parts(storage=storage) as broker:
        storage.disk.faults.fail("read")
        (result,) = await broker.produce.messages.publish(CALLER, "t", [message(b"a")])
        assert isinstance(result, RequestError)
        assert result.kind is ErrorKind.PARTITION_OFFLINE


async def test_log_append_time_counts_where_the_broker_stamps(storage: Storage) -> None:
    config = {"dedup.window.ms": "1000", "message.timestamp.type": "LogAppendTime", "dedup.enable": "true"}
    async with running_parts(storage=storage) as broker:
        await broker.topics.create(CALLER, TopicRequest(name="t", partitions=1, config=config))
        await produce(broker, "t", b"a", now_ms=5)
        assert (await produce(broker, "t", b"a", now_ms=5)).duplicates == {0: 0}
    async with running_parts(storage=storage) as broker:
        assert (await produce(broker, "t", b"a", now_ms=5)).duplicates == {0: 0}
        storage.clock.advance(ms=1000)
        assert (await produce(broker, "t", b"a", now_ms=5)).base_offset == 1
