"""A request is executed once, whichever broker is asked, also when answers between brokers are lost."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from conveyor.broker.broker_node import BrokerNode
from conveyor.broker.produce.outgoing_message import OutgoingMessage, PublishedMessage
from conveyor.broker.transaction_requests.transaction_request import Acknowledgement, TransactionRequest
from conveyor.cluster.image import TRANSACTIONS_TOPIC
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.ids import TopicPartition
from conveyor.queues.subscription.policy import StartPosition
from conveyor.transactions.transaction_commands import ListTransactions
from tests.callers import ALICE, BOB, CALLER, answer_of
from tests.unit.broker.markers.producers import is_stable, until
from tests.unit.broker.two_brokers import ONE, TwoBrokers, two_brokers

EVERYWHERE = [OutgoingMessage(b"0", partition=0), OutgoingMessage(b"1", partition=1)]
REQUEST = TransactionRequest("order-4711", [("t", message) for message in EVERYWHERE], [])


@pytest.fixture
async def brokers() -> AsyncIterator[TwoBrokers]:
    """Broker 1 coordinates all transactions."""
    settings = {"transactions.state_partitions": 1, "transactions.state_replication_factor": 1}
    async with two_brokers(settings) as both:
        await both.create(TRANSACTIONS_TOPIC, ONE)
        yield both


async def execute(broker: BrokerNode, request: TransactionRequest = REQUEST) -> list[PublishedMessage]:
    return await broker.transaction_requests.execute(CALLER, request)


async def values(brokers: TwoBrokers) -> list[bytes | None]:
    leaders = (brokers.one, brokers.two)
    stored = [await leader.fetch.browser.browse(CALLER, "t", number, 0, 100) for number, leader in enumerate(leaders)]
    return [message.value for messages in stored for message in messages]


async def until_stable(brokers: TwoBrokers) -> None:
    """Let time pass until all markers are written."""

    async def stable() -> None:
        for number, leader in enumerate((brokers.one, brokers.two)):
            partition = leader.partitions.table.find("t", number)
            await until(lambda partition=partition: is_stable(partition))  # type: ignore[misc]

    await brokers.with_time(stable())


async def when(condition: Callable[[], bool], act: Callable[[], None]) -> None:
    """Act as soon as a condition holds."""
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 - a pause would be too long
            await asyncio.sleep(0)
    act()


async def refusal(brokers: TwoBrokers, ask: Awaitable[object]) -> RequestError:
    with pytest.raises(RequestError) as refused:
        await brokers.with_time(ask)
    return refused.value


async def test_each_broker_is_asked_for_the_same_request(brokers: TwoBrokers) -> None:
    first = await execute(brokers.two)
    assert [await execute(broker) for broker in (brokers.one, brokers.two)] == [first] * 2
    assert await values(brokers) == [b"0", b"1"]
    other = REQUEST._replace(messages=REQUEST.messages[:1])
    for broker in (brokers.one, brokers.two):
        assert (await refusal(brokers, execute(broker, other))).kind is ErrorKind.TRANSACTION_ID_REUSED


async def test_id_belongs_to_a_user_whichever_broker_is_asked(brokers: TwoBrokers) -> None:
    asked = [(broker, caller) for caller in (ALICE, BOB) for broker in (brokers.two, brokers.one)]
    answers = [await broker.transaction_requests.execute(caller, REQUEST) for broker, caller in asked]
    assert answers[0] == answers[1] != answers[2] == answers[3]
    assert await values(brokers) == [b"0", b"0", b"1", b"1"]


async def test_request_without_an_id_needs_a_coordinator_too(brokers: TwoBrokers) -> None:
    for broker in (brokers.one, brokers.two):
        await execute(broker, REQUEST._replace(id=None))
    assert await values(brokers) == [b"0", b"0", b"1", b"1"]
    assert len(await brokers.one.coordinators.transactions.list_transactions(CALLER, ListTransactions())) == 1


async def test_refusal_is_the_same_from_each_broker(brokers: TwoBrokers) -> None:
    wrong = REQUEST._replace(messages=[*REQUEST.messages, ("t", OutgoingMessage(b"2", partition=2))])
    refusals = [await refusal(brokers, execute(broker, wrong)) for broker in (brokers.one, brokers.two)]
    assert refusals[0].kind is refusals[1].kind is ErrorKind.INVALID_REQUEST
    assert refusals[0].message == refusals[1].message
    await until_stable(brokers)
    assert await values(brokers) == []
    assert len(await execute(brokers.two)) == 2


async def test_lost_answer_comes_with_the_repeated_request(brokers: TwoBrokers) -> None:
    """The run goes on when the broker that forwarded the request no longer waits."""
    there = brokers.two.partitions.table.find("t", 1)
    cut = asyncio.ensure_future(when(lambda: there.term.high_watermark > 0, brokers.cable.unlink))
    refused = await refusal(brokers, execute(brokers.two))
    await cut
    assert refused.kind is ErrorKind.TRANSACTION_OUTCOME_UNKNOWN
    assert "repeat the request with its id" in refused.message
    while True:
        try:
            published = await brokers.with_time(execute(brokers.two))
            break
        except RequestError as error:
            assert error.kind in (ErrorKind.CONCURRENT_TRANSACTIONS, ErrorKind.COORDINATOR_NOT_AVAILABLE)  # noqa: PT017
    await until_stable(brokers)
    assert published == await execute(brokers.one)
    assert await values(brokers) == [b"0", b"1"]


async def test_lost_answer_to_a_publication_aborts(brokers: TwoBrokers) -> None:
    there = brokers.two.partitions.table.find("t", 1)
    cut = asyncio.ensure_future(when(lambda: there.log.log_end_offset > 0, brokers.cable.unlink))
    refused = await refusal(brokers, execute(brokers.one))
    await cut
    assert refused.kind is ErrorKind.COORDINATOR_NOT_AVAILABLE
    await until_stable(brokers)
    assert await values(brokers) == []
    await brokers.with_time(execute(brokers.one))
    await until_stable(brokers)
    assert await values(brokers) == [b"0", b"1"]


async def test_coordinator_that_cannot_be_reached_has_executed_nothing(brokers: TwoBrokers) -> None:
    networks = dict(brokers.cable.networks)
    brokers.cable.unplug(ONE)
    refused = await refusal(brokers, execute(brokers.two))
    assert refused.kind is ErrorKind.COORDINATOR_NOT_AVAILABLE
    brokers.cable.networks.update(networks)
    await brokers.with_time(execute(brokers.two))
    assert await values(brokers) == [b"0", b"1"]


async def leased(brokers: TwoBrokers) -> list[str]:
    """Publish a message to each partition, and lease both for a new subscription."""
    await brokers.one.queues.lifecycle.create(CALLER, "t", "s", StartPosition(kind="earliest"), {})
    await brokers.one.produce.messages.publish(CALLER, "t", EVERYWHERE)
    return [lease.ack_id for _ in range(2) for lease in await brokers.two.queues.leases.lease(CALLER, "s", 10, 0, None)]


@pytest.mark.parametrize("asks_the_coordinator", [True, False])
async def test_acks_reach_the_leaders_of_their_partitions(brokers: TwoBrokers, asks_the_coordinator: bool) -> None:
    acks = await leased(brokers)
    assert len(acks) == 2
    request = TransactionRequest("x", [], [Acknowledgement("s", acks)])
    await execute(brokers.one if asks_the_coordinator else brokers.two, request)
    stats = await brokers.one.queues.statistics.stats(CALLER, "s")
    assert (stats.unsettled, stats.pending) == (0, 0)


async def test_refused_ack_leaves_nothing_on_any_broker(brokers: TwoBrokers) -> None:
    acks = await leased(brokers)
    await answer_of(brokers.one.queues.settlements.nack, CALLER, "s", acks[:1], 60_000)
    request = REQUEST._replace(acknowledgements=[Acknowledgement("s", acks)])
    refused = await refusal(brokers, execute(brokers.two, request))
    assert refused.kind is ErrorKind.LEASE_LOST
    assert acks[0] in refused.message
    assert acks[1] not in refused.message
    await until_stable(brokers)
    assert await values(brokers) == [b"0", b"1"]
    stats = await brokers.one.queues.statistics.stats(CALLER, "s")
    assert (stats.unsettled, stats.pending) == (2, 0)


async def test_lost_answer_to_an_ack_is_asked_for_again(brokers: TwoBrokers) -> None:
    """An acknowledgement in a transaction may be repeated."""
    acks = await leased(brokers)
    queue = brokers.two.coordinators.queues.find(TopicPartition("t", 1))
    assert queue is not None
    before = queue.partition.log.log_end_offset
    cut = asyncio.ensure_future(when(lambda: queue.partition.log.log_end_offset > before, brokers.cable.unlink))
    await brokers.with_time(execute(brokers.one, TransactionRequest("x", [], [Acknowledgement("s", acks)])))
    await cut
    await until_stable(brokers)
    assert (await brokers.two.queues.statistics.stats(CALLER, "s")).unsettled == 0
