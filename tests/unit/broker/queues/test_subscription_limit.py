"""`broker.max_subscription_partitions` limits the partitions that all subscriptions have together."""

from collections.abc import Coroutine
from typing import Any

import pytest

from conveyor.broker.broker_node import BrokerNode
from conveyor.cluster.topic_creation import TopicRequest
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.queues.subscription.policy import StartPosition
from tests.callers import CALLER
from tests.unit.broker.parts import Storage, running_parts

EARLIEST = StartPosition(kind="earliest")
LIMIT = {"broker.max_subscription_partitions": 5}
ADVICE = r"broker\.max_subscription_partitions is 5: delete subscriptions, or raise the limit"


async def subscribe(broker: BrokerNode, topic: str, name: str) -> None:
    await broker.queues.lifecycle.create(CALLER, topic, name, EARLIEST, {})


async def refused(kind: ErrorKind, work: Coroutine[Any, Any, object]) -> bool:
    with pytest.raises(RequestError) as error:
        await work
    return error.value.kind is kind


async def test_subscription_above_the_limit_is_refused_and_leaves_nothing(storage: Storage) -> None:
    async with running_parts(LIMIT, storage) as broker:
        await broker.topics.create(CALLER, TopicRequest(name="t", partitions=2))
        await broker.topics.create(CALLER, TopicRequest(name="one"))
        await broker.topics.create(CALLER, TopicRequest(name="other", partitions=2))
        for name in ("a", "b"):
            await subscribe(broker, "t", name)
        with pytest.raises(RequestError, match=f"with 2 more there would be 6 .*, {ADVICE}"):
            await subscribe(broker, "other", "c")
        assert "__queue_state.other" not in broker.metadata.image.topics
        await subscribe(broker, "one", "c")
    async with running_parts(LIMIT, storage) as broker:
        assert await refused(ErrorKind.POLICY_VIOLATION, subscribe(broker, "one", "d"))
        assert await refused(ErrorKind.SUBSCRIPTION_ALREADY_EXISTS, subscribe(broker, "t", "a"))
        await broker.queues.lifecycle.change(CALLER, "a", {"max_deliveries": 3})
        await broker.queues.lifecycle.delete(CALLER, "c")
        await subscribe(broker, "one", "d")
        assert await refused(ErrorKind.POLICY_VIOLATION, subscribe(broker, "one", "e"))
        await broker.topics.delete(CALLER, "t")
        for name in ("e", "f", "g", "h"):
            await subscribe(broker, "one", name)
        assert await refused(ErrorKind.POLICY_VIOLATION, subscribe(broker, "one", "i"))


async def test_topic_with_subscriptions_gets_no_partitions_above_the_limit(storage: Storage) -> None:
    async with running_parts(LIMIT, storage) as broker:
        await broker.topics.create(CALLER, TopicRequest(name="t"))
        for name in ("a", "b"):
            await subscribe(broker, "t", name)
        await broker.topics.add_partitions(CALLER, "t", 2, None)
        assert await refused(ErrorKind.INVALID_PARTITIONS, broker.topics.add_partitions(CALLER, "t", 3, None))
        with pytest.raises(RequestError, match=f"with 2 more there would be 6 .*, {ADVICE}"):
            broker.topics.check_partitions("t", 3, None)
        await broker.topics.create(CALLER, TopicRequest(name="unread"))
        await broker.topics.add_partitions(CALLER, "unread", 9, None)
        await broker.queues.lifecycle.delete(CALLER, "a")
        await broker.topics.add_partitions(CALLER, "t", 5, None)
        assert await refused(ErrorKind.POLICY_VIOLATION, subscribe(broker, "t", "a"))
