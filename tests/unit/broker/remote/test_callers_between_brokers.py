"""What a broker asks another one for a client carries that client; what it asks on its own account carries itself."""

import asyncio
from collections import defaultdict

import pytest

from conveyor.broker.broker_node import BrokerNode
from conveyor.broker.produce.outgoing_message import OutgoingMessage
from conveyor.broker.remote import answering
from conveyor.broker.remote.call_frames import Ask, Withdraw, decode_from_asker
from conveyor.broker.transaction_requests.transaction_request import Acknowledgement, TransactionRequest
from conveyor.cluster.image import TRANSACTIONS_TOPIC
from conveyor.cluster.topic_creation import TopicRequest
from conveyor.kernel.access.caller import HTTP, Caller, Principal, PrincipalType
from conveyor.kernel.errors import RequestError
from conveyor.kernel.ports import Bytes
from conveyor.queues.subscription.policy import StartPosition
from tests.callers import answer_of
from tests.unit.broker.markers.producers import until
from tests.unit.broker.two_brokers import ONE, TWO, TwoBrokers, two_brokers

ALICE = Caller(Principal(PrincipalType.USER, "alice"), "192.0.2.7", HTTP, 12)
EARLIEST = StartPosition(kind="earliest")

OWN_CALLS = {"queue.await", "registration-has-ended", "transactions.write_markers"}
"""Calls that no client stands behind: one wait serves several clients, and a coordinator ends transactions itself."""


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, set[Caller]]:
    """Return the callers of all calls that arrive, by the call's name."""
    callers: dict[str, set[Caller]] = defaultdict(set)

    def decode(frame: Bytes) -> Ask | Withdraw:
        call = decode_from_asker(frame)
        if isinstance(call, Ask):
            assert call.caller is not None
            callers[call.name].add(call.caller)
        return call

    monkeypatch.setattr(answering, "decode_from_asker", decode)
    return callers


async def use_queue(broker: BrokerNode) -> None:
    """Use every verb of a queue, on the partition that the other broker leads."""
    queues, name = broker.queues, "s"
    await queues.lifecycle.create(ALICE, "t", name, EARLIEST, {"max_deliveries": 1})
    await broker.produce.messages.publish(ALICE, "t", [OutgoingMessage(b"m", partition=1) for _ in range(4)])
    await queues.statistics.stats(ALICE, name)
    await queues.inspection.peek(ALICE, name, 10)
    await broker.fetch.browser.get(ALICE, "t", "1-0")
    await queues.inspection.message_states(ALICE, "t", "1-0")
    await broker.fetch.browser.browse(ALICE, "t", 1, EARLIEST, 10)
    leases = await queues.leases.lease(ALICE, name, 4, 0, None)
    assert len(leases) == 4
    first, second, third, fourth = (lease.ack_id for lease in leases)
    await answer_of(queues.settlements.extend, ALICE, name, [first], 60_000)
    await answer_of(queues.settlements.ack, ALICE, name, [first])
    await answer_of(queues.settlements.nack, ALICE, name, [second], 0)
    await answer_of(queues.settlements.reject, ALICE, name, [third], "bad")
    queues.leases.give_back(ALICE, name, [lease for lease in leases if lease.ack_id == fourth])
    await broker.queues.dead_letters.peek(ALICE, name, 10)
    await broker.queues.dead_letters.redrive.redrive(ALICE, name, message_ids=["1-0"])
    await broker.queues.dead_letters.redrive.redrive(ALICE, name, filter="true", message_ids=["1-0"])
    await broker.queues.dead_letters.redrive.redrive(ALICE, name)
    await queues.lifecycle.purge(ALICE, name)
    with pytest.raises(RequestError):
        await queues.delayed_messages.cancel(ALICE, "t", "1-0")


async def use_topics(brokers: TwoBrokers) -> None:
    request = TopicRequest(name="new", assignment={0: (TWO,)})
    await brokers.one.topics.create(ALICE, request)
    await brokers.settled()
    await brokers.one.topics.offsets.of(ALICE, "new", {0: TWO})


async def use_transaction(brokers: TwoBrokers) -> None:
    broker = brokers.one
    await broker.produce.messages.publish(ALICE, "t", [OutgoingMessage(b"m", partition=1)])
    [lease] = await broker.queues.leases.lease(ALICE, "s", 1, 0, None)
    messages = [("t", OutgoingMessage(b"r", partition=number)) for number in (0, 1)]
    request = TransactionRequest("once", messages, [Acknowledgement("s", [lease.ack_id])])
    await broker.transaction_requests.execute(ALICE, request)


async def test_a_call_for_a_client_carries_the_client(asked: dict[str, set[Caller]]) -> None:
    settings = {"transactions.state_partitions": 1, "transactions.state_replication_factor": 1}
    async with two_brokers(settings) as brokers:
        await brokers.create(TRANSACTIONS_TOPIC, TWO)
        asked.clear()
        await use_topics(brokers)
        await use_queue(brokers.one)
        await brokers.with_time(use_transaction(brokers))
    own = {name: asked.pop(name) for name in OWN_CALLS & asked.keys()}
    writer = Caller.broker(TWO)
    """Writes the dead letters of its partition, and may create their topic, on its own account."""
    assert {name: callers for name, callers in asked.items() if callers - {writer} != {ALICE}} == {}
    assert {"publish", "queue.lease", "queue.Acknowledge", "queue.begin", "topic-offsets", "caught-up"} <= asked.keys()
    assert {"queue.acknowledge_in_transaction", "queue.stats", "queue.Release"} <= asked.keys()
    assert {"queue.list_dead", "queue.find_dead", "queue.list_copies", "queue.find_copies"} <= asked.keys()
    assert set().union(*own.values()) <= {Caller.broker(ONE), writer}


async def test_a_call_of_the_broker_itself_carries_the_broker(asked: dict[str, set[Caller]]) -> None:
    async with two_brokers() as brokers:
        await brokers.one.queues.lifecycle.create(ALICE, "t", "s", EARLIEST, {})
        waiting = asyncio.ensure_future(brokers.one.queues.leases.lease(ALICE, "s", 1, 1_000, None))
        await until(lambda: bool(asked["queue.await"]))
        brokers.clock.advance(ms=1_000)
        assert await waiting == []
    assert asked["queue.await"] == {Caller.broker(ONE)}
