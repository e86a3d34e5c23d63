"""Messages are published at the leaders of their partitions, whichever broker is asked."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from conveyor.broker.produce import leader_publisher
from conveyor.broker.produce.outgoing_message import OutgoingMessage, PublishedMessage
from conveyor.broker.produce.publisher import ACKS_LEADER, ACKS_NONE
from conveyor.broker.remote.leader_calls import LeaderCalls
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.peers import PeerUnreachable
from tests.callers import CALLER
from tests.unit.broker.two_brokers import ONE, TWO, TwoBrokers, two_brokers


@pytest.fixture
async def brokers() -> AsyncIterator[TwoBrokers]:
    async with two_brokers() as both:
        yield both


def messages(*partitions: int) -> list[OutgoingMessage]:
    return [OutgoingMessage(b"%d" % number, partition=number) for number in partitions]


def offsets(results: list[PublishedMessage | RequestError]) -> list[tuple[int, int]]:
    assert all(isinstance(result, PublishedMessage) for result in results), results
    return [(result.partition, result.offset) for result in results if isinstance(result, PublishedMessage)]


def end_offsets(brokers: TwoBrokers) -> list[int]:
    return [
        broker.partitions.table.find("t", number).log.log_end_offset
        for number, broker in enumerate((brokers.one, brokers.two))
    ]


@pytest.mark.parametrize("acks", [-1, ACKS_LEADER])
async def test_each_partition_gets_its_messages_whichever_broker_is_asked(brokers: TwoBrokers, acks: int) -> None:
    for first, broker in enumerate((brokers.one, brokers.two)):
        results = await broker.produce.messages.publish(CALLER, "t", messages(0, 1, 1, 0), acks)
        assert offsets(results) == [(n, 2 * first + offset) for n, offset in ((0, 0), (1, 0), (1, 1), (0, 1))]
    assert end_offsets(brokers) == [4, 4]


async def test_messages_without_acknowledgement_reach_the_other_broker(brokers: TwoBrokers) -> None:
    await brokers.one.produce.messages.publish(CALLER, "t", messages(1), ACKS_NONE)
    assert end_offsets(brokers) == [0, 1]


async def test_errors_of_the_other_broker_are_those_of_its_messages(brokers: TwoBrokers) -> None:
    await brokers.create("small", ONE, TWO, **{"max.message.bytes": "100"})
    large = [OutgoingMessage(bytes(200), partition=1), OutgoingMessage(b"", partition=1)]
    refused, published = await brokers.one.produce.messages.publish(CALLER, "small", large)
    assert isinstance(refused, RequestError)
    assert refused.kind is ErrorKind.MESSAGE_TOO_LARGE
    assert isinstance(published, PublishedMessage)
    assert brokers.one.produce.messages.max_message_bytes("small", 1) == 100


async def test_duplicate_is_found_at_the_leader(brokers: TwoBrokers) -> None:
    message = OutgoingMessage(b"a", headers=(("conveyor-dedup-id", b"x"),), partition=1)
    (first,) = await brokers.one.produce.messages.publish(CALLER, "t", [message])
    (second,) = await brokers.one.produce.messages.publish(CALLER, "t", [message])
    assert first == PublishedMessage("1-0", 1, 0, False)
    assert second == PublishedMessage("1-0", 1, 0, True)


async def test_message_waits_for_the_new_leader_of_a_broker_that_is_gone(brokers: TwoBrokers) -> None:
    del brokers.cable.networks[TWO]
    waiting = asyncio.ensure_future(brokers.one.produce.messages.publish(CALLER, "t", messages(1)))
    for _ in range(20):
        await asyncio.sleep(0)
    assert not waiting.done()
    await brokers.move("t", 1, ONE)
    assert offsets(await waiting) == [(1, 0)]


async def test_message_for_a_broker_that_stays_gone_is_refused(brokers: TwoBrokers) -> None:
    del brokers.cable.networks[TWO]
    waiting = asyncio.ensure_future(brokers.one.produce.messages.publish(CALLER, "t", messages(1, 0)))
    while not waiting.done():
        await asyncio.sleep(0)
        brokers.clock.advance(seconds=5)
    refused, published = await waiting
    assert isinstance(refused, RequestError)
    assert refused.kind is ErrorKind.NOT_LEADER
    assert "cannot be reached: broker 2 refuses the connection" in refused.message
    assert isinstance(published, PublishedMessage)


async def test_messages_of_a_later_call_do_not_overtake_those_that_are_sent_again(
    brokers: TwoBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    await brokers.create("small", ONE, TWO, **{"max.message.bytes": "120"})
    monkeypatch.setattr(leader_publisher, "_CALL_BYTES", 1)
    ask, calls = LeaderCalls.ask_node, list[object]()

    async def fail_first(leaders: LeaderCalls, *arguments: Any, **more: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 1:
            raise PeerUnreachable("broker 2 could not be reached a moment ago")
        return await ask(leaders, *arguments, **more)

    monkeypatch.setattr(LeaderCalls, "ask_node", fail_first)
    two = [OutgoingMessage(bytes(40), partition=1), OutgoingMessage(bytes(40), partition=1)]
    waiting = asyncio.ensure_future(brokers.one.produce.messages.publish(CALLER, "small", two))
    for _ in range(6):  # The wait for another leader ends after five seconds.
        for _ in range(20):
            await asyncio.sleep(0)
        brokers.clock.advance(seconds=1)
    assert offsets(await waiting) == [(1, 0), (1, 1)]


async def test_message_whose_answer_is_lost_is_not_published_twice(brokers: TwoBrokers) -> None:
    waiting = asyncio.ensure_future(brokers.one.produce.messages.publish(CALLER, "t", messages(1)))
    await brokers.cable.opened.wait()
    for _ in range(3):
        await asyncio.sleep(0)
    brokers.cable.links[0].close("reset")
    (lost,) = await waiting
    assert isinstance(lost, RequestError)
    assert lost.kind is ErrorKind.REQUEST_TIMED_OUT
    assert "may have been published" in lost.message
    assert end_offsets(brokers)[1] <= 1
