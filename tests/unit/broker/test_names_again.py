"""What ends with its topic or subscription, and stays ended where another has taken the name meanwhile."""

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

from conveyor.broker.broker_node import Broker
from conveyor.broker.hosts import inboxes
from conveyor.broker.hosts.inbox_partition import InboxPartition, load_inbox
from conveyor.broker.hosts.schedules import Schedule
from conveyor.broker.produce.message_publisher import OutgoingMessage
from conveyor.broker.queues.queue_rates import QueueRates
from conveyor.cluster.image import SCHEDULES_PATH, SUBSCRIPTIONS_PATH, TopicImage
from conveyor.cluster.topic_creation import TopicRequest
from conveyor.kernel.errors import ErrorKind, RequestError, StorageFailure
from conveyor.kernel.ports import ANY_VERSION
from conveyor.queues.queue_commands import QueueProbe
from conveyor.queues.subscription.policy import Start, Subscription
from conveyor.records.message_attributes import DELAY_MS
from conveyor.testing import ManualClock
from conveyor.testing.memory_store import MemoryStore
from tests.unit.broker.parts import Storage, running_parts

EARLIEST = Start(kind="earliest")
TOPIC = TopicRequest(name="t", partitions=1)
DELAYED = TopicRequest(name="d", partitions=1, config={"delay.enable": "true"})
SCHEDULE = Schedule(name="s", topic="t", cron="* * * * *")
MINUTE_MS = 60_000


class FailingStore(MemoryStore):
    """Deletes nothing below a path that is set."""

    refused = "-"

    async def delete(self, path: str, version: int = ANY_VERSION) -> bool:
        if path.startswith(self.refused):
            raise StorageFailure("the store is away")
        return await super().delete(path, version)


@pytest.fixture
def storage() -> Storage:
    storage = Storage()
    storage.store = FailingStore()
    return storage


@pytest.fixture
async def broker(storage: Storage) -> AsyncIterator[Broker]:
    """A broker without topics."""
    async with running_parts(storage=storage) as running:
        yield running


async def publish(broker: Broker, topic: str, *messages: OutgoingMessage) -> None:
    assert not any(isinstance(each, RequestError) for each in await broker.messages.publish(topic, messages))


async def rejected(broker: Broker, name: str = "s") -> None:
    """Publish a message and reject it."""
    await publish(broker, "t", OutgoingMessage(b"payload"))
    [lease] = await broker.queues.lease(name, 1, 0, None)
    assert await broker.queues.reject(name, [lease.ack_id], "no stock") == [None]


def running(part: str) -> list[asyncio.Task[Any]]:
    """The tasks whose coroutines belong to a part of the broker."""
    return [task for task in asyncio.all_tasks() if getattr(task.get_coro(), "__qualname__", "").startswith(part)]


async def ended(storage: Storage, part: str) -> None:
    """Nothing of a part runs any more; what it wants to try again is tried meanwhile."""
    async with asyncio.timeout(10):
        while running(part):
            await asyncio.sleep(0)
            storage.clock.advance(seconds=1)


async def forwarded(broker: Broker, storage: Storage, count: int) -> list[bytes | None]:
    """The payloads in the topic with an inbox, once there are so many."""
    storage.clock.advance(seconds=2)
    partition = broker.partitions.find("d", 0)
    async with asyncio.timeout(10):
        while partition.high_watermark < count:
            risen = asyncio.Event()
            partition.watch(risen.set)
            await risen.wait()
    return [each.value for each in await broker.messages.browse("d", None, EARLIEST, 10)]


def recreate(broker: Broker, request: TopicRequest, subscribed: str | None = None) -> None:
    """Make a topic again as soon as it is deleted, before anything else has heard of that."""

    async def deleted(topic: TopicImage) -> None:
        if topic.name == request.name:
            await broker.topics.create(request)
            await asyncio.gather(*running("Inboxes"))
            if subscribed is not None:
                await broker.queues.create(request.name, subscribed, EARLIEST, {})

    broker.topics.when_deleted(deleted)


@pytest.mark.parametrize("is_made_again", [False, True])
async def test_burials_end_with_their_topic(broker: Broker, storage: Storage, is_made_again: bool) -> None:
    if is_made_again:
        recreate(broker, TOPIC)
    await broker.topics.create(TOPIC)
    await broker.topics.create(TopicRequest(name="small", config={"max.message.bytes": "20"}))
    await broker.queues.create("t", "s", EARLIEST, {"dead_letter_topic": "small"})
    await rejected(broker)
    await asyncio.sleep(0)
    assert running("Burials")
    await broker.topics.delete("t")
    await ended(storage, "Burials")


async def test_burials_end_with_their_subscription(broker: Broker, storage: Storage) -> None:
    await broker.topics.create(TOPIC)
    await broker.topics.create(TopicRequest(name="small", config={"max.message.bytes": "20"}))
    await broker.queues.create("t", "s", EARLIEST, {"dead_letter_topic": "small"})
    await rejected(broker)
    await broker.queues.delete("s")
    await broker.queues.create("t", "s", EARLIEST, {"dead_letter_topic": "other"})
    await ended(storage, "Burials")
    assert "other" not in broker.topics.image.topics


async def test_subscriptions_of_a_topic_that_has_the_name_again_stay(broker: Broker, storage: Storage) -> None:
    recreate(broker, TOPIC, "again")
    await broker.topics.create(TOPIC)
    await broker.queues.create("t", "s", EARLIEST, {})
    await publish(broker, "t", OutgoingMessage(b"old"))
    await broker.topics.delete("t")
    assert [each.name for each in broker.queues.all("t")] == ["again"]
    await publish(broker, "t", OutgoingMessage(b"new"))
    assert [each.message.value for each in await broker.queues.lease("again", 10, 0, None)] == [b"new"]
    assert await storage.store.children(SUBSCRIPTIONS_PATH) == ["again"]


async def test_subscription_whose_node_stays_is_gone_all_the_same(storage: Storage) -> None:
    store = storage.store
    assert isinstance(store, FailingStore)
    async with running_parts(storage=storage) as broker:
        await broker.topics.create(TOPIC)
        await broker.queues.create("t", "s", EARLIEST, {})
        await broker.schedules.add(SCHEDULE)
        store.refused = "/s"
        await broker.topics.delete("t")
        await broker.topics.create(TOPIC)
        assert (broker.queues.all(), broker.schedules.list()) == ([], [])
        store.refused = "-"
    async with running_parts(storage=storage) as broker:
        assert (broker.queues.all(), broker.schedules.list()) == ([], [])
    assert (await store.children(SUBSCRIPTIONS_PATH), await store.children(SCHEDULES_PATH)) == ([], [])


async def test_request_ends_though_its_subscription_is_deleted_before_it_waits(broker: Broker) -> None:
    await broker.topics.create(TOPIC)
    await broker.queues.create("t", "s", EARLIEST, {"filter": "size > 1000"})
    await publish(broker, "t", OutgoingMessage(b"small"))
    waiting = asyncio.ensure_future(broker.queues.lease("s", 1, 20_000, None))
    await asyncio.sleep(0)
    await broker.queues.delete("s")
    await broker.queues.create("t", "s", EARLIEST, {})
    with pytest.raises(RequestError) as refused:
        await asyncio.wait_for(waiting, 10)
    assert refused.value.kind is ErrorKind.UNKNOWN_SUBSCRIPTION


async def test_schedules_end_with_their_topic_though_another_has_its_name(broker: Broker, storage: Storage) -> None:
    recreate(broker, TOPIC)
    await broker.topics.create(TOPIC)
    await broker.schedules.add(SCHEDULE)
    await broker.topics.delete("t")
    assert broker.schedules.list() == []
    storage.clock.advance(ms=2 * MINUTE_MS)
    await ended(storage, "Schedules")
    assert await broker.messages.browse("t", None, EARLIEST, 10) == []


async def test_schedule_of_a_topic_that_has_the_name_again_stays(broker: Broker) -> None:
    async def deleted(topic: TopicImage) -> None:
        await broker.topics.create(TOPIC)
        await broker.schedules.add(SCHEDULE)

    broker.topics.when_deleted(deleted)
    await broker.topics.create(TOPIC)
    assert broker.schedules.list() == []
    await broker.topics.delete("t")
    assert [each.name for each in broker.schedules.list()] == ["s"]


async def test_forwarder_of_a_topic_that_has_the_name_again_goes_on(broker: Broker, storage: Storage) -> None:
    recreate(broker, DELAYED)
    await broker.topics.create(DELAYED)
    await publish(broker, "d", OutgoingMessage(b"old", headers=((DELAY_MS, b"1000"),)))
    await broker.topics.delete("d")
    await publish(broker, "d", OutgoingMessage(b"new", headers=((DELAY_MS, b"1000"),)))
    assert await forwarded(broker, storage, 1) == [b"new"]


async def test_inbox_that_is_made_again_while_the_first_loads_is_loaded(
    broker: Broker, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    first_loads, gate = threading.Event(), threading.Event()

    def gated(*arguments: Any) -> InboxPartition:
        if not first_loads.is_set():
            first_loads.set()
            gate.wait(10)
        return load_inbox(*arguments)

    monkeypatch.setattr(inboxes, "load_inbox", gated)
    await broker.topics.create(DELAYED)
    await asyncio.to_thread(first_loads.wait, 10)
    await broker.topics.delete("d")
    await broker.topics.create(DELAYED)
    gate.set()
    await asyncio.gather(*running("Inboxes"))
    await publish(broker, "d", OutgoingMessage(b"new", headers=((DELAY_MS, b"1000"),)))
    assert await forwarded(broker, storage, 1) == [b"new"]


class CountingClock(ManualClock):
    """Counts the timers that are set."""

    alarms_count = 0

    def call_later(self, delay_ms: int, callback: Any) -> Any:
        self.alarms_count += 1
        return super().call_later(delay_ms, callback)


async def test_sampling_of_rates_ends_with_the_last_subscription(broker: Broker) -> None:
    await broker.topics.create(TOPIC)
    subscriptions: list[Subscription] = [await broker.queues.create("t", name, EARLIEST, {}) for name in ("a", "b")]
    clock = CountingClock()
    rates = QueueRates(clock, lambda _: QueueProbe())
    for each in subscriptions:
        rates.follow(each.id)
    clock.advance(seconds=60)
    for each in subscriptions:
        rates.forget(each.id)
    alarms_count = clock.alarms_count
    clock.advance(seconds=600)
    assert clock.alarms_count == alarms_count
    rates.follow(subscriptions[0].id)
    assert clock.alarms_count == alarms_count + 1
