"""Publishing single messages: the partition of each, its result, and refusals."""

from threading import get_ident
from typing import Any

import pytest

from conveyor.broker.broker_node import BrokerNode
from conveyor.broker.produce import message_batches
from conveyor.broker.produce.outgoing_message import PublishedMessage, encode_messages
from conveyor.cluster.topic_creation import TopicRequest
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.records.partitioner import partition_for_key
from tests.callers import CALLER
from tests.unit.broker.parts import Storage, running_parts
from tests.unit.broker.publishing import message, put


def kinds(results: list[PublishedMessage | RequestError]) -> list[ErrorKind | None]:
    return [result.kind if isinstance(result, RequestError) else None for result in results]


async def test_results_are_in_the_order_of_the_messages(broker: BrokerNode) -> None:
    results = await put(broker, message(partition=1), message(partition=0), message(partition=1))
    assert [(result.message_id, result.duplicate) for result in results] == [
        ("1-0", False),
        ("0-0", False),
        ("1-1", False),
    ]


async def test_published_messages_are_committed(broker: BrokerNode) -> None:
    await put(broker, message(partition=0))
    assert broker.partitions.table.find("t", 0).term.high_watermark == 1


async def test_key_decides_the_partition_as_in_kafka(broker: BrokerNode) -> None:
    keys = [b"key-%d" % number for number in range(20)]
    results = await put(broker, *(message(key=key) for key in keys))
    assert [result.partition for result in results] == [partition_for_key(key, 2) for key in keys]


async def test_messages_without_keys_take_turns_by_the_call(broker: BrokerNode) -> None:
    calls = [await put(broker, message(), message()) for _ in range(3)]
    assert [[result.partition for result in call] for call in calls] == [[0, 0], [1, 1], [0, 0]]


async def test_one_bad_message_does_not_stop_the_others(broker: BrokerNode) -> None:
    results = await broker.produce.messages.publish(
        CALLER, "t", [message(partition=0), message(partition=2), message(timestamp_ms=-5), message(partition=-1)]
    )
    assert kinds(results) == [None, *[ErrorKind.INVALID_REQUEST] * 3]


async def test_many_messages_are_more_than_one_batch_and_one_may_be_too_large(storage: Storage) -> None:
    async with running_parts(storage=storage) as broker:
        await broker.topics.create(
            CALLER, TopicRequest(name="small", partitions=1, config={"max.message.bytes": "1000"})
        )
        sizes = [400, 400, 400, 2000, 100]
        results = await broker.produce.messages.publish(CALLER, "small", [message(bytes(size)) for size in sizes])
        assert kinds(results) == [None, None, None, ErrorKind.MESSAGE_TOO_LARGE, None]
        stored = await broker.fetch.browser.browse(CALLER, "small", 0, 0, 10)
        assert [len(browsed.value or b"") for browsed in stored] == [400, 400, 400, 100]


async def test_no_message_is_larger_than_a_batch_may_be_whatever_the_topic_says(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_parts(storage=storage) as broker:
        await broker.topics.create(CALLER, TopicRequest(name="large", config={"max.message.bytes": "1000"}))
        monkeypatch.setattr("conveyor.broker.produce.message_publisher.MAX_BATCH_BYTES", 500)
        assert broker.produce.messages.max_message_bytes("large") == 500
        monkeypatch.setattr("conveyor.broker.produce.message_publisher.MAX_BATCH_BYTES", 2000)
        assert broker.produce.messages.max_message_bytes("large") == 1000


@pytest.mark.parametrize("is_large", [False, True])
async def test_large_message_is_encoded_in_a_thread(
    storage: Storage, monkeypatch: pytest.MonkeyPatch, is_large: bool
) -> None:
    threads: list[int] = []

    def encode(*arguments: Any, **more: Any) -> Any:
        threads.append(get_ident())
        return encode_messages(*arguments, **more)

    monkeypatch.setattr(message_batches, "encode_messages", encode)
    async with running_parts({"topics.max_message_bytes": 4 << 20}, storage=storage) as broker:
        await broker.topics.create(CALLER, TopicRequest(name="t", partitions=1))
        value = bytes((2 if is_large else 1) << 20)
        results = await broker.produce.messages.publish(CALLER, "t", [message(value), message(b"1")])
        assert kinds(results) == [None, None]
        stored = await broker.fetch.browser.browse(CALLER, "t", 0, 0, 10)
    assert [browsed.value for browsed in stored] == [value, b"1"]
    assert [thread == get_ident() for thread in threads] == [not is_large, True]


async def test_header_names_of_several_bytes_a_character_make_no_batch_too_large(storage: Storage) -> None:
    async with running_parts(storage=storage) as broker:
        await broker.topics.create(
            CALLER, TopicRequest(name="small", partitions=1, config={"max.message.bytes": "1000"})
        )
        messages = [message(headers=(("\u65e5" * 100, b""),)) for _ in range(9)]
        assert kinds(await broker.produce.messages.publish(CALLER, "small", messages)) == [None] * 9


async def test_topic_is_made_only_where_the_settings_say_so(storage: Storage) -> None:
    async with running_parts(storage=storage) as broker:
        assert await put(broker, message(), topic="new")
    async with running_parts({"broker.auto_create_topics": False}, storage) as broker:
        with pytest.raises(RequestError) as refused:
            await broker.produce.messages.publish(CALLER, "newer", [message()])
        assert refused.value.kind is ErrorKind.UNKNOWN_TOPIC


async def test_brokers_own_topics_are_not_published_to(broker: BrokerNode) -> None:
    await broker.coordinators.groups.ensured()
    results = await broker.produce.messages.publish(CALLER, "__consumer_offsets", [message()])
    assert kinds(results) == [ErrorKind.INVALID_TOPIC]


async def test_publish_of_nothing_is_answered_and_makes_no_topic(broker: BrokerNode) -> None:
    for topic in ("t", "new"):
        assert await broker.produce.messages.publish(CALLER, topic, []) == []
    assert "new" not in broker.metadata.image.topics


async def test_message_of_a_partition_that_cannot_be_written_is_an_error(broker: BrokerNode, storage: Storage) -> None:
    storage.disk.faults.fail("sync")
    assert kinds(await broker.produce.messages.publish(CALLER, "t", [message()])) == [ErrorKind.PARTITION_OFFLINE]
