"""Dependents of a deleted topic or subscription stay deleted when another takes its name."""

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

from conveyor.broker.broker_node import BrokerNode
from conveyor.broker.coordinators.forwarder import LoadedForwarder
from conveyor.broker.produce.outgoing_message import OutgoingMessage
from conveyor.broker.queues.subscription_rates import SubscriptionRates
from conveyor.cluster.image import ClusterImage
from conveyor.cluster.topic_creation import TopicRequest
from conveyor.kernel.errors import ErrorKind, RequestError, StorageFailure
from conveyor.queues.subscription.policy import StartPosition, Subscription
from conveyor.records.message_attributes import DELAY_MS
from conveyor.schedules.definition import Schedule
from conveyor.testing import ManualClock
from tests.callers import CALLER, answer_of
from tests.unit.broker.parts import Storage, running_parts, stored_image
from tests.unit.replication.parts import set_at_change

EARLIEST = StartPosition(kind="earliest")
TOPIC = TopicRequest(name="t", partitions=1)
DELAYED = TopicRequest(name="d", config={"delay.target": "t"})
SCHEDULE = Schedule(name="s", topic="t", cron="* * * * *")
MINUTE_MS = 60_000


@pytest.fixture
async def broker(storage: Storage) -> AsyncIterator[BrokerNode]:
    """A broker without topics."""
    async with running_parts(storage=storage) as running:
        yield running


async def publish(broker: BrokerNode, topic: str, *messages: OutgoingMessage) -> None:
    assert not any(
        isinstance(result, RequestError) for result in await broker.produce.messages.publish(CALLER, topic, messages)
    )


async def rejected(broker: BrokerNode, name: str = "s") -> None:
    """Publish a message and reject it."""
    await publish(broker, "t", OutgoingMessage(b"payload"))
    [lease] = await broker.queues.leases.lease(CALLER, name, 1, 0, None)
    assert await answer_of(broker.queues.settlements.reject, CALLER, name, [lease.ack_id], "no stock") == [None]


def running(part: str) -> list[asyncio.Task[Any]]:
    """Return the tasks whose coroutines belong to a module of the broker."""
    return [task for task in asyncio.all_tasks() if getattr(task.get_coro(), "__qualname__", "").startswith(part)]


async def ended(storage: Storage, part: str) -> None:
    """Wait until no task of a module runs; retries are due meanwhile."""
    async with asyncio.timeout(10):
        while running(part):
            await asyncio.sleep(0)
            storage.clock.advance(seconds=1)


async def forwarded(broker: BrokerNode, storage: Storage, count: int) -> list[bytes | None]:
    """Return the payloads in the target of the delayed topic once there are `count`."""
    storage.clock.advance(seconds=2)
    partition = broker.partitions.table.find("t", 0)
    async with asyncio.timeout(10):
        while partition.term.high_watermark < count:
            risen = asyncio.Event()
            set_at_change(partition, risen)
            await risen.wait()
    return [message.value for message in await broker.fetch.browser.browse(CALLER, "t", None, EARLIEST, 10)]


async def delete(broker: BrokerNode, request: TopicRequest, subscribed: str | None = None) -> None:
    """Delete a topic, and create it again before any partition of the first one is closed."""
    again: list[asyncio.Task[object]] = []

    def observe(old: ClusterImage, new: ClusterImage) -> None:
        if request.name in old.topics and request.name not in new.topics:
            again.append(asyncio.ensure_future(broker.topics.create(CALLER, request)))

    broker.metadata.listen(observe)
    await broker.topics.delete(CALLER, request.name)
    await asyncio.gather(*again)
    await asyncio.gather(*running("Host"))
    if subscribed is not None:
        await broker.queues.lifecycle.create(CALLER, request.name, subscribed, EARLIEST, {})


@pytest.mark.parametrize("is_made_again", [False, True])
async def test_dead_letter_writer_ends_with_its_topic(
    broker: BrokerNode, storage: Storage, is_made_again: bool
) -> None:
    await broker.topics.create(CALLER, TOPIC)
    await broker.topics.create(CALLER, TopicRequest(name="small", config={"max.message.bytes": "20"}))
    await broker.queues.lifecycle.create(CALLER, "t", "s", EARLIEST, {"dead_letter_topic": "small"})
    await rejected(broker)
    await asyncio.sleep(0)
    assert running("DeadLetterWriter")
    await (delete(broker, TOPIC) if is_made_again else broker.topics.delete(CALLER, "t"))
    await ended(storage, "DeadLetterWriter")


async def test_dead_letter_writer_ends_with_its_subscription(broker: BrokerNode, storage: Storage) -> None:
    await broker.topics.create(CALLER, TOPIC)
    await broker.topics.create(CALLER, TopicRequest(name="small", config={"max.message.bytes": "20"}))
    await broker.queues.lifecycle.create(CALLER, "t", "s", EARLIEST, {"dead_letter_topic": "small"})
    await rejected(broker)
    await broker.queues.lifecycle.delete(CALLER, "s")
    await broker.queues.lifecycle.create(CALLER, "t", "s", EARLIEST, {"dead_letter_topic": "other"})
    await ended(storage, "DeadLetterWriter")
    assert "other" not in broker.metadata.image.topics


async def test_subscriptions_of_a_topic_that_has_the_name_again_stay(broker: BrokerNode) -> None:
    await broker.topics.create(CALLER, TOPIC)
    await broker.queues.lifecycle.create(CALLER, "t", "s", EARLIEST, {})
    await publish(broker, "t", OutgoingMessage(b"old"))
    await delete(broker, TOPIC, "again")
    assert [subscription.name for subscription in broker.cluster.subscriptions.all("t")] == ["again"]
    await publish(broker, "t", OutgoingMessage(b"new"))
    assert [lease.message.value for lease in await broker.queues.leases.lease(CALLER, "again", 10, 0, None)] == [b"new"]
    assert list(broker.metadata.image.subscriptions) == ["again"]


async def test_subscriptions_and_schedules_go_in_one_change_with_their_topic(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the store fails, all of them stay; if it does not, none stays, not even for a new topic of that name."""

    async def fail(*_: object) -> None:
        raise StorageFailure("the store is away")

    async with running_parts(storage=storage) as broker:
        await broker.topics.create(CALLER, TOPIC)
        await broker.queues.lifecycle.create(CALLER, "t", "s", EARLIEST, {})
        await broker.schedules.add(CALLER, SCHEDULE)
        with monkeypatch.context() as patched:
            patched.setattr(storage.store, "commit", fail)
            with pytest.raises(RequestError, match="the store is away"):
                await broker.topics.delete(CALLER, "t")
        assert (len(broker.cluster.subscriptions.all()), [*broker.schedules.all()]) == (1, [SCHEDULE])
        await broker.topics.delete(CALLER, "t")
        await broker.topics.create(CALLER, TOPIC)
        assert (broker.cluster.subscriptions.all(), [*broker.schedules.all()]) == ([], [])
    image = await stored_image(storage)
    assert (list(image.topics), image.subscriptions, image.schedules) == (["t"], {}, {})


async def test_request_ends_though_its_subscription_is_deleted_before_it_waits(broker: BrokerNode) -> None:
    await broker.topics.create(CALLER, TOPIC)
    await broker.queues.lifecycle.create(CALLER, "t", "s", EARLIEST, {"filter": "size > 1000"})
    await publish(broker, "t", OutgoingMessage(b"small"))
    waiting = asyncio.ensure_future(broker.queues.leases.lease(CALLER, "s", 1, 20_000, None))
    await asyncio.sleep(0)
    await broker.queues.lifecycle.delete(CALLER, "s")
    await broker.queues.lifecycle.create(CALLER, "t", "s", EARLIEST, {})
    with pytest.raises(RequestError) as refused:
        await asyncio.wait_for(waiting, 10)
    assert refused.value.kind is ErrorKind.UNKNOWN_SUBSCRIPTION


async def test_schedules_end_with_their_topic_though_another_has_its_name(broker: BrokerNode, storage: Storage) -> None:
    await broker.topics.create(CALLER, TOPIC)
    await broker.schedules.add(CALLER, SCHEDULE)
    await delete(broker, TOPIC)
    assert [*broker.schedules.all()] == []
    storage.clock.advance(ms=2 * MINUTE_MS)
    await ended(storage, "Schedules")
    assert await broker.fetch.browser.browse(CALLER, "t", None, EARLIEST, 10) == []


async def test_schedule_of_a_topic_that_has_the_name_again_stays(broker: BrokerNode) -> None:
    await broker.topics.create(CALLER, TOPIC)
    await broker.schedules.add(CALLER, SCHEDULE)
    await delete(broker, TOPIC)
    await broker.schedules.add(CALLER, SCHEDULE)
    assert [schedule.name for schedule in broker.schedules.all()] == ["s"]


async def test_forwarder_of_a_topic_that_has_the_name_again_goes_on(broker: BrokerNode, storage: Storage) -> None:
    await broker.topics.create(CALLER, TOPIC)
    await broker.topics.create(CALLER, DELAYED)
    await publish(broker, "d", OutgoingMessage(b"old", headers=((DELAY_MS, b"1000"),)))
    await delete(broker, DELAYED)
    await publish(broker, "d", OutgoingMessage(b"new", headers=((DELAY_MS, b"1000"),)))
    assert await forwarded(broker, storage, 1) == [b"new"]


async def test_delayed_topic_that_is_made_again_while_the_first_loads_is_loaded(
    broker: BrokerNode, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    first_loads, gate = threading.Event(), threading.Event()
    read_state = LoadedForwarder.read_state

    def gated(loaded: LoadedForwarder) -> None:
        if not first_loads.is_set():
            first_loads.set()
            gate.wait(10)
        read_state(loaded)

    monkeypatch.setattr(LoadedForwarder, "read_state", gated)
    await broker.topics.create(CALLER, TOPIC)
    await broker.topics.create(CALLER, DELAYED)
    await asyncio.to_thread(first_loads.wait, 10)
    await broker.topics.delete(CALLER, "d")
    await broker.topics.create(CALLER, DELAYED)
    gate.set()
    await asyncio.gather(*running("Host"))
    await publish(broker, "d", OutgoingMessage(b"new", headers=((DELAY_MS, b"1000"),)))
    assert await forwarded(broker, storage, 1) == [b"new"]


class CountingClock(ManualClock):
    """Counts the active timers."""

    alarms_count = 0

    def call_later(self, delay_ms: int, callback: Any) -> Any:
        self.alarms_count += 1
        return super().call_later(delay_ms, callback)


async def test_sampling_of_rates_ends_with_the_last_subscription(broker: BrokerNode) -> None:
    await broker.topics.create(CALLER, TOPIC)
    subscriptions: list[Subscription] = [
        await broker.queues.lifecycle.create(CALLER, "t", name, EARLIEST, {}) for name in ("a", "b")
    ]
    clock = CountingClock()
    rates = SubscriptionRates(clock, broker.coordinators.queues)
    for subscription in subscriptions:
        rates.follow(subscription.id)
    clock.advance(seconds=60)
    for subscription in subscriptions:
        rates.forget(subscription.id)
    alarms_count = clock.alarms_count
    clock.advance(seconds=600)
    assert clock.alarms_count == alarms_count
    rates.follow(subscriptions[0].id)
    assert clock.alarms_count == alarms_count + 1
