"""Dead letters, delayed messages and the states of messages on any broker, whichever leads their partitions."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from conveyor.broker.broker_node import BrokerNode
from conveyor.broker.produce.outgoing_message import OutgoingMessage, PublishedMessage
from conveyor.cluster.topic_creation import TopicRequest
from conveyor.kernel.errors import RequestError
from conveyor.queues.subscription.policy import StartPosition
from conveyor.records.message_attributes import DELAY_MS, ONLY_FOR
from conveyor.records.record import header_name
from tests.callers import CALLER, answer_of
from tests.unit.broker.two_brokers import ONE, TWO, TwoBrokers, two_brokers

EARLIEST = StartPosition(kind="earliest")


@pytest.fixture
async def brokers() -> AsyncIterator[TwoBrokers]:
    """Both brokers, with the subscription `s` of topic `t`. Broker 2 leads its dead-letter topic."""
    async with two_brokers() as both:
        await both.create("dead", TWO)
        await both.one.queues.lifecycle.create(CALLER, "t", "s", EARLIEST, {"dead_letter_topic": "dead"})
        yield both


async def bury(brokers: TwoBrokers) -> None:
    """Reject a message of each partition."""
    messages = [OutgoingMessage(b"%d" % number, partition=number) for number in (0, 1)]
    await brokers.one.produce.messages.publish(CALLER, "t", messages)
    for _ in messages:
        leases = await brokers.one.queues.leases.lease(CALLER, "s", 1, 0, None)
        await answer_of(brokers.two.queues.settlements.reject, CALLER, "s", [lease.ack_id for lease in leases], "bad")
    await dead(brokers.one, 2)


async def dead(broker: BrokerNode, count: int) -> None:
    """Wait until there are this many dead letters."""
    for _ in range(5_000):
        if (await broker.queues.statistics.stats(CALLER, "s")).dead == count:
            return
        await asyncio.sleep(0.001)
    raise AssertionError(f"not {count} dead letters")


async def test_any_broker_shows_and_redrives_dead_letters(brokers: TwoBrokers) -> None:
    await bury(brokers)
    for broker in (brokers.one, brokers.two):
        page = await broker.queues.dead_letters.peek(CALLER, "s", 10)
        assert sorted(letter.message.message_id for letter in page.letters) == ["0-0", "1-0"]
        assert page.without_copy == 0
        assert await broker.queues.dead_letters.unknown(CALLER, "s", ["0-0", "1-0", "1-1"]) == ["1-1"]
        topics = await broker.queues.dead_letters.topics(CALLER, broker.cluster.subscriptions.all())
        assert [(topic.topic, topic.depth) for topic in topics] == [("dead", 2)]
    assert await brokers.one.queues.dead_letters.redrive.redrive(CALLER, "s", message_ids=["1-0"]) == 1
    (leased,) = await brokers.one.queues.leases.lease(CALLER, "s", 1, 0, None)
    assert leased.message.message_id == "1-0"
    assert await brokers.two.queues.dead_letters.redrive.drop(CALLER, "s", filter="true") == 1
    await dead(brokers.one, 0)


async def test_dead_letter_that_was_for_one_subscription_is_leased_by_those_of_its_topic(brokers: TwoBrokers) -> None:
    await brokers.one.queues.lifecycle.create(CALLER, "dead", "handler", EARLIEST, {})
    for_one = OutgoingMessage(b"m", partition=0, headers=((ONLY_FOR, b"s"),))
    await brokers.one.produce.messages.publish(CALLER, "t", [for_one])
    (leased,) = await brokers.one.queues.leases.lease(CALLER, "s", 1, 0, None)
    await answer_of(brokers.one.queues.settlements.reject, CALLER, "s", [leased.ack_id], "bad")
    await dead(brokers.one, 1)
    (handled,) = await brokers.one.queues.leases.lease(CALLER, "handler", 1, 20_000, None)
    assert handled.message.value == b"m"


async def test_dead_letter_with_a_header_name_that_is_not_utf_8_is_copied_as_it_is(brokers: TwoBrokers) -> None:
    header = (header_name(b"n\xe4me"), b"v")
    await brokers.one.produce.messages.publish(CALLER, "t", [OutgoingMessage(b"m", partition=0, headers=(header,))])
    (leased,) = await brokers.one.queues.leases.lease(CALLER, "s", 1, 0, None)
    await answer_of(brokers.one.queues.settlements.reject, CALLER, "s", [leased.ack_id], "bad")
    await dead(brokers.one, 1)
    [letter] = (await brokers.one.queues.dead_letters.peek(CALLER, "s", 10)).letters
    assert header in letter.message.headers


async def test_any_broker_shows_messages_and_their_states(brokers: TwoBrokers) -> None:
    messages = [OutgoingMessage(b"m", partition=number) for number in (0, 1)]
    await brokers.one.produce.messages.publish(CALLER, "t", messages)
    await brokers.two.queues.leases.lease(CALLER, "s", 1, 0, None)
    for broker in (brokers.one, brokers.two):
        inspection = broker.queues.inspection
        peeked = await inspection.peek(CALLER, "s", 10)
        assert [(peek.message.message_id, peek.state.state) for peek in peeked] == [
            ("0-0", "available"),
            ("1-0", "leased"),
        ]
        assert len(await inspection.peek(CALLER, "s", 1)) == 1
        assert (await inspection.message_states(CALLER, "t", "1-0"))["s"].state == "leased"
        assert (await inspection.message_states(CALLER, "t", "0-0"))["s"].state == "available"
        with pytest.raises(RequestError, match="no partition 7"):
            await inspection.message_states(CALLER, "t", "7-0")


@pytest.mark.parametrize("topic", ["t", "later"])
async def test_any_broker_cancels_a_delayed_message(brokers: TwoBrokers, topic: str) -> None:
    await brokers.create("due", ONE, TWO)
    await brokers.one.topics.create(CALLER, TopicRequest(name="later", config={"delay.target": "due"}))
    message = OutgoingMessage(b"m", headers=((DELAY_MS, b"60000"),), partition=1)
    (published,) = await brokers.one.produce.messages.publish(CALLER, topic, [message])
    assert isinstance(published, PublishedMessage)
    await brokers.one.queues.delayed_messages.cancel(CALLER, topic, published.message_id)
    assert (await brokers.one.fetch.browser.get(CALLER, topic, published.message_id)).value == b"m"
    if topic == "t":
        states = await brokers.one.queues.inspection.message_states(CALLER, "t", published.message_id)
        assert states["s"].state == "cancelled"
