"""Messages are read on any broker, whichever leads their partition."""

from collections.abc import AsyncIterator

import pytest

from conveyor.broker.produce.outgoing_message import OutgoingMessage
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.queues.subscription.policy import StartPosition
from tests.callers import CALLER
from tests.unit.broker.parts import NOW_MS
from tests.unit.broker.two_brokers import TwoBrokers, two_brokers

EARLIEST = StartPosition(kind="earliest")


@pytest.fixture
async def brokers() -> AsyncIterator[TwoBrokers]:
    """Both brokers, with two messages in each partition of `t`."""
    async with two_brokers() as both:
        for number in (0, 1):
            for time_ms in (NOW_MS + number, NOW_MS + 1000 + number):
                message = OutgoingMessage(b"v", b"k", (("name", b"x"), ("none", None)), number, time_ms)
                await both.one.produce.messages.publish(CALLER, "t", [message])
        yield both


async def test_any_broker_browses_all_partitions_by_time(brokers: TwoBrokers) -> None:
    expected = await brokers.one.fetch.browser.browse(CALLER, "t", None, EARLIEST, 10)
    assert [message.message_id for message in expected] == ["0-0", "1-0", "0-1", "1-1"]
    assert expected[1].headers == (("name", b"x"), ("none", None))
    assert await brokers.two.fetch.browser.browse(CALLER, "t", None, EARLIEST, 10) == expected


async def test_positions_are_found_at_the_leader(brokers: TwoBrokers) -> None:
    browse = brokers.one.fetch.browser.browse
    later = StartPosition(kind="timestamp", timestamp_ms=NOW_MS + 1000)
    assert [message.offset for message in await browse(CALLER, "t", 1, later, 10)] == [1]
    assert [message.offset for message in await browse(CALLER, "t", 1, 1, 10)] == [1]
    assert await browse(CALLER, "t", 1, StartPosition(kind="latest"), 10) == []
    assert await brokers.one.fetch.browser.end_offsets(CALLER, "t") == {0: 2, 1: 2}
    read = await brokers.one.fetch.browser.read(CALLER, "t", 1, 0, 10, 1 << 20)
    assert [message.offset for message in read] == [0, 1]


async def test_message_is_found_by_its_id(brokers: TwoBrokers) -> None:
    assert (await brokers.one.fetch.browser.get(CALLER, "t", "1-1")).timestamp_ms == NOW_MS + 1001
    with pytest.raises(RequestError, match="partition 1 holds 0 to 1") as refused:
        await brokers.one.fetch.browser.get(CALLER, "t", "1-2")
    assert refused.value.kind is ErrorKind.UNKNOWN_MESSAGE
