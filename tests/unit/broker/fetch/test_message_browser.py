"""Browsing the messages of a topic."""

import asyncio
from collections.abc import Sequence
from itertools import chain
from typing import Any

import pytest

from conveyor.broker.broker_node import BrokerNode
from conveyor.broker.fetch import message_reading
from conveyor.broker.produce.publisher import ACKS_ALL, Published
from conveyor.cluster.topic_creation import TopicRequest
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.queues.subscription.policy import StartPosition
from conveyor.records.compression import ZSTD
from conveyor.records.record import Record, encode_batch, read_record
from tests.callers import CALLER
from tests.unit.broker.parts import NOW_MS
from tests.unit.broker.publishing import message, put

EARLIEST = StartPosition(kind="earliest")


async def test_browse_goes_on_from_an_offset_up_to_a_limit(broker: BrokerNode) -> None:
    for number in range(5):
        await put(broker, message(b"%d" % number, partition=0))
    assert [browsed.offset for browsed in await broker.fetch.browser.browse(CALLER, "t", 0, 2, 2)] == [2, 3]
    assert [browsed.offset for browsed in await broker.fetch.browser.browse(CALLER, "t", 0, 2, 100)] == [2, 3, 4]
    assert await broker.fetch.browser.browse(CALLER, "t", 0, 5, 100) == []


async def test_browse_of_all_partitions_is_in_order_of_time(broker: BrokerNode) -> None:
    for number in range(4):
        await put(broker, message(b"%d" % number, partition=number % 2, timestamp_ms=NOW_MS + number))
    messages = await broker.fetch.browser.browse(CALLER, "t", None, EARLIEST, 3)
    assert [browsed.value for browsed in messages] == [b"0", b"1", b"2"]


async def test_browse_starts_at_a_time_or_at_the_end(broker: BrokerNode) -> None:
    for number in range(3):
        await put(broker, message(partition=0, timestamp_ms=NOW_MS + number))
    at_time = StartPosition(kind="timestamp", timestamp_ms=NOW_MS + 1)
    assert [browsed.offset for browsed in await broker.fetch.browser.browse(CALLER, "t", 0, at_time, 10)] == [1, 2]
    too_late = StartPosition(kind="timestamp", timestamp_ms=NOW_MS + 10)
    assert await broker.fetch.browser.browse(CALLER, "t", 0, too_late, 10) == []
    assert await broker.fetch.browser.browse(CALLER, "t", 0, StartPosition(kind="latest"), 10) == []


async def test_browse_outside_the_log_is_refused(broker: BrokerNode) -> None:
    with pytest.raises(RequestError) as refused:
        await broker.fetch.browser.browse(CALLER, "t", 0, 1, 10)
    assert refused.value.kind is ErrorKind.OFFSET_OUT_OF_RANGE


def packed(*values: bytes) -> bytes:
    return encode_batch([(NOW_MS, None, value, ()) for value in values], codec=ZSTD)


async def store(broker: BrokerNode, topic: str, batch: bytes) -> None:
    done: asyncio.Future[Sequence[Published]] = asyncio.get_running_loop().create_future()
    broker.produce.publisher.publish(CALLER, [(topic, 0, batch)], ACKS_ALL, done.set_result)
    assert [published.error for published in await done] == [None]


async def test_browse_stops_at_the_weight_of_unpacked_messages(broker: BrokerNode) -> None:
    """The batches take some kilobytes of the log."""
    for _ in range(10):
        await store(broker, "t", packed(*[b"a" * 1_000_000] * 4))
    pages = []
    offset = 0
    while messages := await broker.fetch.browser.browse(CALLER, "t", 0, offset, 1000):
        pages.append([browsed.offset for browsed in messages])
        offset = messages[-1].offset + 1
    assert list(chain.from_iterable(pages)) == list(range(40))
    assert max(map(len, pages)) == 9
    read = await broker.fetch.browser.read(CALLER, "t", 0, 0, 1000, 4_000_000)
    assert [browsed.offset for browsed in read] == list(range(4))


async def test_read_of_a_few_messages_does_not_decode_the_rest_of_their_batch(
    broker: BrokerNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[int] = []

    def counted(*arguments: Any) -> Record:
        record = read_record(*arguments)
        decoded.append(record.offset)
        return record

    monkeypatch.setattr(message_reading, "read_record", counted)
    await store(broker, "t", packed(*[b"a"] * 1_000))
    await broker.fetch.browser.get(CALLER, "t", "0-500")
    await broker.fetch.browser.browse(CALLER, "t", 0, 300, 2)
    assert decoded == [500, 300, 301]


async def test_message_that_unpacks_beyond_the_limit_is_refused_and_left_out(broker: BrokerNode) -> None:
    size = 16 << 20
    await store(broker, "t", packed(b"small", bytes(size), b"small"))
    await store(broker, "t", packed(bytes(size)))
    await store(broker, "t", packed(b"last"))
    with pytest.raises(RequestError, match=r"it takes 167772\d\d bytes, more than max.message.bytes") as refused:
        await broker.fetch.browser.get(CALLER, "t", "0-1")
    assert refused.value.kind is ErrorKind.UNKNOWN_MESSAGE
    assert [browsed.offset for browsed in await broker.fetch.browser.browse(CALLER, "t", 0, 0, 100)] == [0, 2]
    assert [browsed.offset for browsed in await broker.fetch.browser.read(CALLER, "t", 0, 0, 100, 1 << 26)] == [0, 2, 4]
    await broker.topics.create(
        CALLER, TopicRequest(name="large", partitions=1, config={"max.message.bytes": str(2 * size)})
    )
    await store(broker, "large", packed(bytes(size)))
    assert len((await broker.fetch.browser.get(CALLER, "large", "0-0")).value or b"") == size
