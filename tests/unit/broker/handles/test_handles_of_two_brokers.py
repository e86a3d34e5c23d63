"""A handle is served by each broker of the cluster, also when answers are lost and coordinators move."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

import pytest

from conveyor.broker.broker_node import BrokerNode
from conveyor.broker.produce.outgoing_message import OutgoingMessage, PublishedMessage
from conveyor.cluster.image import TRANSACTIONS_TOPIC
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.queues.subscription.policy import StartPosition
from conveyor.transactions.transaction_commands import ListTransactions
from tests.unit.broker.transactions.producers import is_stable, until
from tests.unit.broker.two_brokers import ONE, TWO, TwoBrokers, two_brokers

TIMEOUT_MS = 60_000
EVERYWHERE = [OutgoingMessage(b"0", partition=0), OutgoingMessage(b"1", partition=1)]
Answer = TypeVar("Answer")


@pytest.fixture
async def brokers() -> AsyncIterator[TwoBrokers]:
    settings = {
        "transactions.state_partitions": 1,
        "transactions.state_replication_factor": 1,
        "producers.max_producers_per_partition": 10,
    }
    async with two_brokers(settings) as both:
        _share_the_store(both)
        await both.create(TRANSACTIONS_TOPIC, ONE)
        yield both


def _share_the_store(brokers: TwoBrokers) -> None:
    """Let both sign handles with the same key."""
    brokers.two.handle_transactions._key = brokers.one.handle_transactions._key


async def values(brokers: TwoBrokers) -> list[bytes | None]:
    leaders = (brokers.one, brokers.two)
    stored = [await leader.message_browser.browse("t", number, 0, 100) for number, leader in enumerate(leaders)]
    return [message.value for messages in stored for message in messages]


async def publish(broker: BrokerNode, handle: str) -> None:
    results = await broker.handle_transactions.publish(handle, "t", EVERYWHERE)
    assert all(isinstance(result, PublishedMessage) for result in results), results


async def with_time(brokers: TwoBrokers, ask: Awaitable[Answer]) -> Answer:
    """Let time pass until there is an answer."""
    waiting = asyncio.ensure_future(ask)
    while not waiting.done():
        await asyncio.sleep(0.001)
        brokers.clock.advance(ms=50)
    return await waiting


async def until_stable(brokers: TwoBrokers) -> None:
    """Let time pass until all markers are written."""

    async def stable() -> None:
        for number, leader in enumerate((brokers.one, brokers.two)):
            partition = leader.partitions.find("t", number)
            await until(lambda partition=partition: is_stable(partition))  # type: ignore[misc]

    await with_time(brokers, stable())


async def in_the_turn_of(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds, and go on before any other task sees it for long."""
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 - a pause would be too long
            await asyncio.sleep(0)


async def lose_answer(brokers: TwoBrokers, begin: Callable[[], Awaitable[Answer]], done: Callable[[], bool]) -> Answer:
    """Cut the links of the brokers when the other one has done what it was asked, and before it answers."""
    waiting = asyncio.ensure_future(begin())
    await in_the_turn_of(done)
    brokers.cable.unlink()
    return await waiting


@pytest.mark.parametrize("commit", [True, False])
async def test_handle_of_one_broker_is_served_by_the_other(brokers: TwoBrokers, commit: bool) -> None:
    for gives, serves in ((brokers.one, brokers.two), (brokers.two, brokers.one)):
        handle = await gives.handle_transactions.begin(TIMEOUT_MS)
        await publish(serves, handle)
        await publish(gives, handle)
        await serves.handle_transactions.finish(handle, commit=commit)
        await gives.handle_transactions.finish(handle, commit=commit)
    assert await values(brokers) == ([b"0"] * 4 + [b"1"] * 4 if commit else [])


async def test_producer_is_taken_back_after_an_end_elsewhere(brokers: TwoBrokers) -> None:
    handle = await brokers.two.handle_transactions.begin(TIMEOUT_MS)
    await publish(brokers.one, handle)
    await brokers.one.handle_transactions.finish(handle, commit=True)
    await until(lambda: brokers.two.handle_transactions.slots.used_count == 0)
    assert await values(brokers) == [b"0", b"1"]


async def test_producer_is_taken_back_when_the_timeout_has_passed(brokers: TwoBrokers) -> None:
    """The broker that lent it has not heard of the end. It does not undo a commit."""
    handle = await brokers.two.handle_transactions.begin(TIMEOUT_MS)
    networks = dict(brokers.cable.networks)
    brokers.cable.unplug(TWO)
    await brokers.one.handle_transactions.finish(handle, commit=True)
    await with_time(brokers, asyncio.sleep(0.01))
    brokers.cable.networks.update(networks)
    assert brokers.two.handle_transactions.slots.used_count == 1
    brokers.clock.advance(ms=TIMEOUT_MS)
    await until(lambda: brokers.two.handle_transactions.slots.used_count == 0)
    await brokers.one.handle_transactions.finish(handle, commit=True)


async def test_coordinator_aborts_the_transaction_of_a_broker_that_fails(brokers: TwoBrokers) -> None:
    handle = await brokers.two.handle_transactions.begin(TIMEOUT_MS)
    await publish(brokers.one, handle)
    brokers.two.handle_transactions.stop()
    brokers.clock.advance(ms=TIMEOUT_MS)
    with pytest.raises(RequestError) as refused:
        await with_time(brokers, brokers.one.handle_transactions.finish(handle, commit=True))
    assert refused.value.kind is ErrorKind.TRANSACTION_ABORTED
    assert await values(brokers) == []


async def test_lost_answer_to_a_commit_is_asked_for_again(brokers: TwoBrokers) -> None:
    handle = await brokers.two.handle_transactions.begin(TIMEOUT_MS)
    await publish(brokers.two, handle)

    def is_decided() -> bool:
        return brokers.one.transactions.state_counts().total() == 1 and not _is_open(brokers)

    await lose_answer(brokers, lambda: with_time(brokers, _finish(brokers.two, handle)), is_decided)
    assert await values(brokers) == [b"0", b"1"]


async def test_lost_answer_to_a_publication_aborts_the_transaction(brokers: TwoBrokers) -> None:
    handle = await brokers.one.handle_transactions.begin(TIMEOUT_MS)
    there = brokers.two.partitions.find("t", 1)
    with pytest.raises(RequestError) as refused:
        await lose_answer(
            brokers,
            lambda: brokers.one.handle_transactions.publish(handle, "t", EVERYWHERE),
            lambda: there.log.log_end_offset > 0,
        )
    assert refused.value.kind is ErrorKind.TRANSACTION_OUTCOME_UNKNOWN
    assert refused.value.message.endswith("it was aborted: begin a new one")
    with pytest.raises(RequestError) as refused:
        await brokers.two.handle_transactions.finish(handle, commit=True)
    assert refused.value.kind is ErrorKind.TRANSACTION_ABORTED
    assert await values(brokers) == []


async def test_batch_whose_answer_is_lost_is_not_published(brokers: TwoBrokers) -> None:
    there = brokers.two.partitions.find("t", 1)
    with pytest.raises(RequestError) as refused:
        await lose_answer(
            brokers,
            lambda: brokers.one.handle_transactions.publish_all_or_none([("t", message) for message in EVERYWHERE]),
            lambda: there.log.log_end_offset > 0,
        )
    assert refused.value.kind is ErrorKind.COORDINATOR_NOT_AVAILABLE
    assert await values(brokers) == []


async def test_batch_whose_commit_is_not_answered_can_be_asked_for(brokers: TwoBrokers) -> None:
    """Its coordinator is cut off when all its messages are stored."""
    there = brokers.two.partitions.find("t", 1)
    networks = dict(brokers.cable.networks)

    def cut() -> bool:
        if there.high_watermark == 0 or not _is_open(brokers):
            return False
        brokers.cable.unplug(ONE)
        return True

    waiting = asyncio.ensure_future(
        brokers.two.handle_transactions.publish_all_or_none([("t", OutgoingMessage(b"1", partition=1))])
    )
    await in_the_turn_of(cut)
    with pytest.raises(RequestError) as refused:
        await with_time(brokers, waiting)
    assert refused.value.kind is ErrorKind.TRANSACTION_OUTCOME_UNKNOWN
    handle = refused.value.message.split("/transactions/")[1].split("/commit")[0]
    brokers.cable.networks.update(networks)
    await with_time(brokers, brokers.two.handle_transactions.finish(handle, commit=True))
    await until_stable(brokers)
    assert await values(brokers) == [b"1"]


async def test_transaction_is_unknown_to_a_coordinator_that_has_lost_it(brokers: TwoBrokers) -> None:
    handle = await brokers.two.handle_transactions.begin(TIMEOUT_MS)
    await publish(brokers.two, handle)
    await brokers.move(TRANSACTIONS_TOPIC, 0, TWO)
    for commit in (True, False):
        with pytest.raises(RequestError) as refused:
            await with_time(brokers, brokers.one.handle_transactions.finish(handle, commit=commit))
        assert refused.value.kind is ErrorKind.UNKNOWN_TRANSACTION
    assert await values(brokers) == []


async def test_end_waits_for_a_new_coordinator(brokers: TwoBrokers) -> None:
    handle = await brokers.one.handle_transactions.begin(TIMEOUT_MS)
    await publish(brokers.one, handle)
    networks = dict(brokers.cable.networks)
    brokers.cable.unplug(ONE)
    with pytest.raises(RequestError) as refused:
        await with_time(brokers, brokers.two.handle_transactions.finish(handle, commit=True))
    assert refused.value.kind is ErrorKind.TRANSACTION_OUTCOME_UNKNOWN
    brokers.cable.networks.update(networks)
    await with_time(brokers, brokers.two.handle_transactions.finish(handle, commit=True))
    await brokers.one.handle_transactions.finish(handle, commit=True)
    assert len(await brokers.one.transactions.list_transactions(ListTransactions())) == 1


async def _finish(broker: BrokerNode, handle: str) -> None:
    await broker.handle_transactions.finish(handle, commit=True)


def _is_open(brokers: TwoBrokers) -> bool:
    return any(state.name == "ONGOING" and count for state, count in brokers.one.transactions.state_counts().items())


@pytest.mark.parametrize("commit", [True, False])
async def test_acks_reach_the_leaders_of_their_partitions(brokers: TwoBrokers, commit: bool) -> None:
    await brokers.one.subscription_lifecycle.create("t", "s", StartPosition(kind="earliest"), {})
    await brokers.one.message_publisher.publish("t", EVERYWHERE)
    for gives, serves in ((brokers.one, brokers.two), (brokers.two, brokers.one)):
        handle = await gives.handle_transactions.begin(TIMEOUT_MS)
        leases = [lease for _ in range(2) for lease in await serves.leases.lease("s", 10, 0, None)]
        ack_ids = [lease.ack_id for lease in leases]
        assert {lease.message.message_id[0] for lease in leases} == {"0", "1"}
        await serves.handle_transactions.ack(handle, "s", ack_ids)
        await gives.handle_transactions.ack(handle, "s", ack_ids)
        assert (await serves.subscription_statistics.stats("s")).pending == len(leases)
        await serves.handle_transactions.finish(handle, commit=commit)
        await until_stable(brokers)
        stats = await gives.subscription_statistics.stats("s")
        assert (stats.unsettled, stats.pending) == (0 if commit else 2, 0)
        await brokers.one.message_publisher.publish("t", EVERYWHERE if commit else [])


async def test_lost_answer_to_an_ack_is_asked_for_again(brokers: TwoBrokers) -> None:
    await brokers.one.subscription_lifecycle.create("t", "s", StartPosition(kind="earliest"), {})
    await brokers.one.message_publisher.publish("t", EVERYWHERE[1:])
    (lease,) = await brokers.one.leases.lease("s", 10, 0, None)
    handle = await brokers.one.handle_transactions.begin(TIMEOUT_MS)
    queue = brokers.two.queue_partitions.running("t", 1)
    assert queue is not None

    def is_pending() -> bool:
        return queue.state.log.log_end_offset > before

    before = queue.state.log.log_end_offset
    await lose_answer(
        brokers,
        lambda: with_time(brokers, brokers.one.handle_transactions.ack(handle, "s", [lease.ack_id])),
        is_pending,
    )
    await with_time(brokers, brokers.one.handle_transactions.finish(handle, commit=True))
    await until_stable(brokers)
    assert (await brokers.two.subscription_statistics.stats("s")).unsettled == 0


async def test_refused_ack_aborts_the_transaction_on_every_broker(brokers: TwoBrokers) -> None:
    await brokers.one.subscription_lifecycle.create("t", "s", StartPosition(kind="earliest"), {})
    await brokers.one.message_publisher.publish("t", EVERYWHERE)
    leases = [lease for _ in range(2) for lease in await brokers.two.leases.lease("s", 10, 0, None)]
    handle = await brokers.one.handle_transactions.begin(TIMEOUT_MS)
    await publish(brokers.two, handle)
    await brokers.one.settlements.nack("s", [leases[0].ack_id], 60_000)
    with pytest.raises(RequestError) as refused:
        await brokers.two.handle_transactions.ack(handle, "s", [lease.ack_id for lease in leases])
    assert refused.value.kind is ErrorKind.LEASE_LOST
    await until_stable(brokers)
    assert await values(brokers) == [b"0", b"1"]
    assert (await brokers.one.subscription_statistics.stats("s")).pending == 0
    with pytest.raises(RequestError) as refused:
        await brokers.one.handle_transactions.finish(handle, commit=True)
    assert refused.value.kind is ErrorKind.TRANSACTION_ABORTED
