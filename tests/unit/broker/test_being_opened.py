"""Requests for a topic that the metadata shows, and whose partitions are not open yet, wait and succeed."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest

from conveyor.broker.broker_node import BrokerNode
from conveyor.broker.produce.outgoing_message import OutgoingMessage, PublishedMessage
from conveyor.cluster.image import ClusterImage
from conveyor.cluster.topic_creation import TopicRequest
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.ports import StoreOperation
from conveyor.queues.subscription.policy import StartPosition
from conveyor.testing.memory_store import MemoryStore
from tests.callers import CALLER
from tests.unit.broker.parts import Storage, running_parts

EARLIEST = StartPosition(kind="earliest")
Answer = TypeVar("Answer")


async def once_shown(broker: BrokerNode, topic: str, work: Callable[[], Awaitable[Answer]]) -> Answer:
    """Create a topic, and start some work as soon as the metadata shows the topic."""
    begun: list[asyncio.Future[Answer]] = []

    def observe(_old: ClusterImage, new: ClusterImage) -> None:
        if topic in new.topics and not begun:
            begun.append(asyncio.ensure_future(work()))

    broker.metadata.listen(observe)
    await broker.topics.create(CALLER, TopicRequest(name=topic, partitions=4))
    return await begun[0]


async def test_publishing(broker: BrokerNode) -> None:
    [result] = await once_shown(
        broker, "new", lambda: broker.produce.messages.publish(CALLER, "new", [OutgoingMessage(b"payload")])
    )
    assert isinstance(result, PublishedMessage)


async def test_browsing(broker: BrokerNode) -> None:
    assert await once_shown(broker, "new", lambda: broker.fetch.browser.browse(CALLER, "new", None, EARLIEST, 10)) == []


async def test_subscribing(broker: BrokerNode) -> None:
    made = await once_shown(broker, "new", lambda: broker.queues.lifecycle.create(CALLER, "new", "s", EARLIEST, {}))
    assert made.topic == "new"


class SlowStore(MemoryStore):
    """After `begun` is cleared, each commit waits for `released`."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.released = asyncio.Event(), asyncio.Event()
        self.begun.set()

    async def commit(self, *operations: StoreOperation) -> tuple[int, ...] | None:
        if not self.begun.is_set():
            self.begun.set()
            await self.released.wait()
        return await super().commit(*operations)


async def test_topic_whose_creation_is_stored_while_the_broker_stops_is_opened_by_the_next_start(
    storage: Storage,
) -> None:
    storage.store = store = SlowStore()
    async with running_parts(storage=storage) as broker:
        store.begun.clear()
        creation = asyncio.ensure_future(broker.topics.create(CALLER, TopicRequest(name="new")))
        await store.begun.wait()
        await broker.finish_requests()
        store.released.set()
        async with asyncio.timeout(10):
            with pytest.raises(RequestError) as refused:
                await creation
        assert refused.value.kind is ErrorKind.METADATA_UNAVAILABLE
        assert broker.partitions.table.get("new", 0) is None
    async with running_parts(storage=storage) as broker:
        assert broker.partitions.table.get("new", 0) is not None
