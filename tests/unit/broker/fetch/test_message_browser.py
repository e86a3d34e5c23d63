"""Browsing the messages of a topic."""

import pytest

from conveyor.broker.broker_node import BrokerNode
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.queues.subscription.policy import StartPosition
from tests.unit.broker.parts import NOW_MS
from tests.unit.broker.publishing import message, put

EARLIEST = StartPosition(kind="earliest")


async def test_browse_goes_on_from_an_offset_up_to_a_limit(broker: BrokerNode) -> None:
    for number in range(5):
        await put(broker, message(b"%d" % number, partition=0))
    assert [browsed.offset for browsed in await broker.message_browser.browse("t", 0, 2, 2)] == [2, 3]
    assert [browsed.offset for browsed in await broker.message_browser.browse("t", 0, 2, 100)] == [2, 3, 4]
    assert await broker.message_browser.browse("t", 0, 5, 100) == []


async def test_browse_of_all_partitions_is_in_order_of_time(broker: BrokerNode) -> None:
    for number in range(4):
        await put(broker, message(b"%d" % number, partition=number % 2, timestamp_ms=NOW_MS + number))
    messages = await broker.message_browser.browse("t", None, EARLIEST, 3)
    assert [browsed.value for browsed in messages] == [b"0", b"1", b"2"]


async def test_browse_starts_at_a_time_or_at_the_end(broker: BrokerNode) -> None:
    for number in range(3):
        await put(broker, message(partition=0, timestamp_ms=NOW_MS + number))
    at_time = StartPosition(kind="timestamp", timestamp_ms=NOW_MS + 1)
    assert [browsed.offset for browsed in await broker.message_browser.browse("t", 0, at_time, 10)] == [1, 2]
    too_late = StartPosition(kind="timestamp", timestamp_ms=NOW_MS + 10)
    assert await broker.message_browser.browse("t", 0, too_late, 10) == []
    assert await broker.message_browser.browse("t", 0, StartPosition(kind="latest"), 10) == []


async def test_browse_outside_the_log_is_refused(broker: BrokerNode) -> None:
    with pytest.raises(RequestError) as refused:
        await broker.message_browser.browse("t", 0, 1, 10)
    assert refused.value.kind is ErrorKind.OFFSET_OUT_OF_RANGE
