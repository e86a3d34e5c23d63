"""Leases through another broker than the leader: what does not fit into the answer is neither lost nor counted."""

from collections.abc import AsyncIterator

import pytest

from conveyor.broker.broker_node import BrokerNode
from conveyor.broker.produce.outgoing_message import OutgoingMessage
from conveyor.broker.queues.leasing import own_leases
from conveyor.broker.queues.leasing.remote_leases import LEASE
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.queues.subscription.policy import StartPosition
from tests.callers import CALLER
from tests.unit.broker.two_brokers import ONE, TwoBrokers, two_brokers

EARLIEST = StartPosition(kind="earliest")
TOGETHER_BYTES, ANSWER_BYTES = 10_000, 20_000


@pytest.fixture
async def brokers(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[TwoBrokers]:
    """Both brokers, with small limits. Broker 1 leads both partitions of topic `large`, which `s` subscribes to."""
    monkeypatch.setattr(own_leases, "_MAX_BYTES", TOGETHER_BYTES)
    monkeypatch.setattr(LEASE, "_max_bytes", ANSWER_BYTES)
    async with two_brokers() as both:
        await both.create("large", ONE, ONE)
        await both.one.queues.lifecycle.create(CALLER, "large", "s", EARLIEST, {"max_deliveries": 1})
        yield both


async def publish(brokers: TwoBrokers, *messages: tuple[int, int]) -> None:
    """Publish messages of a partition and a size each."""
    outgoing = [OutgoingMessage(bytes(size), partition=number) for number, size in messages]
    await brokers.one.produce.messages.publish(CALLER, "large", outgoing)


async def lease(brokers: TwoBrokers, broker: BrokerNode) -> list[tuple[str, int]]:
    """Return the ids and the delivery counts of the leased messages."""
    leases = await brokers.with_time(broker.queues.leases.lease(CALLER, "s", 10, 0, None))
    return [(lease.message.message_id, lease.delivery_count) for lease in leases]


@pytest.mark.parametrize("numbers", [(0, 0), (0, 1)])
async def test_messages_that_do_not_fit_together_are_leased_one_after_the_other(
    brokers: TwoBrokers, numbers: tuple[int, int]
) -> None:
    await publish(brokers, *[(number, TOGETHER_BYTES - 1) for number in numbers])
    leased = [await lease(brokers, brokers.two) for _ in numbers]
    assert sorted(leased) == [[("0-0", 1)], [("0-1" if numbers == (0, 0) else "1-0", 1)]]


async def test_message_that_does_not_fit_alone_is_told_and_left_to_the_clients_of_its_leader(
    brokers: TwoBrokers, caplog: pytest.LogCaptureFixture
) -> None:
    await publish(brokers, (0, ANSWER_BYTES), (0, 1))
    with pytest.raises(RequestError, match="ask the broker that leads the partition") as refused:
        await lease(brokers, brokers.two)
    assert refused.value.kind is ErrorKind.MESSAGE_TOO_LARGE
    assert [record.getMessage() for record in caplog.records if "too large" in record.message] == [
        "messages too large for a lease through another broker subscription=s topic=large messages=0-0"
    ]
    assert await lease(brokers, brokers.two) == [("0-1", 1)]
    brokers.clock.advance(seconds=30)
    assert (await lease(brokers, brokers.one))[0] == ("0-0", 1)
    assert (await brokers.one.queues.statistics.stats(CALLER, "s")).dead == 0
