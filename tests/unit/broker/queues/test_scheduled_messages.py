"""Lists of messages that are not due, of partitions that two brokers lead."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from unittest.mock import patch

import pytest

from conveyor.broker.broker_node import BrokerNode
from conveyor.broker.produce.outgoing_message import OutgoingMessage
from conveyor.broker.queues.scheduled_messages import SchedulePage
from conveyor.kernel import heap_search
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.queues.subscription.policy import StartPosition
from conveyor.records.message_attributes import DELAY_MS
from tests.callers import CALLER, answer_of
from tests.unit.broker.two_brokers import TwoBrokers, two_brokers

LATER = "later"


@pytest.fixture
async def brokers() -> AsyncIterator[TwoBrokers]:
    """Both brokers, with the subscription `s` of topic `t`, and the delayed topic `later`."""
    async with two_brokers() as both:
        await both.one.queues.lifecycle.create(CALLER, "t", "s", StartPosition(kind="earliest"), {})
        await both.create(LATER, **{"delay.target": "t"})
        yield both


async def publish(broker: BrokerNode, topic: str, *delays: tuple[int, int]) -> None:
    """Publish a message with a delay for each (partition, delay in ms)."""
    messages = [
        OutgoingMessage(b"m", partition=number, headers=((DELAY_MS, b"%d" % delay_ms),)) for number, delay_ms in delays
    ]
    await broker.produce.messages.publish(CALLER, topic, messages)


async def pages(broker: BrokerNode, name: str, limit: int) -> list[SchedulePage]:
    """Read the whole list of a subscription, or of the delayed topic."""
    scheduled = broker.queues.scheduled
    read = scheduled.of_topic if name == LATER else scheduled.of_subscription
    found = [await read(CALLER, name, None, limit)]
    while found[-1].next is not None:
        found.append(await read(CALLER, name, found[-1].next, limit))
    assert all(page.is_complete for page in found)
    return found


def shown(found: Sequence[SchedulePage], start_ms: int) -> list[tuple[int, int, int]]:
    return [(one.due_ms - start_ms, one.partition, one.offset) for page in found for one in page.messages]


@pytest.mark.parametrize(("topic", "name"), [("t", "s"), (LATER, LATER)])
async def test_any_broker_lists_messages_of_all_partitions_in_the_order_of_their_times(
    brokers: TwoBrokers, topic: str, name: str
) -> None:
    start_ms = brokers.clock.now_ms()
    await publish(brokers.two, topic, (0, 5_000), (1, 3_000), (0, 3_000), (1, 7_000), (1, 3_000), (0, 0))
    expected = [(3_000, 0, 1), (3_000, 1, 0), (3_000, 1, 2), (5_000, 0, 0), (7_000, 1, 1)]
    for broker in (brokers.one, brokers.two):
        for limit in (1, 2, 1_000):
            found = await pages(broker, name, limit)
            assert shown(found, start_ms) == expected
            assert all(len(page.messages) <= limit for page in found)
    assert {(one.reason, one.delivery_count) for page in found for one in page.messages} == {("delay", 0)}


async def test_failed_message_is_listed_with_its_deliveries(brokers: TwoBrokers) -> None:
    await publish(brokers.one, "t", (1, 0))
    [lease] = await brokers.two.queues.leases.lease(CALLER, "s", 1, 0, None)
    await answer_of(brokers.two.queues.settlements.nack, CALLER, "s", [lease.ack_id], 900)
    [page] = await pages(brokers.one, "s", 10)
    [listed] = page.messages
    assert (listed.partition, listed.offset, listed.reason, listed.delivery_count) == (1, 0, "backoff", 1)


async def test_cancelled_record_of_a_delayed_topic_is_not_listed(brokers: TwoBrokers) -> None:
    start_ms = brokers.clock.now_ms()
    await publish(brokers.one, LATER, (0, 3_000), (0, 4_000))
    await brokers.two.queues.delayed_messages.cancel(CALLER, LATER, "0-0")
    assert shown(await pages(brokers.one, LATER, 10), start_ms) == [(4_000, 0, 1)]


@pytest.mark.parametrize(("topic", "name"), [("t", "s"), (LATER, LATER)])
async def test_long_list_is_searched_in_turns(brokers: TwoBrokers, topic: str, name: str) -> None:
    start_ms = brokers.clock.now_ms()
    await publish(brokers.one, topic, *[(0, 9_000 - number) for number in range(50)])
    listing = asyncio.ensure_future(pages(brokers.one, name, 1_000))
    with patch.object(heap_search, "PLACES_AT_ONCE", 5):
        publishing, turns_count = asyncio.ensure_future(publish(brokers.one, topic, (0, 100))), 0
        while not listing.done():
            turns_count += 1
            await asyncio.sleep(0)
        found = shown(await listing, start_ms)
    await publishing
    assert turns_count > 10
    assert {(9_000 - number, 0, number) for number in range(50)} <= set(found)
    assert found == sorted(found)


@pytest.mark.parametrize("after", ["", "1", "1-2", "1-2-3-4", "-1-2-3", "1-2-x", "1-2-" + "9" * 40, "\u0661-0-0"])
@pytest.mark.parametrize("name", ["s", LATER])
async def test_position_that_no_page_has_is_refused(brokers: TwoBrokers, name: str, after: str) -> None:
    scheduled = brokers.one.queues.scheduled
    read = scheduled.of_topic if name == LATER else scheduled.of_subscription
    with pytest.raises(RequestError, match="is not the 'next' of a page") as refused:
        await read(CALLER, name, after, 10)
    assert refused.value.kind is ErrorKind.INVALID_REQUEST


async def test_topic_that_is_not_delayed_has_no_list(brokers: TwoBrokers) -> None:
    with pytest.raises(RequestError, match="topic 't' is not a delayed topic") as refused:
        await brokers.one.queues.scheduled.of_topic(CALLER, "t", None, 10)
    assert refused.value.kind is ErrorKind.INVALID_REQUEST


async def test_list_behind_the_last_position_is_empty(brokers: TwoBrokers) -> None:
    await publish(brokers.one, "t", (0, 5_000))
    last = "-".join(["9" * 18, "9" * 9, "9" * 18])
    page = await brokers.one.queues.scheduled.of_subscription(CALLER, "s", last, 10)
    assert page == SchedulePage([], None, True)
