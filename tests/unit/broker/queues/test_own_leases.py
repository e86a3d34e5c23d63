"""A lease that asks many partitions. The tests count turns of the event loop, not time."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from conveyor.broker.broker_node import BrokerNode
from conveyor.broker.produce.outgoing_message import OutgoingMessage
from conveyor.broker.queues.leasing.own_leases import LeaseRequest, OwnLeases
from conveyor.cluster.topic_creation import TopicRequest
from conveyor.kernel.errors import RequestError
from conveyor.queues.queue_commands import LeasedMessage, LeaseMessages
from conveyor.queues.subscription.policy import StartPosition
from conveyor.records.message_attributes import PRIORITY
from tests.callers import CALLER
from tests.unit.broker.parts import Storage, running_parts
from tests.unit.queues.stage import subscription

PARTITIONS = 240


@pytest.fixture
async def broker(storage: Storage) -> AsyncIterator[BrokerNode]:
    """A broker with four subscriptions to a topic with a message in each partition."""
    async with running_parts(storage=storage) as running:
        await running.topics.create(CALLER, TopicRequest(name="t", partitions=PARTITIONS))
        for name in "abcd":
            await running.queues.lifecycle.create(CALLER, "t", name, StartPosition(kind="earliest"), {})
        messages = [OutgoingMessage(b"m", partition=number) for number in range(PARTITIONS)]
        await running.produce.messages.publish(CALLER, "t", messages)
        yield running


async def turns_of(broker: BrokerNode, *subscriptions: str) -> int:
    """Lease a message of each partition for several clients. Returns the turns of the loop until all are answered."""
    answers: list[list[LeasedMessage] | RequestError] = []
    for name in subscriptions:
        broker.queues.leases.take(CALLER, name, PARTITIONS, None, answers.append)
    turns = 0
    while len(answers) < len(subscriptions):
        await asyncio.sleep(0)
        turns += 1
    assert [len(answer) for answer in answers if not isinstance(answer, RequestError)] == [PARTITIONS] * len(answers)
    return turns


async def test_each_turn_of_the_loop_does_a_slice_of_one_request(broker: BrokerNode) -> None:
    alone = await turns_of(broker, "a")
    assert alone > 1
    assert await turns_of(broker, "b", "c", "d") >= 3 * alone


async def test_a_partition_that_was_asked_waits_behind_more_urgent_messages_of_others(broker: BrokerNode) -> None:
    messages = [
        OutgoingMessage(b"m", headers=((PRIORITY, str(priority).encode()),), partition=partition)
        for partition, priorities in enumerate(([9, 5, 3], [8, 4], [7, 6]))
        for priority in priorities
    ]
    await broker.produce.messages.publish(CALLER, "t", messages)
    leased = await broker.queues.leases.lease(CALLER, "a", 5, 0, None)
    urgent = [int(dict(lease.message.headers)[PRIORITY] or 0) for lease in leased]
    assert urgent == [9, 8, 7, 6, 5]


class Backlog:
    """A partition of which messages are left, as far as leases look at it."""

    is_stopped = False

    def __init__(self, number: int, count: int) -> None:
        self.number = number
        self.left = count
        available = SimpleNamespace(first_priority=lambda _: 4)
        self.machine: Any = SimpleNamespace(queue=lambda _: self)
        self.deliveries = SimpleNamespace(available=available)

    @property
    def has_messages(self) -> bool:
        return self.left > 0

    def submit(self, command: LeaseMessages, respond: Callable[[list[Any]], None]) -> None:
        taken = min(command.count, self.left)
        self.left -= taken
        respond([SimpleNamespace(message=SimpleNamespace(weight_bytes=1, partition=self.number))] * taken)


def own_leases(partitions: Sequence[Backlog], later: Callable[[Callable[[], None]], bool]) -> OwnLeases:
    parts: list[Any] = [
        SimpleNamespace(now_ms=lambda: 0), SimpleNamespace(current=lambda known: known),
        SimpleNamespace(of=lambda _: list(partitions)), SimpleNamespace(later=later),
    ]  # fmt: skip
    return OwnLeases(*parts)


def taken(own: OwnLeases, count: int) -> list[int]:
    """Return the partitions of the messages that a request leases."""
    answers: list[Any] = []
    own.take(LeaseRequest(CALLER, subscription(), count, 1_000), answers.append)
    (answer,) = answers
    return [leased.message.partition for leased in answer]


@pytest.mark.parametrize("numbers", [(0, 1, 2), (0, 3, 6), (1, 4, 7), (2, 5, 8)])
def test_partitions_take_turns_whichever_this_broker_leads(numbers: tuple[int, ...]) -> None:
    own = own_leases([Backlog(number, 100) for number in numbers], lambda _: True)
    assert [taken(own, 1)[0] for _ in range(6)] == [*numbers, *numbers]


def test_request_is_answered_with_what_it_has_when_the_broker_stops() -> None:
    own = own_leases([Backlog(number, 1) for number in range(PARTITIONS)], lambda _: False)
    assert taken(own, PARTITIONS) == list(range(50))
