"""Messages one by one: where they go, what is answered, and how they are found again."""

import pytest

from conveyor.broker.broker_node import Broker
from conveyor.broker.produce.message_publisher import OutgoingMessage, PublishedMessage
from conveyor.cluster.topic_creation import TopicRequest
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.queues.subscription.policy import Start
from conveyor.records.message import Message
from conveyor.records.partitioner import partition_for_key
from tests.unit.broker.parts import NOW_MS, Storage, running_parts

EARLIEST = Start(kind="earliest")


def message(value: bytes | None = b"value", **fields: object) -> OutgoingMessage:
    return OutgoingMessage(value=value, **fields)  # type: ignore[arg-type]


async def put(broker: Broker, *messages: OutgoingMessage, topic: str = "t") -> list[PublishedMessage]:
    """Publish, and nothing may go wrong."""
    results = await broker.messages.publish(topic, messages)
    assert all(isinstance(each, PublishedMessage) for each in results)
    return [each for each in results if isinstance(each, PublishedMessage)]


def kinds(results: list[PublishedMessage | RequestError]) -> list[ErrorKind | None]:
    return [each.kind if isinstance(each, RequestError) else None for each in results]


async def test_results_are_in_the_order_of_the_messages(broker: Broker) -> None:
    results = await put(broker, message(partition=1), message(partition=0), message(partition=1))
    assert [(each.message_id, each.duplicate) for each in results] == [("1-0", False), ("0-0", False), ("1-1", False)]


async def test_published_messages_are_committed(broker: Broker) -> None:
    await put(broker, message(partition=0))
    assert broker.partitions.find("t", 0).high_watermark == 1


async def test_key_decides_the_partition_as_in_kafka(broker: Broker) -> None:
    keys = [b"key-%d" % number for number in range(20)]
    results = await put(broker, *(message(key=key) for key in keys))
    assert [each.partition for each in results] == [partition_for_key(key, 2) for key in keys]


async def test_messages_without_keys_take_turns_by_the_call(broker: Broker) -> None:
    calls = [await put(broker, message(), message()) for _ in range(3)]
    assert [[each.partition for each in call] for call in calls] == [[0, 0], [1, 1], [0, 0]]


async def test_one_bad_message_does_not_stop_the_others(broker: Broker) -> None:
    results = await broker.messages.publish(
        "t", [message(partition=0), message(partition=2), message(timestamp_ms=-5), message(partition=-1)]
    )
    assert kinds(results) == [None, *[ErrorKind.INVALID_REQUEST] * 3]


async def test_many_messages_are_more_than_one_batch_and_one_may_be_too_large(storage: Storage) -> None:
    async with running_parts(storage=storage) as broker:
        await broker.topics.create(TopicRequest(name="small", partitions=1, config={"max.message.bytes": "1000"}))
        sizes = [400, 400, 400, 2000, 100]
        results = await broker.messages.publish("small", [message(bytes(size)) for size in sizes])
        assert kinds(results) == [None, None, None, ErrorKind.MESSAGE_TOO_LARGE, None]
        found = await broker.messages.browse("small", 0, EARLIEST, 10)
        assert [len(each.value or b"") for each in found] == [400, 400, 400, 100]


async def test_topic_is_made_only_where_the_settings_say_so(storage: Storage) -> None:
    async with running_parts(storage=storage) as broker:
        assert await put(broker, message(), topic="new")
    async with running_parts({"broker.auto_create_topics": False}, storage) as broker:
        with pytest.raises(RequestError) as refused:
            await broker.messages.publish("newer", [message()])
        assert refused.value.kind is ErrorKind.UNKNOWN_TOPIC


async def test_brokers_own_topics_are_not_published_to(broker: Broker) -> None:
    await broker.topics.ensure_offsets_topic()
    results = await broker.messages.publish("__consumer_offsets", [message()])
    assert kinds(results) == [ErrorKind.INVALID_TOPIC]


async def test_publish_of_nothing_is_answered(broker: Broker) -> None:
    assert await broker.messages.publish("t", []) == []


async def test_message_is_found_as_it_was_published(broker: Broker) -> None:
    headers = (("a", b"1"), ("a", None))
    (result,) = await put(broker, message(None, key=b"k", headers=headers, partition=1, timestamp_ms=5))
    assert await broker.messages.get("t", result.message_id) == Message("t", 1, 0, 5, b"k", None, headers)


async def test_get_finds_one_among_many_in_a_batch(broker: Broker) -> None:
    await put(broker, *(message(b"%d" % number, partition=0) for number in range(10)))
    assert (await broker.messages.get("t", "0-7")).value == b"7"


@pytest.mark.parametrize("message_id", ["0-1", "1-0", "2-0", "x", "0-i3", ""])
async def test_get_of_an_unknown_message_says_what_there_is(broker: Broker, message_id: str) -> None:
    await put(broker, message(partition=0))
    with pytest.raises(RequestError, match=f"no message '{message_id}': ") as refused:
        await broker.messages.get("t", message_id)
    assert refused.value.kind is ErrorKind.UNKNOWN_MESSAGE


async def test_browse_goes_on_from_an_offset_up_to_a_limit(broker: Broker) -> None:
    for number in range(5):
        await put(broker, message(b"%d" % number, partition=0))
    assert [each.offset for each in await broker.messages.browse("t", 0, 2, 2)] == [2, 3]
    assert [each.offset for each in await broker.messages.browse("t", 0, 2, 100)] == [2, 3, 4]
    assert await broker.messages.browse("t", 0, 5, 100) == []


async def test_browse_of_all_partitions_is_in_order_of_time(broker: Broker) -> None:
    for number in range(4):
        await put(broker, message(b"%d" % number, partition=number % 2, timestamp_ms=NOW_MS + number))
    found = await broker.messages.browse("t", None, EARLIEST, 3)
    assert [each.value for each in found] == [b"0", b"1", b"2"]


async def test_browse_starts_at_a_time_or_at_the_end(broker: Broker) -> None:
    for number in range(3):
        await put(broker, message(partition=0, timestamp_ms=NOW_MS + number))
    at_time = Start(kind="timestamp", timestamp_ms=NOW_MS + 1)
    assert [each.offset for each in await broker.messages.browse("t", 0, at_time, 10)] == [1, 2]
    too_late = Start(kind="timestamp", timestamp_ms=NOW_MS + 10)
    assert await broker.messages.browse("t", 0, too_late, 10) == []
    assert await broker.messages.browse("t", 0, Start(kind="latest"), 10) == []


async def test_browse_outside_the_log_is_refused(broker: Broker) -> None:
    with pytest.raises(RequestError) as refused:
        await broker.messages.browse("t", 0, 1, 10)
    assert refused.value.kind is ErrorKind.OFFSET_OUT_OF_RANGE


async def test_message_of_a_partition_that_cannot_be_written_is_an_error(broker: Broker, storage: Storage) -> None:
    storage.disk.fail("sync")
    assert kinds(await broker.messages.publish("t", [message()])) == [ErrorKind.PARTITION_OFFLINE]
