"""A broker asks another one, and its answer is lost: what is executed once more, and what other clients did since."""

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from conveyor.broker.broker_node import BrokerNode
from conveyor.broker.produce.outgoing_message import OutgoingMessage
from conveyor.broker.remote.answering import AnsweringEnd
from conveyor.broker.remote.call_frames import Ask
from conveyor.cluster.topic_creation import TopicRequest
from conveyor.kernel.access.caller import Caller
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.queues.queue_commands import LeasedMessage
from conveyor.queues.subscription.policy import StartPosition
from conveyor.records.message_attributes import DELAY_MS
from tests.callers import CALLER, answer_of
from tests.unit.broker.two_brokers import ONE, TWO, TwoBrokers, two_brokers

EARLIEST = StartPosition(kind="earliest")
DELAYED = ((DELAY_MS, b"60000"),)

Verb = Callable[[BrokerNode, str], Awaitable[object]]
"""Asks this broker for the message `1-0`; the lease that holds it has an ack id."""


@pytest.fixture
async def brokers() -> AsyncIterator[TwoBrokers]:
    """Both brokers, with the subscription `s` of topic `t`. Broker 2 leads partition 1."""
    async with two_brokers() as both:
        await both.create("dead", ONE)
        await both.one.queues.lifecycle.create(CALLER, "t", "s", EARLIEST, {"dead_letter_topic": "dead"})
        yield both


async def nothing() -> None:
    """No other client does anything."""


class LostAnswer:
    """Broker 2 executes calls of a name; its link ends before it answers the first one, and after `meanwhile`."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, name: str, meanwhile: Callable[[], Awaitable[None]] = nothing
    ) -> None:
        self.executed_count = 0
        plain_answer = AnsweringEnd._answer

        async def answer(end: AnsweringEnd, caller: Caller, ask: Ask) -> None:
            if ask.name != name:
                return await plain_answer(end, caller, ask)
            self.executed_count += 1
            if self.executed_count > 1:
                return await plain_answer(end, caller, ask)
            await end._answerer.handlers.answer_encoded(caller, ask.name, ask.payload)
            await meanwhile()
            end._link.close("the test has cut this link")

        monkeypatch.setattr(AnsweringEnd, "_answer", answer)


async def publish(brokers: TwoBrokers, topic: str = "t", *, delayed: bool = False) -> None:
    message = OutgoingMessage(b"m", headers=DELAYED if delayed else (), partition=1)
    await brokers.two.produce.messages.publish(CALLER, topic, [message])


async def lease(brokers: TwoBrokers) -> list[LeasedMessage]:
    return await brokers.two.queues.leases.lease(CALLER, "s", 1, 0, None)


async def ack(brokers: TwoBrokers, leased: LeasedMessage) -> None:
    assert await answer_of(brokers.two.queues.settlements.ack, CALLER, "s", [leased.ack_id]) == [None]


async def outcome(brokers: TwoBrokers, ask: Awaitable[object]) -> object:
    """Return the kind of the error of a request to broker 1, or of its single result; otherwise the result."""
    try:
        result = await brokers.with_time(ask)
    except RequestError as error:
        return error.kind
    (single,) = result if isinstance(result, list) else (result,)
    return single.kind if isinstance(single, RequestError) else single


async def test_seek_is_not_repeated_after_others_have_acknowledged(
    brokers: TwoBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def meanwhile() -> None:
        (again,) = await lease(brokers)
        await ack(brokers, again)

    await publish(brokers)
    (first,) = await lease(brokers)
    await ack(brokers, first)
    lost = LostAnswer(monkeypatch, "queue.seek", meanwhile)
    sought = brokers.one.queues.lifecycle.seek(CALLER, "s", {1: 0})
    assert await outcome(brokers, sought) is ErrorKind.REQUEST_TIMED_OUT
    assert (lost.executed_count, await lease(brokers)) == (1, [])


async def test_nack_of_a_message_does_not_end_the_lease_of_its_next_consumer(
    brokers: TwoBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def meanwhile() -> None:
        others.extend(await lease(brokers))

    await publish(brokers)
    await lease(brokers)
    others: list[LeasedMessage] = []
    lost = LostAnswer(monkeypatch, "queue.NackMessages", meanwhile)
    nacked = answer_of(brokers.one.queues.settlements.nack, CALLER, "s", ["1-0"], 0)
    assert await outcome(brokers, nacked) is ErrorKind.REQUEST_TIMED_OUT
    assert (lost.executed_count, len(others)) == (1, 1)
    await ack(brokers, others[0])


def _of_message(verb: Callable[[BrokerNode, str], Awaitable[object]]) -> Verb:
    return lambda broker, _: verb(broker, "1-0")


def _ack(broker: BrokerNode, target: str) -> Awaitable[object]:
    return answer_of(broker.queues.settlements.ack, CALLER, "s", [target])


def _nack(broker: BrokerNode, target: str) -> Awaitable[object]:
    return answer_of(broker.queues.settlements.nack, CALLER, "s", [target], 0)


def _extend(broker: BrokerNode, target: str) -> Awaitable[object]:
    return answer_of(broker.queues.settlements.extend, CALLER, "s", [target], 60_000)


def _reject(broker: BrokerNode, target: str) -> Awaitable[object]:
    return answer_of(broker.queues.settlements.reject, CALLER, "s", [target], "bad")


def _purge(broker: BrokerNode, _: str) -> Awaitable[object]:
    return broker.queues.lifecycle.purge(CALLER, "s")


@pytest.mark.parametrize(
    ("name", "verb", "count", "told"),
    [
        ("queue.Acknowledge", _ack, 2, None),
        ("queue.Acknowledge", _of_message(_ack), 2, None),
        ("queue.Extend", _extend, 2, None),
        ("queue.Extend", _of_message(_extend), 1, ErrorKind.REQUEST_TIMED_OUT),
        ("queue.NackMessages", _nack, 2, ErrorKind.LEASE_LOST),
        ("queue.NackMessages", _of_message(_nack), 1, ErrorKind.REQUEST_TIMED_OUT),
        ("queue.Reject", _reject, 2, ErrorKind.LEASE_LOST),
        ("queue.Reject", _of_message(_reject), 1, ErrorKind.REQUEST_TIMED_OUT),
        ("queue.seek", _purge, 1, ErrorKind.REQUEST_TIMED_OUT),
    ],
)
async def test_a_lease_is_asked_for_again_and_a_message_is_not(
    brokers: TwoBrokers, monkeypatch: pytest.MonkeyPatch, name: str, verb: Verb, count: int, told: ErrorKind | None
) -> None:
    await publish(brokers)
    (leased,) = await lease(brokers)
    lost = LostAnswer(monkeypatch, name)
    assert await outcome(brokers, verb(brokers.one, leased.ack_id)) is told
    assert lost.executed_count == count


@pytest.mark.parametrize(
    ("name", "verb", "count", "told"),
    [("queue.Redeliver", "redrive", 1, ErrorKind.REQUEST_TIMED_OUT), ("queue.DropDeadLetters", "drop", 2, 1)],
)
async def test_dead_letters_are_dropped_again_and_not_redriven_again(
    brokers: TwoBrokers, monkeypatch: pytest.MonkeyPatch, name: str, verb: str, count: int, told: object
) -> None:
    await publish(brokers)
    (leased,) = await lease(brokers)
    await _reject(brokers.two, leased.ack_id)
    while await brokers.with_time(brokers.one.queues.dead_letters.unknown(CALLER, "s", ["1-0"])):
        pass
    lost = LostAnswer(monkeypatch, name)
    asked = getattr(brokers.one.queues.dead_letters.redrive, verb)(CALLER, "s")
    assert (await outcome(brokers, asked), lost.executed_count) == (told, count)


@pytest.mark.parametrize(
    ("name", "topic", "count", "told"),
    [("queue.Cancel", "t", 2, None), ("delayed.cancel", "later", 1, ErrorKind.REQUEST_TIMED_OUT)],
)
async def test_a_cancelled_message_is_not_reported_as_due(
    brokers: TwoBrokers, monkeypatch: pytest.MonkeyPatch, name: str, topic: str, count: int, told: object
) -> None:
    async def meanwhile() -> None:
        brokers.clock.advance(seconds=61)

    await brokers.create("due", ONE, TWO)
    await brokers.one.topics.create(CALLER, TopicRequest(name="later", config={"delay.target": "due"}))
    await publish(brokers, topic, delayed=True)
    lost = LostAnswer(monkeypatch, name, meanwhile)
    cancelled = brokers.one.queues.delayed_messages.cancel(CALLER, topic, "1-0")
    assert (await outcome(brokers, cancelled), lost.executed_count) == (told, count)
