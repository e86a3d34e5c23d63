"""Topics with delay.enable: messages wait in the inbox and enter the topic when they are due."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

import pytest

from conveyor.broker.broker_node import BrokerNode
from conveyor.broker.produce.outgoing_message import OutgoingMessage, PublishedMessage
from conveyor.broker.produce.publish import ACKS_ALL, Published
from conveyor.cluster.image import INBOX, companion
from conveyor.cluster.topic_change import ConfigChange, Operation
from conveyor.cluster.topic_creation import TopicRequest
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.records.batch import read_header
from conveyor.records.checked_batch import own_batch
from conveyor.records.message import Message
from conveyor.records.message_attributes import DEDUP_ID, DELAY_MS, DELIVER_AT_MS
from conveyor.records.record import Header, encode_batch
from tests.lying_batches import LIES
from tests.unit.broker.parts import NOW_MS, Storage, running_parts

DELAYED = TopicRequest(name="d", partitions=1, config={"delay.enable": "true"})


@pytest.fixture
async def delaying(storage: Storage) -> AsyncIterator[BrokerNode]:
    """A broker with one topic, `d`, which has an inbox."""
    async with running_parts(storage=storage) as running:
        await running.topics.create(DELAYED)
        yield running


def after(delay_ms: int, value: bytes = b"later", *others: Header) -> OutgoingMessage:
    return OutgoingMessage(value=value, headers=((DELAY_MS, b"%d" % delay_ms), *others))


async def send(broker: BrokerNode, *messages: OutgoingMessage) -> list[PublishedMessage]:
    published = await broker.message_publisher.publish("d", messages)
    assert all(isinstance(result, PublishedMessage) for result in published), published
    return [result for result in published if isinstance(result, PublishedMessage)]


async def send_batch(broker: BrokerNode, batch: bytes) -> Published:
    done: asyncio.Future[Sequence[Published]] = asyncio.get_running_loop().create_future()
    broker.publisher.publish([("d", 0, batch)], ACKS_ALL, done.set_result)
    return (await done)[0]


async def topic_has(broker: BrokerNode, count: int) -> list[Message]:
    """Return the topic's messages once there are `count`."""
    await topic_reaches(broker, count)
    return await broker.message_browser.browse("d", 0, 0, 100)


async def topic_reaches(broker: BrokerNode, count: int) -> None:
    partition = broker.partitions.find("d", 0)
    while partition.high_watermark < count:
        risen = asyncio.Event()
        partition.watch(risen.set)
        await asyncio.wait_for(risen.wait(), 20)


async def set_delay(broker: BrokerNode, value: str) -> None:
    await broker.topics.change_config("d", [ConfigChange(name="delay.enable", operation=Operation.SET, value=value)])


async def test_a_delayed_message_comes_into_the_topic_when_it_is_due(delaying: BrokerNode, storage: Storage) -> None:
    await send(delaying, after(500), OutgoingMessage(value=b"now", key=b"k", headers=(("a", b"b"),)))
    (now,) = await topic_has(delaying, 1)
    assert (now.value, now.key, now.headers, now.offset) == (b"now", b"k", (("a", b"b"),), 0)
    storage.clock.advance(ms=499)
    await delaying.loop_tick.end()
    assert delaying.partitions.find("d", 0).log.log_end_offset == 1
    storage.clock.advance(ms=1)
    _, later = await topic_has(delaying, 2)
    assert (later.value, later.timestamp_ms, later.headers) == (b"later", NOW_MS, ((DELAY_MS, b"500"),))


async def test_a_batch_is_answered_without_an_offset(delaying: BrokerNode) -> None:
    published = await send_batch(delaying, encode_batch([(NOW_MS, None, b"x", ())]))
    assert (published.error, published.base_offset, published.inbox_offset) == (None, -1, 0)


async def test_a_waiting_message_is_found_by_its_id_until_it_is_due(delaying: BrokerNode, storage: Storage) -> None:
    (published,) = await send(delaying, after(500))
    assert (published.message_id, published.offset) == ("0-i0", -1)
    message = await delaying.message_inspection.get("d", "0-i0")
    assert (message.value, message.message_id, message.topic) == (b"later", "0-i0", "d")
    storage.clock.advance(ms=500)
    await topic_has(delaying, 1)
    with pytest.raises(RequestError, match="does not wait any more"):
        await delaying.message_inspection.get("d", "0-i0")


async def test_a_cancelled_message_never_comes_even_after_a_restart(storage: Storage) -> None:
    async with running_parts(storage=storage) as broker:
        await broker.topics.create(DELAYED)
        await send(broker, after(500), after(600, b"kept"))
        await broker.delayed_messages.cancel("d", "0-i0")
        with pytest.raises(RequestError, match="cancelled"):
            await broker.message_inspection.get("d", "0-i0")
    async with running_parts(storage=storage) as broker:
        storage.clock.advance(ms=1_000)
        assert [message.value for message in await topic_has(broker, 1)] == [b"kept"]
        with pytest.raises(RequestError) as refused:
            await broker.delayed_messages.cancel("d", "0-i1")
        assert refused.value.kind is ErrorKind.MESSAGE_NOT_DELAYED


@pytest.mark.parametrize("message_id", ["0-i7", "9-i0"])
async def test_cancelling_what_is_not_there_is_refused(delaying: BrokerNode, message_id: str) -> None:
    with pytest.raises(RequestError) as refused:
        await delaying.delayed_messages.cancel("d", message_id)
    assert refused.value.kind in (ErrorKind.UNKNOWN_MESSAGE, ErrorKind.UNKNOWN_TOPIC)


async def test_what_waits_survives_a_restart(storage: Storage) -> None:
    async with running_parts(storage=storage) as broker:
        await broker.topics.create(DELAYED)
        await send(broker, after(900, b"c"), after(300, b"a"), after(600, b"b"))
    storage.clock.advance(ms=1_000)
    async with running_parts(storage=storage) as broker:
        assert [message.value for message in await topic_has(broker, 3)] == [b"a", b"b", b"c"]


async def test_a_producer_that_repeats_itself_is_told_so_by_the_inbox(delaying: BrokerNode) -> None:
    batch = encode_batch([(NOW_MS, None, b"x", ())], producer_id=7, producer_epoch=0, base_sequence=0)
    assert [(await send_batch(delaying, batch)).inbox_offset for _ in range(2)] == [0, 0]
    assert len(await topic_has(delaying, 1)) == 1


async def test_turning_delay_on_keeps_the_sequences_of_producers(storage: Storage) -> None:
    before = encode_batch([(NOW_MS, None, b"1", ())], producer_id=7, producer_epoch=0, base_sequence=0)
    following = encode_batch([(NOW_MS, None, b"2", ())], producer_id=7, producer_epoch=0, base_sequence=1)
    async with running_parts(storage=storage) as broker:
        await broker.topics.create(TopicRequest(name="d", partitions=1))
        assert (await send_batch(broker, before)).base_offset == 0
        await set_delay(broker, "true")
        assert (await send_batch(broker, before)).base_offset == 0
        assert (await send_batch(broker, following)).base_offset == -1
        assert [message.value for message in await topic_has(broker, 2)] == [b"1", b"2"]


async def test_turning_delay_off_forwards_what_waits_when_it_is_due(delaying: BrokerNode, storage: Storage) -> None:
    await send(delaying, after(500))
    await set_delay(delaying, "false")
    (published,) = await send(delaying, after(700, b"at once"))
    assert [message.value for message in await topic_has(delaying, 1)] == [b"at once"]
    with pytest.raises(RequestError, match="due"):
        await delaying.delayed_messages.cancel("d", published.message_id)
    storage.clock.advance(ms=500)
    assert [message.value for message in await topic_has(delaying, 2)] == [b"at once", b"later"]


async def test_a_topic_that_stamps_records_keeps_the_time_that_was_meant(storage: Storage) -> None:
    async with running_parts(storage=storage) as broker:
        config = {"delay.enable": "true", "message.timestamp.type": "LogAppendTime"}
        await broker.topics.create(TopicRequest(name="d", partitions=1, config=config))
        await send(broker, after(500))
        storage.clock.advance(ms=700)
        (message,) = await topic_has(broker, 1)
        assert message.headers == ((DELIVER_AT_MS, b"%d" % (NOW_MS + 500)),)
        assert message.timestamp_ms == NOW_MS + 700


async def test_the_topics_own_rules_hold_at_produce(storage: Storage) -> None:
    async with running_parts(storage=storage) as broker:
        config = {"delay.enable": "true", "cleanup.policy": "compact", "max.message.bytes": "200"}
        await broker.topics.create(TopicRequest(name="d", partitions=1, config=config))
        keyless = await send_batch(broker, encode_batch([(NOW_MS, None, b"x", ())]))
        large = await send_batch(broker, encode_batch([(NOW_MS, b"k", b"x" * 200, ())]))
        kinds = [result.error and result.error.kind for result in (keyless, large)]
        assert kinds == [ErrorKind.INVALID_RECORD, ErrorKind.MESSAGE_TOO_LARGE]


async def test_a_dedup_id_is_known_while_its_message_waits_and_after(delaying: BrokerNode, storage: Storage) -> None:
    message = after(500, b"x", (DEDUP_ID, b"one"))
    first, second = await send(delaying, message), await send(delaying, message)
    assert (second[0].message_id, second[0].duplicate) == (first[0].message_id, True)
    storage.clock.advance(ms=500)
    await topic_has(delaying, 1)
    assert (await send(delaying, message))[0].duplicate


async def test_new_partitions_have_an_inbox_at_once(delaying: BrokerNode, storage: Storage) -> None:
    await delaying.topics.add_partitions("d", 3, None)
    assert len(delaying.topics.existing(companion(INBOX, "d")).partitions) == 3
    await delaying.message_publisher.publish(
        "d", [OutgoingMessage(value=b"x", partition=2, headers=((DELAY_MS, b"5s"),))]
    )
    assert (await delaying.message_inspection.get("d", "2-i0")).value == b"x"


async def test_deleting_a_topic_deletes_its_inbox(delaying: BrokerNode, storage: Storage) -> None:
    await send(delaying, after(500))
    await delaying.topics.delete("d")
    assert companion(INBOX, "d") not in delaying.metadata.image.topics
    await delaying.topics.create(DELAYED)
    await send(delaying, OutgoingMessage(value=b"new"))
    storage.clock.advance(ms=1_000)
    assert [message.value for message in await topic_has(delaying, 1)] == [b"new"]


async def test_whole_batches_keep_their_compression(delaying: BrokerNode) -> None:
    batch = encode_batch([(NOW_MS, None, b"x" * 50, ()) for _ in range(20)], codec=4)
    await send_batch(delaying, batch)
    assert len(await topic_has(delaying, 20)) == 20
    assert delaying.partitions.find("d", 0).log.size_bytes == len(batch)


async def test_a_batch_that_lies_of_its_delays_is_refused(delaying: BrokerNode) -> None:
    refused = (await send_batch(delaying, LIES["deltas 1 and 1"])).error
    assert refused is not None
    assert refused.kind is ErrorKind.INVALID_RECORD


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
async def test_a_batch_that_lies_in_the_inbox_already_goes_on_as_it_is(delaying: BrokerNode, lie: bytes) -> None:
    inbox = delaying.partitions.find(companion(INBOX, "d"), 0)
    inbox.append(own_batch(lie), NOW_MS)
    await send_batch(delaying, encode_batch([(NOW_MS, None, b"z", ())]))
    await topic_reaches(delaying, read_header(lie).last_offset_delta + 2)
    assert not delaying.partitions.offline()
    assert (await delaying.message_browser.browse("d", 0, 0, 100))[-1].value == b"z"


async def test_the_inbox_lets_go_of_what_was_forwarded(storage: Storage) -> None:
    async with running_parts(storage=storage) as broker:
        await broker.topics.create(DELAYED)
        inbox = broker.partitions.find(companion(INBOX, "d"), 0)
        inbox.log.topic = replace(inbox.log.topic, segment_bytes=1024)
        for number in range(30):
            await send(broker, OutgoingMessage(value=b"x" * 200 + b"%d" % number))
        await topic_has(broker, 30)
        for _ in range(3):
            storage.clock.advance(ms=300_000)
            await broker.retention.retain_all()
        assert inbox.log.log_start_offset > 30
        assert inbox.log.size_bytes < 2_000


async def test_a_topic_whose_name_leaves_no_room_for_an_inbox_is_refused(storage: Storage) -> None:
    async with running_parts(storage=storage) as broker:
        name = "d" * 249
        with pytest.raises(RequestError) as refused:
            await broker.topics.create(TopicRequest(name=name, config={"delay.enable": "true"}))
        assert refused.value.kind is ErrorKind.INVALID_TOPIC
        await broker.topics.create(TopicRequest(name=name))


async def test_an_inbox_that_cannot_be_read_for_now_is_forwarded_later(delaying: BrokerNode, storage: Storage) -> None:
    """The process runs out of file descriptors during a scan of new records."""
    await send(delaying, after(1))
    storage.clock.advance(ms=1)
    await topic_reaches(delaying, 1)
    storage.disk.out_of_files = True
    await send(delaying, OutgoingMessage(value=b"now"))
    assert delaying.partitions.offline() == {}
    storage.disk.out_of_files = False
    storage.clock.advance(seconds=1)
    assert [message.value for message in await topic_has(delaying, 2)] == [b"later", b"now"]


async def test_an_intent_that_cannot_be_read_for_now_is_carried_out_once(
    delaying: BrokerNode, storage: Storage
) -> None:
    """The process runs out of file descriptors in the middle of the intent."""
    await send(delaying, OutgoingMessage(value=b"now"))
    await topic_reaches(delaying, 1)
    await send(delaying, *[after(1000, b"%d" % number) for number in range(50)])
    inbox = delaying.partitions.find(companion(INBOX, "d"), 0)
    intent_is_safe = inbox.log.log_end_offset + 1
    inbox.when_committed(intent_is_safe, lambda _: setattr(storage.disk, "out_of_files", True))
    storage.clock.advance(ms=1000)
    while inbox.high_watermark < intent_is_safe:
        await delaying.loop_tick.end()
    await delaying.flusher.drain()
    assert delaying.partitions.offline() == {}
    assert delaying.partitions.find("d", 0).log.log_end_offset == 1
    storage.disk.out_of_files = False
    storage.clock.advance(seconds=1)
    _, *found = await topic_has(delaying, 51)
    assert [message.value for message in found] == [b"%d" % number for number in range(50)]


async def test_an_inbox_that_cannot_be_loaded_for_now_is_loaded_later(storage: Storage) -> None:
    async with running_parts(storage=storage) as broker:
        await broker.topics.create(DELAYED)
        await send(broker, after(1000))
    async with running_parts(storage=storage) as broker:
        storage.disk.out_of_files = True
        partition = broker.partitions.find("d", 0)
        broker.inboxes.lost(partition)
        broker.inboxes.gained(partition)
        with pytest.raises(RequestError, match="the inbox of d-0 is not loaded") as refused:
            await broker.inboxes.get("d", 0, 0)
        assert refused.value.kind is ErrorKind.PARTITION_OFFLINE
        assert broker.partitions.offline() == {}
        storage.disk.out_of_files = False
        storage.clock.advance(seconds=1)
        assert [message.value for message in await topic_has(broker, 1)] == [b"later"]
