"""The work of one request on the queues of many partitions takes turns. The test counts it in each turn of the loop."""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from conveyor.broker import slices
from conveyor.broker.broker_node import BrokerNode
from conveyor.broker.coordinators import queue_partitions
from conveyor.broker.coordinators.queue_partition import QueuePartition
from conveyor.broker.coordinators.queue_partitions import QueuePartitions
from conveyor.cluster.changes import SubscriptionRemoved
from conveyor.cluster.topic_creation import TopicRequest
from conveyor.queues.subscription.policy import StartPosition, Subscription
from tests.callers import CALLER
from tests.unit.broker.parts import propose

EARLIEST = StartPosition(kind="earliest")
PARTITIONS, IN_TURN = 12, 5


class Turns:
    """Counts the queues that are handled in each turn of the event loop."""

    def __init__(self) -> None:
        self.number = 0
        self.handled: Counter[int] = Counter()
        self._is_over = False
        self._next()

    def stop(self) -> None:
        self._is_over = True

    def _next(self) -> None:
        self.number += 1
        if not self._is_over:
            asyncio.get_running_loop().call_soon(self._next)


@contextmanager
def counted(monkeypatch: pytest.MonkeyPatch, name: str) -> Iterator[Turns]:
    """Count the calls of a method of QueuePartitions for a queue."""
    turns, method = Turns(), getattr(QueuePartitions, name)

    def call(queues: QueuePartitions, queue: QueuePartition, subscription: Subscription) -> Any:
        turns.handled[turns.number] += 1
        return method(queues, queue, subscription)

    with monkeypatch.context() as patch:
        patch.setattr(QueuePartitions, name, call)
        yield turns
    turns.stop()


@pytest.fixture
def few_in_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "SLICE_ASKS", IN_TURN)
    monkeypatch.setattr(queue_partitions, "SLICE_ASKS", IN_TURN)


@pytest.mark.usefixtures("few_in_a_turn")
async def test_work_on_the_queues_of_many_partitions_takes_turns(
    broker: BrokerNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    await broker.topics.create(CALLER, TopicRequest(name="many", partitions=PARTITIONS))
    lifecycle = broker.queues.lifecycle
    works: list[Callable[[], Coroutine[Any, Any, object]]] = [
        lambda: lifecycle.create(CALLER, "many", "s", EARLIEST, {}),
        lambda: lifecycle.seek(CALLER, "s", EARLIEST),
        lambda: lifecycle.seek(CALLER, "s", dict.fromkeys(range(PARTITIONS), 0)),
        lambda: lifecycle.purge(CALLER, "s"),
        lambda: lifecycle.change(CALLER, "s", {"max_deliveries": 3}),
        lambda: lifecycle.delete(CALLER, "s"),
    ]
    for work in works:
        with counted(monkeypatch, "notify") as turns:
            await work()
        assert turns.handled.total() == PARTITIONS
        assert max(turns.handled.values()) <= IN_TURN


@pytest.mark.usefixtures("few_in_a_turn")
async def test_policy_is_passed_to_the_queues_of_many_partitions_in_turns(
    broker: BrokerNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    await broker.topics.create(CALLER, TopicRequest(name="many", partitions=PARTITIONS))
    subscription = await broker.queues.lifecycle.create(CALLER, "many", "s", EARLIEST, {})
    with counted(monkeypatch, "_pass_policy") as turns:
        await broker.cluster.subscriptions.change(subscription, {"max_deliveries": 3})  # As another broker does.
        while turns.handled.total() < PARTITIONS:
            await broker.slices.turn()
    assert max(turns.handled.values()) <= IN_TURN


async def test_queues_forget_the_subscriptions_that_one_change_removes_in_turns(
    broker: BrokerNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    await broker.topics.create(CALLER, TopicRequest(name="two", partitions=2))
    created = [await broker.queues.lifecycle.create(CALLER, "two", f"s-{number}", EARLIEST, {}) for number in range(4)]
    with counted(monkeypatch, "notify") as turns:
        await propose(broker, *(SubscriptionRemoved(name=subscription.name) for subscription in created[1:]))
        for subscription in created:
            await broker.coordinators.queues.forgotten(subscription)
    assert list(turns.handled.values()) == [2, 2, 2]
