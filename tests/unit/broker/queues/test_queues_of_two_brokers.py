"""Subscriptions of a topic whose partitions two brokers lead: any broker leases, settles and changes all of it."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from conveyor.broker.broker_node import BrokerNode
from conveyor.broker.coordinators.queue_partition import QueuePartition
from conveyor.broker.produce.outgoing_message import OutgoingMessage
from conveyor.broker.queues.leasing.leases import turn_of
from conveyor.cluster.image import NO_LEADER
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.ids import NodeId, TopicPartition
from conveyor.queues.queue_commands import Consumer, LeasedMessage
from conveyor.queues.subscription.policy import StartPosition
from tests.callers import ALICE, CALLER, answer_of
from tests.unit.broker.two_brokers import ONE, TWO, TwoBrokers, two_brokers

EARLIEST = StartPosition(kind="earliest")


@pytest.fixture
async def brokers() -> AsyncIterator[TwoBrokers]:
    """Both brokers, with the subscription `s` of topic `t`."""
    async with two_brokers() as both:
        await both.one.queues.lifecycle.create(CALLER, "t", "s", EARLIEST, {})
        yield both


async def publish(broker: BrokerNode, *partitions: int) -> None:
    await broker.produce.messages.publish(
        CALLER, "t", [OutgoingMessage(b"m", partition=number) for number in partitions]
    )


async def lease(broker: BrokerNode, count: int = 10, wait_ms: int = 0) -> list[LeasedMessage]:
    return await broker.queues.leases.lease(CALLER, "s", count, wait_ms, None)


def ids(leases: list[LeasedMessage]) -> list[str]:
    return [lease.message.message_id for lease in leases]


async def consumer_of(broker: BrokerNode, message_id: str) -> Consumer | None:
    return (await broker.queues.inspection.message_states(CALLER, "t", message_id))["s"].consumer


async def rest() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


async def test_any_broker_leases_and_settles_messages_of_all_partitions(brokers: TwoBrokers) -> None:
    await publish(brokers.two, 0, 1)
    here, there = await lease(brokers.one), await lease(brokers.one)
    assert (ids(here), ids(there)) == (["0-0"], ["1-0"])
    assert await lease(brokers.two) == []
    acked = await answer_of(
        brokers.two.queues.settlements.ack, CALLER, "s", [here[0].ack_id, there[0].ack_id, "nonsense"]
    )
    assert [error and error.kind for error in acked] == [None, None, ErrorKind.INVALID_ACK_ID]
    again = await answer_of(brokers.one.queues.settlements.ack, CALLER, "s", [here[0].ack_id, there[0].ack_id])
    assert again == [None, None]


@pytest.mark.parametrize("first", [0, 1])
async def test_other_verbs_reach_the_leader(brokers: TwoBrokers, first: int) -> None:
    broker = (brokers.one, brokers.two)[first]
    await publish(broker, 1 - first)
    (leased,) = await lease(broker)
    settlements = broker.queues.settlements
    assert await answer_of(settlements.extend, CALLER, "s", [leased.ack_id], 60_000) == [None]
    assert await answer_of(settlements.nack, CALLER, "s", [leased.ack_id], 0) == [None]
    (lost,) = await answer_of(settlements.ack, CALLER, "s", [leased.ack_id])
    assert lost is not None
    assert lost.kind is ErrorKind.LEASE_LOST
    (again,) = await lease(broker)
    assert again.delivery_count == 2
    assert await answer_of(settlements.reject, CALLER, "s", [again.ack_id], "bad") == [None]


async def test_leader_that_answers_for_other_messages_fails_the_request_alone(
    brokers: TwoBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def ask_nothing(_: QueuePartition, command: object) -> tuple[()]:
        return ()

    await publish(brokers.two, 1)
    (leased,) = await lease(brokers.one)
    monkeypatch.setattr(QueuePartition, "ask", ask_nothing)
    with pytest.raises(RequestError) as refused:
        await asyncio.wait_for(answer_of(brokers.one.queues.settlements.ack, CALLER, "s", [leased.ack_id]), 5)
    assert refused.value.kind is ErrorKind.UNSUPPORTED_VERSION


async def test_waiting_request_gets_a_message_that_another_broker_receives(brokers: TwoBrokers) -> None:
    waiting = asyncio.ensure_future(lease(brokers.one, wait_ms=20_000))
    await rest()
    await publish(brokers.two, 1)
    assert ids(await waiting) == ["1-0"]


async def test_each_waiting_request_gets_one_of_another_brokers_messages(brokers: TwoBrokers) -> None:
    waiting = [asyncio.ensure_future(lease(brokers.one, 1, wait_ms=20_000)) for _ in range(3)]
    await rest()
    await publish(brokers.two, 1, 1, 1)
    assert sorted(message_id for leases in await asyncio.gather(*waiting) for message_id in ids(leases)) == [
        "1-0",
        "1-1",
        "1-2",
    ]


async def test_no_message_is_leased_to_a_request_that_has_gone(brokers: TwoBrokers) -> None:
    waiting = asyncio.ensure_future(lease(brokers.one, wait_ms=20_000))
    await rest()
    waiting.cancel()
    await rest()
    await publish(brokers.two, 1)
    (leased,) = await lease(brokers.two)
    assert leased.delivery_count == 1


async def test_leases_of_a_request_that_is_cancelled_are_given_back(brokers: TwoBrokers) -> None:
    await publish(brokers.two, 1)
    asked = asyncio.ensure_future(lease(brokers.one))
    for _ in range(4):
        await asyncio.sleep(0)
    asked.cancel()
    await rest()
    leases = await lease(brokers.two, wait_ms=20_000)
    assert (ids(leases), leases[0].delivery_count) == (["1-0"], 1)


async def test_leases_that_reached_no_client_are_given_back_to_their_leader(brokers: TwoBrokers) -> None:
    await publish(brokers.two, 1)
    leases = await lease(brokers.one)
    brokers.one.queues.leases.give_back(CALLER, "s", leases)
    (again,) = await lease(brokers.two, wait_ms=20_000)
    assert again.delivery_count == 1


async def test_messages_of_other_brokers_are_not_left_behind(brokers: TwoBrokers) -> None:
    await publish(brokers.one, *[0] * 20, 1)
    seen = [message_id for _ in range(8) for message_id in ids(await lease(brokers.one, 1))]
    assert "1-0" in seen


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7, 8])
def test_each_other_broker_has_its_turn_to_be_asked_first(count: int) -> None:
    others = [NodeId(number) for number in range(2, 2 + count)]
    turns = [turn_of(number, others) for number in range(8 * count)]
    assert all(sorted(order) == others for order, _ in turns)
    for are_first in (True, False):
        assert {order[0] for order, is_first in turns if is_first is are_first} == set(others)


async def test_late_acknowledgement_after_a_failover_is_refused(brokers: TwoBrokers) -> None:
    await publish(brokers.one, 1)
    (leased,) = await lease(brokers.one)
    await brokers.move("t", 1, ONE)
    await publish(brokers.one, 1)
    (newer,) = await lease(brokers.two)
    assert newer.message.message_id == leased.message.message_id
    (late,) = await answer_of(brokers.two.queues.settlements.ack, CALLER, "s", [leased.ack_id])
    assert late is not None
    assert late.kind is ErrorKind.LEASE_LOST
    assert await answer_of(brokers.two.queues.settlements.ack, CALLER, "s", [newer.ack_id]) == [None]


async def test_waiting_request_follows_the_leader(brokers: TwoBrokers) -> None:
    await brokers.create("u", ONE)
    await brokers.one.queues.lifecycle.create(CALLER, "u", "v", EARLIEST, {})
    waiting = asyncio.ensure_future(brokers.one.queues.leases.lease(CALLER, "v", 1, 20_000, None))
    await rest()
    await brokers.move("u", 0, TWO)
    await rest()
    await brokers.two.produce.messages.publish(CALLER, "u", [OutgoingMessage(b"m")])
    assert ids(await waiting) == ["0-0"]


async def test_broker_that_leads_nothing_serves_its_clients(brokers: TwoBrokers) -> None:
    await far_subscription(brokers)
    await brokers.one.produce.messages.publish(CALLER, "far", [OutgoingMessage(b"m")])
    (leased,) = await brokers.one.queues.leases.lease(CALLER, "f", 1, 0, None)
    assert await answer_of(brokers.one.queues.settlements.ack, CALLER, "f", [leased.ack_id]) == [None]


async def far_subscription(brokers: TwoBrokers) -> None:
    """The subscription `f` of a topic that only broker 2 leads."""
    await brokers.create("far", TWO)
    await brokers.one.queues.lifecycle.create(CALLER, "far", "f", EARLIEST, {})


@pytest.mark.parametrize("wait_ms", [0, 20_000])
async def test_lease_without_any_leader_is_refused(brokers: TwoBrokers, wait_ms: int) -> None:
    await far_subscription(brokers)
    brokers.cable.unplug(TWO)
    waiting = asyncio.ensure_future(brokers.one.queues.leases.lease(CALLER, "f", 1, wait_ms, None))
    while not waiting.done():
        await rest()
        brokers.clock.advance(seconds=1)
    with pytest.raises(RequestError, match="broker 2 ") as refused:
        await waiting
    assert refused.value.kind is ErrorKind.NOT_LEADER


async def test_lease_is_refused_if_the_only_leader_is_deposed_while_it_is_asked(brokers: TwoBrokers) -> None:
    await far_subscription(brokers)
    assert await brokers.one.queues.leases.lease(CALLER, "f", 1, 0, None) == []
    brokers.cable.lose_frames()
    waiting = asyncio.ensure_future(brokers.one.queues.leases.lease(CALLER, "f", 1, 0, None))
    await rest()
    await brokers.move("far", 0, NO_LEADER)
    with pytest.raises(RequestError) as refused:
        await brokers.with_time(waiting)
    assert refused.value.kind is ErrorKind.NOT_LEADER


async def test_lease_of_a_topic_that_nobody_leads_is_refused(brokers: TwoBrokers) -> None:
    await far_subscription(brokers)
    await brokers.move("far", 0, NO_LEADER)
    with pytest.raises(RequestError, match="no broker leads topic 'far'") as refused:
        await brokers.one.queues.leases.lease(CALLER, "f", 1, 0, None)
    assert refused.value.kind is ErrorKind.NOT_LEADER


async def test_waiting_request_waits_for_a_leader(brokers: TwoBrokers) -> None:
    await far_subscription(brokers)
    brokers.cable.unplug(TWO)
    waiting = asyncio.ensure_future(brokers.one.queues.leases.lease(CALLER, "f", 1, 20_000, None))
    await rest()
    await brokers.move("far", 0, ONE)
    await brokers.one.produce.messages.publish(CALLER, "far", [OutgoingMessage(b"m")])
    assert ids(await waiting) == ["0-0"]


async def test_lease_is_empty_while_one_leader_of_several_cannot_be_reached(brokers: TwoBrokers) -> None:
    brokers.cable.unplug(TWO)
    assert await lease(brokers.one) == []


async def test_policy_changes_reach_the_queues_of_all_brokers(brokers: TwoBrokers) -> None:
    await brokers.one.queues.lifecycle.pause(CALLER, "s")
    await publish(brokers.one, 0, 1)
    assert await lease(brokers.two) == []
    await brokers.two.queues.lifecycle.resume(CALLER, "s")
    await rest()
    assert ids(await lease(brokers.two)) == ["1-0"]
    assert ids(await lease(brokers.two)) == ["0-0"]


async def test_deleted_subscription_is_forgotten_by_all_brokers(brokers: TwoBrokers) -> None:
    assert brokers.two.coordinators.queues.find(TopicPartition("t", 1)) is not None
    subscription = brokers.one.cluster.subscriptions.existing("s")
    await brokers.one.queues.lifecycle.delete(CALLER, "s")
    await brokers.two.coordinators.queues.forgotten(subscription)
    assert brokers.two.coordinators.queues.find(TopicPartition("t", 1)) is None
    with pytest.raises(RequestError, match="subscription 's' does not exist"):
        await lease(brokers.two)


async def test_repeated_call_to_begin_a_subscription_resurrects_no_acknowledged_message(brokers: TwoBrokers) -> None:
    """A leader that has seen the new subscription may lease its messages before the call arrives."""
    await publish(brokers.one, 1)
    (leased,) = await lease(brokers.one)
    await answer_of(brokers.one.queues.settlements.ack, CALLER, "s", [leased.ack_id])
    subscription = brokers.one.cluster.subscriptions.existing("s")
    await brokers.one.queues.lifecycle._calls.begin(CALLER, subscription, 1)
    assert await lease(brokers.one) == []


async def test_subscription_seeks_and_is_purged_in_all_partitions(brokers: TwoBrokers) -> None:
    await publish(brokers.one, 0, 1, 1)
    assert await brokers.one.queues.lifecycle.purge(CALLER, "s") == 3
    assert await lease(brokers.two) == []
    await brokers.one.queues.lifecycle.seek(CALLER, "s", {1: 1})
    assert ids(await lease(brokers.one)) == ["1-1"]
    with pytest.raises(RequestError, match="partition 1 has offsets 0 to 2, not 9"):
        await brokers.one.queues.lifecycle.seek(CALLER, "s", {1: 9})


async def test_statistics_are_those_of_all_brokers(brokers: TwoBrokers) -> None:
    await publish(brokers.one, 0, 1, 1, 1)
    (first, *_) = await brokers.two.queues.leases.lease(CALLER, "s", 2, 0, None)
    await answer_of(brokers.one.queues.settlements.ack, CALLER, "s", [first.ack_id])
    for broker in (brokers.one, brokers.two):
        stats = await broker.queues.statistics.stats(CALLER, "s")
        assert (stats.depth, stats.in_flight, stats.unsettled, stats.acked) == (2, 1, 3, 1)


async def test_statistics_without_one_leader_are_refused(brokers: TwoBrokers) -> None:
    brokers.cable.unplug(TWO)
    with pytest.raises(RequestError, match="broker 2 refuses the connection") as refused:
        await brokers.one.queues.statistics.stats(CALLER, "s")
    assert refused.value.kind is ErrorKind.NOT_LEADER


async def test_lease_through_another_broker_names_its_client(brokers: TwoBrokers) -> None:
    """Both brokers show who it is, whichever of them leads the partition."""
    await publish(brokers.one, 0, 1)
    leases = brokers.one.queues.leases
    taken = [await leases.lease(ALICE, "s", 1, wait_ms, None, client_id="worker-1") for wait_ms in (0, 1_000)]
    assert [ids(messages) for messages in taken] == [["0-0"], ["1-0"]]
    for broker in (brokers.one, brokers.two):
        for message_id in ("0-0", "1-0"):
            assert await consumer_of(broker, message_id) == Consumer("User:alice", "worker-1", "192.0.2.7")
        peeked = await broker.queues.inspection.peek(CALLER, "s", 10)
        assert [each.state.consumer and each.state.consumer.client_id for each in peeked] == ["worker-1"] * 2
