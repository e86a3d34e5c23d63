"""Delayed topics: messages wait there and enter the target when they are due, beside those of its own producers."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

import pytest

from conveyor.broker.broker_node import BrokerNode
from conveyor.broker.produce.outgoing_message import OutgoingMessage, PublishedMessage
from conveyor.broker.produce.publisher import ACKS_ALL, Published
from conveyor.cluster.image import DELAY_STATE, companion
from conveyor.cluster.topic_creation import TopicRequest
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.queues.subscription.policy import StartPosition
from conveyor.records.batch import TRANSACTIONAL, read_header
from conveyor.records.checked_batch import own_batch
from conveyor.records.message import Message
from conveyor.records.message_attributes import DEDUP_ID, DELAY_MS, DELIVER_AT_MS
from conveyor.records.record import Header, encode_batch
from conveyor.records.transaction_marker import TransactionMarker
from conveyor.replication.partition import Partition
from conveyor.replication.transactions import append_marker
from tests.callers import CALLER
from tests.lying_batches import LIES
from tests.unit.broker.parts import NOW_MS, Storage, running_parts
from tests.unit.replication.parts import set_at_change

TARGET, DELAYED = "orders", "later"
STATE = companion(DELAY_STATE, DELAYED)


async def create(broker: BrokerNode, **target_config: str) -> None:
    await broker.topics.create(CALLER, TopicRequest(name=TARGET, partitions=1, config=target_config))
    await broker.topics.create(CALLER, TopicRequest(name=DELAYED, config={"delay.target": TARGET}))


@pytest.fixture
async def delaying(storage: Storage) -> AsyncIterator[BrokerNode]:
    """A broker with a delayed topic and its target."""
    async with running_parts(storage=storage) as running:
        await create(running)
        yield running


def after(delay_ms: int, value: bytes = b"later", *others: Header) -> OutgoingMessage:
    return OutgoingMessage(value=value, headers=((DELAY_MS, b"%d" % delay_ms), *others))


async def send(broker: BrokerNode, *messages: OutgoingMessage, topic: str = DELAYED) -> list[PublishedMessage]:
    published = await broker.produce.messages.publish(CALLER, topic, messages)
    assert all(isinstance(result, PublishedMessage) for result in published), published
    return [result for result in published if isinstance(result, PublishedMessage)]


async def send_batch(broker: BrokerNode, batch: bytes, topic: str = DELAYED) -> Published:
    done: asyncio.Future[Sequence[Published]] = asyncio.get_running_loop().create_future()
    broker.produce.publisher.publish(CALLER, [(topic, 0, batch)], ACKS_ALL, done.set_result)
    return (await done)[0]


def target(broker: BrokerNode) -> Partition:
    return broker.partitions.table.find(TARGET, 0)


def delayed(broker: BrokerNode) -> Partition:
    return broker.partitions.table.find(DELAYED, 0)


async def target_has(broker: BrokerNode, count: int) -> list[Message]:
    """Return the target's messages once there are `count`."""
    await reaches(target(broker), count)
    return await broker.fetch.browser.browse(CALLER, TARGET, 0, 0, 100)


async def values(broker: BrokerNode, count: int) -> list[bytes | None]:
    return [message.value for message in await target_has(broker, count)]


async def reaches(partition: Partition, offset: int) -> None:
    while partition.term.high_watermark < offset:
        risen = asyncio.Event()
        set_at_change(partition, risen)
        await asyncio.wait_for(risen.wait(), 20)


async def settled(broker: BrokerNode, storage: Storage) -> None:
    """The forwarder has stated that its last intent is carried out."""
    waiting = broker.coordinators.forwarders.find(delayed(broker).identity)
    assert waiting is not None
    for _ in range(1000):
        if waiting.machine.retain_from_offset() == delayed(broker).term.high_watermark:
            return
        storage.clock.advance(seconds=1)
        await broker.partitions.tick.end()
        await broker.partitions.flusher.drain()
    raise AssertionError("the last intent is not settled")


async def refusal_of_cancel(broker: BrokerNode, message_id: str) -> ErrorKind:
    with pytest.raises(RequestError) as refused:
        await broker.queues.delayed_messages.cancel(CALLER, DELAYED, message_id)
    return refused.value.kind


async def test_a_delayed_message_comes_into_the_target_when_it_is_due(delaying: BrokerNode, storage: Storage) -> None:
    await send(delaying, after(500), OutgoingMessage(value=b"now", key=b"k", headers=(("a", b"b"),)))
    (now,) = await target_has(delaying, 1)
    assert (now.value, now.key, now.headers, now.offset) == (b"now", b"k", (("a", b"b"),), 0)
    storage.clock.advance(ms=499)
    await delaying.partitions.tick.end()
    assert target(delaying).log.log_end_offset == 1
    storage.clock.advance(ms=1)
    _, later = await target_has(delaying, 2)
    assert (later.value, later.timestamp_ms, later.headers) == (b"later", NOW_MS, ((DELAY_MS, b"500"),))


async def test_the_target_has_producers_of_its_own(delaying: BrokerNode, storage: Storage) -> None:
    await send(delaying, after(500, b"1"), after(600, b"3"))
    await send(delaying, OutgoingMessage(value=b"0"), topic=TARGET)
    storage.clock.advance(ms=500)
    await target_has(delaying, 2)
    await send(delaying, OutgoingMessage(value=b"2"), topic=TARGET)
    storage.clock.advance(ms=100)
    assert await values(delaying, 4) == [b"0", b"1", b"2", b"3"]
    batches = delaying.partitions.table.find(TARGET, 0).log.producers.entries()
    assert len(batches.producer_ids) == 1, "the forwarder has one producer id"
    assert batches.producers[0].batches[-1].last_sequence == 1


async def test_a_delayed_topic_is_an_ordinary_topic(delaying: BrokerNode) -> None:
    published = await send_batch(delaying, encode_batch([(NOW_MS, None, b"x", ()), (NOW_MS, None, b"y", ())]))
    assert (published.error, published.base_offset) == (None, 0)
    (message,) = await send(delaying, after(500))
    assert (message.message_id, message.offset) == ("0-2", 2)
    found = await delaying.fetch.browser.get(CALLER, DELAYED, "0-2")
    assert (found.value, found.message_id, found.topic) == (b"later", "0-2", DELAYED)
    browsed = await delaying.fetch.browser.browse(CALLER, DELAYED, 0, 0, 100)
    assert [message.value for message in browsed] == [b"x", b"y", b"later"]
    batch = encode_batch([(NOW_MS, None, b"z", ())], producer_id=7, producer_epoch=0, base_sequence=0)
    assert [(await send_batch(delaying, batch)).base_offset for _ in range(2)] == [3, 3]


async def test_a_cancelled_message_never_comes_even_after_a_restart(storage: Storage) -> None:
    async with running_parts(storage=storage) as broker:
        await create(broker)
        await send(broker, after(500), after(600, b"kept"))
        await broker.queues.delayed_messages.cancel(CALLER, DELAYED, "0-0")
        await broker.queues.delayed_messages.cancel(CALLER, DELAYED, "0-0")
        assert (await broker.fetch.browser.get(CALLER, DELAYED, "0-0")).value == b"later"
    async with running_parts(storage=storage) as broker:
        storage.clock.advance(ms=1_000)
        assert await values(broker, 1) == [b"kept"]
        assert await refusal_of_cancel(broker, "0-1") is ErrorKind.MESSAGE_NOT_DELAYED


@pytest.mark.parametrize(
    ("message_id", "kind"),
    [
        ("0-7", ErrorKind.UNKNOWN_MESSAGE),
        ("9-0", ErrorKind.UNKNOWN_MESSAGE),
        ("0-i0", ErrorKind.UNKNOWN_MESSAGE),
        ("0-0", ErrorKind.MESSAGE_NOT_DELAYED),
    ],
)
async def test_cancelling_what_does_not_wait_is_refused(delaying: BrokerNode, message_id: str, kind: ErrorKind) -> None:
    await send(delaying, OutgoingMessage(value=b"now"))
    await target_has(delaying, 1)
    assert await refusal_of_cancel(delaying, message_id) is kind


async def test_messages_of_the_target_are_withheld_by_its_subscriptions(delaying: BrokerNode) -> None:
    """The delay of a message in the target itself is that of its queues; it is cancelled by its id there."""
    start = StartPosition(kind="earliest")
    await delaying.queues.lifecycle.create(CALLER, TARGET, "workers", start, {})
    await send(delaying, after(500), topic=TARGET)
    assert await delaying.queues.leases.lease(CALLER, "workers", 10, 0, None) == []
    await delaying.queues.delayed_messages.cancel(CALLER, TARGET, "0-0")


async def test_a_forwarded_message_is_not_withheld_again(delaying: BrokerNode, storage: Storage) -> None:
    await delaying.queues.lifecycle.create(CALLER, TARGET, "workers", StartPosition(kind="earliest"), {})
    await send(delaying, after(500))
    storage.clock.advance(ms=500)
    await target_has(delaying, 1)
    [lease] = await delaying.queues.leases.lease(CALLER, "workers", 10, 1_000, None)
    assert lease.message.value == b"later"


async def test_a_delayed_topic_has_no_subscriptions(delaying: BrokerNode) -> None:
    with pytest.raises(RequestError, match=r"subscribe to its target \(delay\.target\)") as refused:
        await delaying.queues.lifecycle.create(CALLER, DELAYED, "workers", StartPosition(kind="earliest"), {})
    assert refused.value.kind is ErrorKind.INVALID_SUBSCRIPTION


async def test_what_waits_survives_a_restart(storage: Storage) -> None:
    async with running_parts(storage=storage) as broker:
        await create(broker)
        await send(broker, after(900, b"c"), after(300, b"a"), after(600, b"b"))
    storage.clock.advance(ms=1_000)
    async with running_parts(storage=storage) as broker:
        assert await values(broker, 3) == [b"a", b"b", b"c"]


async def test_restarts_repeat_nothing_whatever_others_write_and_delete(storage: Storage) -> None:
    expected = []
    for number in range(5):
        async with running_parts(storage=storage) as broker:
            if not number:
                await create(broker)
            await send(broker, OutgoingMessage(value=b"%d" % number))
            await reaches(target(broker), 3 * number + 1)
            await send(broker, OutgoingMessage(value=b"x"), OutgoingMessage(value=b"y"), topic=TARGET)
            expected += [b"%d" % number, b"x", b"y"]
            if number == 2:
                await broker.partitions.retention.delete_records(CALLER, TARGET, 0, -1, 1_000)
                expected.clear()
    async with running_parts(storage=storage) as broker:
        await send(broker, OutgoingMessage(value=b"last"))
        await reaches(target(broker), 16)
        found = await broker.fetch.browser.browse(CALLER, TARGET, 0, 9, 100)
        assert [message.value for message in found] == [*expected, b"last"]


async def test_a_target_that_stamps_records_keeps_the_time_that_was_meant(storage: Storage) -> None:
    async with running_parts(storage=storage) as broker:
        await create(broker, **{"message.timestamp.type": "LogAppendTime"})
        await send(broker, after(500))
        storage.clock.advance(ms=700)
        (message,) = await target_has(broker, 1)
        assert message.headers == ((DELIVER_AT_MS, b"%d" % (NOW_MS + 500)),)
        assert message.timestamp_ms == NOW_MS + 700


async def test_records_that_the_target_would_refuse_now_are_forwarded(storage: Storage) -> None:
    """The limits of the target are checked when its own producers write to it."""
    async with running_parts(storage=storage) as broker:
        await create(broker, **{"cleanup.policy": "compact", "max.message.bytes": "200"})
        await send(broker, OutgoingMessage(value=b"x" * 500))
        assert await values(broker, 1) == [b"x" * 500]


async def test_a_dedup_id_is_known_in_the_delayed_topic(delaying: BrokerNode, storage: Storage) -> None:
    message = after(500, b"x", (DEDUP_ID, b"one"))
    first, second = await send(delaying, message), await send(delaying, message)
    assert (second[0].message_id, second[0].duplicate) == (first[0].message_id, True)
    storage.clock.advance(ms=500)
    await target_has(delaying, 1)
    assert (await send(delaying, message))[0].duplicate


async def test_a_delayed_topic_grows_with_its_target(delaying: BrokerNode, storage: Storage) -> None:
    await delaying.topics.add_partitions(CALLER, TARGET, 3, None)
    assert [len(delaying.topics.existing(name).partitions) for name in (DELAYED, STATE)] == [3, 3]
    await send(delaying, OutgoingMessage(value=b"x", partition=2, headers=((DELAY_MS, b"5s"),)))
    storage.clock.advance(seconds=5)
    await reaches(delaying.partitions.table.find(TARGET, 2), 1)


async def test_a_deleted_delayed_topic_takes_what_waits_with_it(delaying: BrokerNode, storage: Storage) -> None:
    await send(delaying, OutgoingMessage(value=b"first"), after(500))
    await target_has(delaying, 1)
    with pytest.raises(RequestError, match=r"delete the topics with delay\.target=orders first"):
        await delaying.topics.delete(CALLER, TARGET)
    await delaying.topics.delete(CALLER, DELAYED)
    assert STATE not in delaying.metadata.image.topics
    await delaying.topics.create(CALLER, TopicRequest(name=DELAYED, config={"delay.target": TARGET}))
    await send(delaying, OutgoingMessage(value=b"new"))
    storage.clock.advance(ms=1_000)
    assert await values(delaying, 2) == [b"first", b"new"]
    await delaying.topics.delete(CALLER, DELAYED)
    await delaying.topics.delete(CALLER, TARGET)
    await create(delaying)
    await send(delaying, OutgoingMessage(value=b"again"))
    assert await values(delaying, 1) == [b"again"]


async def test_whole_batches_keep_their_compression(delaying: BrokerNode) -> None:
    batch = encode_batch([(NOW_MS, None, b"x" * 50, ()) for _ in range(20)], codec=4)
    await send_batch(delaying, batch)
    assert len(await target_has(delaying, 20)) == 20
    assert target(delaying).log.segments.size_bytes == len(batch)


async def test_delays_of_a_large_compressed_batch_hold(delaying: BrokerNode, storage: Storage) -> None:
    delays = [b"%d" % (500 if number % 2 else 0) for number in range(10_000)]
    records = [(NOW_MS, None, b"%d" % number, ((DELAY_MS, delay),)) for number, delay in enumerate(delays)]
    await send_batch(delaying, encode_batch(records, codec=4))
    await reaches(target(delaying), 5_000)
    await delaying.partitions.tick.end()
    assert target(delaying).log.log_end_offset == 5_000
    storage.clock.advance(ms=500)
    await reaches(target(delaying), 10_000)


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
async def test_a_batch_that_cannot_be_read_goes_on_as_it_is(delaying: BrokerNode, lie: bytes) -> None:
    delayed(delaying).append(own_batch(lie), NOW_MS)
    await send_batch(delaying, encode_batch([(NOW_MS, None, b"z", ())]))
    await reaches(target(delaying), read_header(lie).last_offset_delta + 2)
    assert not delaying.partitions.table.offline()
    assert (await delaying.fetch.browser.browse(CALLER, TARGET, 0, 0, 100))[-1].value == b"z"


async def test_retention_keeps_segments_with_records_that_wait(delaying: BrokerNode, storage: Storage) -> None:
    waiting = delayed(delaying)
    waiting.log.use(replace(waiting.log.topic, segment_bytes=1024, retention_ms=1_000))
    await send(delaying, after(5_000_000, b"long"))
    for number in range(30):
        await send(delaying, OutgoingMessage(value=b"x" * 200 + b"%d" % number))
    await target_has(delaying, 30)
    await settled_up_to(delaying, storage, 0)
    await delaying.partitions.retention.run_once()
    assert waiting.log.log_start_offset == 0
    await delaying.queues.delayed_messages.cancel(CALLER, DELAYED, "0-0")
    storage.clock.advance(seconds=6_000)
    await settled(delaying, storage)
    await delaying.partitions.retention.run_once()
    assert waiting.log.log_start_offset == 31


async def settled_up_to(broker: BrokerNode, storage: Storage, offset: int) -> None:
    for _ in range(20):
        storage.clock.advance(seconds=1)
        await broker.partitions.tick.end()
        await broker.partitions.flusher.drain()
    waiting = broker.coordinators.forwarders.find(delayed(broker).identity)
    assert waiting is not None
    assert waiting.machine.retain_from_offset() == offset


async def test_policy_acknowledged_deletes_what_is_forwarded(delaying: BrokerNode, storage: Storage) -> None:
    waiting = delayed(delaying)
    waiting.log.use(replace(waiting.log.topic, segment_bytes=1024, cleanup_policy="acknowledged"))
    for number in range(30):
        await send(delaying, OutgoingMessage(value=b"x" * 200 + b"%d" % number))
    await target_has(delaying, 30)
    await settled(delaying, storage)
    await delaying.partitions.retention.run_once()
    assert waiting.log.log_start_offset >= 24
    assert waiting.log.segments.size_bytes < 2_000


async def test_nothing_is_deleted_while_the_forwarder_is_not_loaded(storage: Storage) -> None:
    async with running_parts(storage=storage) as broker:
        await create(broker)
        waiting = delayed(broker)
        waiting.log.use(replace(waiting.log.topic, segment_bytes=1024, retention_ms=1))
        for number in range(10):
            await send(broker, after(50_000, b"x" * 300 + b"%d" % number))
        broker.coordinators.forwarders.lost(waiting)
        storage.clock.advance(ms=10_000)
        await broker.partitions.retention.run_once()
        assert waiting.log.log_start_offset == 0


async def test_deleted_records_are_not_forwarded(delaying: BrokerNode, storage: Storage) -> None:
    await send(delaying, after(500, b"1"), after(500, b"2"))
    await delaying.partitions.retention.delete_records(CALLER, DELAYED, 0, 1, 1_000)
    await send(delaying, OutgoingMessage(value=b"3"))
    storage.clock.advance(ms=500)
    assert sorted(value or b"" for value in await values(delaying, 2)) == [b"2", b"3"]
    await delaying.partitions.retention.delete_records(CALLER, DELAYED, 0, -1, 1_000)
    await settled(delaying, storage)


async def test_state_is_trimmed(storage: Storage) -> None:
    async with running_parts(storage=storage) as broker:
        await create(broker)
        state = broker.partitions.table.find(STATE, 0)
        forwarder = await broker.coordinators.forwarders.loaded(delayed(broker))
        forwarder._trimming._least_bytes = 500
        await send(broker, after(5_000))
        for number in range(40):
            await send(broker, OutgoingMessage(value=b"%d" % number))
            await reaches(target(broker), number + 1)
        assert state.log.log_start_offset > 10
    storage.clock.advance(seconds=5)
    async with running_parts(storage=storage) as broker:
        assert await values(broker, 41) == [*(b"%d" % number for number in range(40)), b"later"]


async def test_a_delayed_topic_that_cannot_be_read_for_now_is_forwarded_later(
    delaying: BrokerNode, storage: Storage
) -> None:
    """The process runs out of file descriptors during a scan of new records."""
    await send(delaying, after(1))
    storage.clock.advance(ms=1)
    await target_has(delaying, 1)
    storage.disk.faults.out_of_files = True
    await send(delaying, OutgoingMessage(value=b"now"))
    assert delaying.partitions.table.offline() == {}
    storage.disk.faults.out_of_files = False
    storage.clock.advance(seconds=1)
    assert await values(delaying, 2) == [b"later", b"now"]


async def test_an_intent_that_cannot_be_read_for_now_is_carried_out_once(
    delaying: BrokerNode, storage: Storage
) -> None:
    """The process runs out of file descriptors in the middle of the intent."""
    await send(delaying, OutgoingMessage(value=b"now"))
    await target_has(delaying, 1)
    await send(delaying, *[after(1000, b"%d" % number) for number in range(50)])
    state = delaying.partitions.table.find(STATE, 0)
    intent_is_safe = state.log.log_end_offset + 1
    state.term.when_committed(intent_is_safe, lambda _: setattr(storage.disk.faults, "out_of_files", True))
    storage.clock.advance(ms=1000)
    while state.term.high_watermark < intent_is_safe:
        await delaying.partitions.tick.end()
    await delaying.partitions.flusher.drain()
    assert delaying.partitions.table.offline() == {}
    assert target(delaying).log.log_end_offset == 1
    storage.disk.faults.out_of_files = False
    storage.clock.advance(seconds=1)
    _, *found = await target_has(delaying, 51)
    assert [message.value for message in found] == [b"%d" % number for number in range(50)]


async def test_a_forwarder_that_cannot_be_loaded_for_now_is_loaded_later(storage: Storage) -> None:
    async with running_parts(storage=storage) as broker:
        await create(broker)
        await send(broker, after(1000))
    async with running_parts(storage=storage) as broker:
        storage.disk.faults.out_of_files = True
        broker.coordinators.forwarders.lost(delayed(broker))
        broker.coordinators.forwarders.gained(delayed(broker))
        assert await refusal_of_cancel(broker, "0-0") is ErrorKind.PARTITION_OFFLINE
        assert broker.partitions.table.offline() == {}
        storage.disk.faults.out_of_files = False
        storage.clock.advance(seconds=1)
        assert await values(broker, 1) == [b"later"]


async def test_a_producer_id_that_somebody_else_uses_in_the_target_is_replaced(
    delaying: BrokerNode, storage: Storage
) -> None:
    await send(delaying, OutgoingMessage(value=b"first"))
    await target_has(delaying, 1)
    [producer_id] = target(delaying).log.producers.entries().producer_ids
    stolen = encode_batch([(NOW_MS, None, b"stolen", ())], producer_id=producer_id, producer_epoch=1, base_sequence=0)
    assert (await send_batch(delaying, stolen, TARGET)).error is None
    await send(delaying, OutgoingMessage(value=b"second"))
    while target(delaying).term.high_watermark < 3:
        storage.clock.advance(seconds=1)
        await asyncio.sleep(0)
    assert await values(delaying, 3) == [b"first", b"stolen", b"second"]


async def test_the_rest_of_an_unreadable_batch_is_deleted_with_its_first_records(storage: Storage) -> None:
    async with running_parts(storage=storage) as broker:
        await create(broker)
        held = encode_batch(
            [(NOW_MS, None, b"t", ())], attributes=TRANSACTIONAL, producer_id=77, producer_epoch=0, base_sequence=0
        )
        delayed(broker).append(own_batch(held), NOW_MS)
        await send_batch(broker, LIES["zstd that does not unpack"])
        assert await broker.partitions.retention.delete_records(CALLER, DELAYED, 0, 2, 10_000) == 2
    async with running_parts(storage=storage) as broker:
        marker = TransactionMarker(producer_id=77, producer_epoch=0, coordinator_epoch=0, commits=True)
        append_marker(delayed(broker), marker, 1, NOW_MS)
        await send(broker, OutgoingMessage(value=b"after"))
        assert await values(broker, 1) == [b"after"]
        assert delayed(broker).offline.reason is None
