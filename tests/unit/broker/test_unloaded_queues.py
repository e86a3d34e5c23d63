"""Topics whose queues are not loaded: no record is deleted, `/readyz` reports them, and the load is retried."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from uuid import UUID

import pytest

from conveyor.broker.broker_node import BrokerNode
from conveyor.broker.coordinators.queue_partitions import QueuePartitions
from conveyor.broker.produce.outgoing_message import OutgoingMessage
from conveyor.cluster.changes import SubscriptionPut
from conveyor.cluster.image import ClusterImage, TopicImage
from conveyor.cluster.topic_creation import TopicRequest
from conveyor.kernel.errors import ErrorKind, RequestError, StorageFailure
from conveyor.queues.delivery.subscription_queue import SubscriptionQueue
from conveyor.queues.queue_machine import QueueMachine
from conveyor.queues.subscription.policy import StartPosition, encode_subscription
from conveyor.records.message_attributes import DELAY_MS
from tests.callers import CALLER, answer_of
from tests.unit.broker.parts import Storage, propose, rewrite, running_parts

EARLIEST = StartPosition(kind="earliest")
DAY_MS = 86_400_000
SETTINGS = {"topics.retention_ms": "60000", "topics.segment_bytes": "1024"}


async def publish(broker: BrokerNode, *payloads: bytes, delay_ms: int = 0) -> None:
    headers = ((DELAY_MS, b"%d" % delay_ms),) if delay_ms else ()
    published = await broker.produce.messages.publish(
        CALLER, "t", [OutgoingMessage(payload, headers=headers) for payload in payloads]
    )
    assert not any(isinstance(result, RequestError) for result in published)


async def leased(broker: BrokerNode, name: str = "s") -> list[bytes | None]:
    return [lease.message.value for lease in await broker.queues.leases.lease(CALLER, name, 100, 0, None)]


async def until(storage: Storage, seen: Callable[[], bool], step_ms: int = 10) -> None:
    while not seen():
        storage.clock.advance(ms=step_ms)
        await asyncio.sleep(0)


async def retain(broker: BrokerNode) -> int:
    """Run retention. Returns the log start offset."""
    for _ in range(2):
        await broker.partitions.retention.run_once()
        await broker.partitions.flusher.drain()
    return int(broker.partitions.table.find("t", 0).log.log_start_offset)


@pytest.fixture
async def with_delayed(storage: Storage) -> Storage:
    """The storage of a broker with a subscription, and a message that is due in a day."""
    async with running_parts(SETTINGS, storage) as broker:
        await broker.topics.create(CALLER, TopicRequest(name="t"))
        await broker.queues.lifecycle.create(CALLER, "t", "s", EARLIEST, {})
        await publish(broker, b"later", delay_ms=DAY_MS)
        await publish(broker, *[bytes(500)] * 10)
    return storage


async def test_retention_waits_for_the_state_of_a_queue(with_delayed: Storage) -> None:
    async with running_parts(SETTINGS, with_delayed) as broker:
        with_delayed.clock.advance(ms=120_000)
        assert broker.coordinators.queues.unloaded() == {"t": "the state of its queues is being read"}
        assert await retain(broker) == 0
        await until(with_delayed, lambda: not broker.coordinators.queues.unloaded())
        with_delayed.clock.advance(ms=DAY_MS)
        assert b"later" in await leased(broker)


async def test_retention_deletes_nothing_where_the_state_cannot_be_read(with_delayed: Storage) -> None:
    state = with_delayed.disk.open("logs/__queue_state.t-0/00000000000000000000.log")
    state.written[70] ^= 1
    async with running_parts(SETTINGS, with_delayed) as broker:
        await until(with_delayed, lambda: "damaged" in str(broker.coordinators.queues.unloaded()))
        with_delayed.clock.advance(ms=120_000)
        assert await retain(broker) == 0
        with pytest.raises(RequestError, match="damaged") as refused:
            await leased(broker)
        assert refused.value.kind is ErrorKind.PARTITION_OFFLINE
        assert "damaged" in broker.partitions.table.offline()["__queue_state.t-0"]
        await broker.queues.lifecycle.delete(CALLER, "s")
        assert broker.coordinators.queues.unloaded() == {}
        assert await retain(broker) > 0


async def test_retention_deletes_nothing_while_the_state_is_offline(with_delayed: Storage) -> None:
    """The last decisions may not be stored."""
    async with running_parts(SETTINGS, with_delayed) as broker:
        await until(with_delayed, lambda: not broker.coordinators.queues.unloaded())
        broker.partitions.table.find("__queue_state.t", 0).go_offline(StorageFailure("the disk is gone"))
        with_delayed.clock.advance(ms=120_000)
        assert await retain(broker) == 0


async def test_retention_deletes_nothing_while_the_broker_stops(with_delayed: Storage) -> None:
    async with running_parts(SETTINGS, with_delayed) as broker:
        await until(with_delayed, lambda: not broker.coordinators.queues.unloaded())
        broker.coordinators.queues.stop()
        with_delayed.clock.advance(ms=120_000)
        assert await retain(broker) == 0


async def test_queues_that_found_too_many_files_open_are_loaded_later(with_delayed: Storage) -> None:
    async with running_parts(SETTINGS, with_delayed) as broker:
        with_delayed.disk.faults.out_of_files = True
        await until(with_delayed, lambda: "Too many open files" in str(broker.coordinators.queues.unloaded()))
        assert broker.partitions.table.offline() == {}
        with_delayed.disk.faults.out_of_files = False
        await until(with_delayed, lambda: not broker.coordinators.queues.unloaded())
        assert len(await leased(broker)) == 10


async def test_new_messages_that_cannot_be_read_for_now_are_read_later(broker: BrokerNode, storage: Storage) -> None:
    await broker.queues.lifecycle.create(CALLER, "t", "s", EARLIEST, {})
    await broker.produce.messages.publish(CALLER, "t", [OutgoingMessage(b"before", partition=0)])
    storage.disk.faults.out_of_files = True
    await broker.produce.messages.publish(CALLER, "t", [OutgoingMessage(b"payload", partition=0)])
    assert broker.partitions.table.offline() == {}
    storage.disk.faults.out_of_files = False
    storage.clock.advance(seconds=1)
    assert await leased(broker) == [b"before", b"payload"]


async def test_new_messages_that_cannot_be_read_take_their_partition_offline(
    broker: BrokerNode, storage: Storage
) -> None:
    await broker.queues.lifecycle.create(CALLER, "t", "s", EARLIEST, {})
    storage.disk.faults.fail("read")
    await broker.produce.messages.publish(CALLER, "t", [OutgoingMessage(b"payload", partition=0)])
    assert "read failed" in str(broker.partitions.table.find("t", 0).offline.reason)


async def test_a_call_names_why_its_partitions_are_offline(broker: BrokerNode) -> None:
    await broker.queues.lifecycle.create(CALLER, "t", "s", EARLIEST, {})
    for number in range(2):
        broker.partitions.table.find("t", number).go_offline(StorageFailure("the disk is gone"))
    with pytest.raises(RequestError, match="t-0 is offline: the disk is gone"):
        await leased(broker)
    broker.partitions.table.find("__queue_state.t", 0).go_offline(StorageFailure("this one, too"))
    with pytest.raises(RequestError, match=r"__queue_state\.t-0 is offline: this one, too"):
        await broker.queues.lifecycle.purge(CALLER, "s")


async def store_filter(storage: Storage, name: str, expression: str) -> None:
    """Store a filter that only another version accepts."""

    def decide(image: ClusterImage) -> list[SubscriptionPut]:
        stored = image.subscriptions[name]
        document = json.loads(stored.document)
        document["policy"]["filter"] = expression
        put = SubscriptionPut(
            name=name,
            subscription_id=stored.subscription_id,
            topic_id=stored.topic_id,
            document=json.dumps(document),
        )
        return [put]

    await rewrite(storage, decide)


async def test_a_filter_that_is_not_valid_any_more_keeps_only_its_own_subscription_from_messages(
    storage: Storage,
) -> None:
    async with running_parts(storage=storage) as broker:
        await broker.topics.create(CALLER, TopicRequest(name="t"))
        for name in ("bad", "good"):
            await broker.queues.lifecycle.create(CALLER, "t", name, EARLIEST, {})
        await publish(broker, b"one", b"two")
        [first, *_] = await broker.queues.leases.lease(CALLER, "bad", 1, 0, None)
        assert await answer_of(broker.queues.settlements.ack, CALLER, "bad", [first.ack_id]) == [None]
    await store_filter(storage, "bad", "no such thing(")
    async with running_parts(storage=storage) as broker:
        await until(storage, lambda: not broker.coordinators.queues.unloaded())
        assert await leased(broker, "good") == [b"one", b"two"]
        assert broker.queues.subscribed_partitions.faults().keys() == {"bad"}
        assert "the filter of subscription 'bad' is not valid" in broker.queues.subscribed_partitions.faults()["bad"]
        with pytest.raises(RequestError, match="the filter of subscription 'bad' is not valid") as refused:
            await leased(broker, "bad")
        assert refused.value.kind is ErrorKind.INVALID_FILTER
        await broker.queues.lifecycle.change(CALLER, "bad", {"filter": None})
        assert broker.queues.subscribed_partitions.faults() == {}
        assert await leased(broker, "bad") == [b"two"]


async def test_readiness_looks_only_at_queues_that_were_not_served(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It needs no login, so it must not cost the time to visit every queue."""
    async with running_parts(storage=storage) as broker:
        await broker.topics.create(CALLER, TopicRequest(name="t", partitions=2))
        for number in range(10):
            await broker.queues.lifecycle.create(CALLER, "t", f"s-{number}", EARLIEST, {})
    await store_filter(storage, "s-3", "no such thing(")
    asked: list[UUID | str] = []
    find, check = QueueMachine.queue, QueuePartitions.is_loaded

    def queue(machine: QueueMachine, subscription: UUID) -> SubscriptionQueue | None:
        asked.append(subscription)
        return find(machine, subscription)

    def is_loaded(partitions: QueuePartitions, topic: TopicImage) -> bool:
        asked.append(topic.name)
        return check(partitions, topic)

    async with running_parts(storage=storage) as broker:
        queues, subscribed = broker.coordinators.queues, broker.queues.subscribed_partitions
        faulty = broker.cluster.subscriptions.existing("s-3")
        await until(storage, lambda: not queues.unloaded())
        monkeypatch.setattr(QueueMachine, "queue", queue)
        monkeypatch.setattr(QueuePartitions, "is_loaded", is_loaded)
        assert (list(subscribed.faults()), queues.unloaded()) == (["s-3"], {})
        assert set(asked) == {faulty.id}
        await broker.queues.lifecycle.change(CALLER, "s-3", {"filter": None})
        assert subscribed.faults() == {}
        queues.unloaded()  # The image has changed.
        asked.clear()
        assert (subscribed.faults(), queues.unloaded(), asked) == ({}, {}, [])


async def test_filter_that_another_broker_has_stored_is_shown_as_not_valid(storage: Storage) -> None:
    async with running_parts(storage=storage) as broker:
        await broker.topics.create(CALLER, TopicRequest(name="t"))
        await broker.queues.lifecycle.create(CALLER, "t", "bad", EARLIEST, {})
        subscription = broker.cluster.subscriptions.existing("bad")
        policy = replace(subscription.policy, filter="no such thing(")
        put = SubscriptionPut(
            name="bad",
            subscription_id=subscription.id,
            topic_id=subscription.topic_id,
            document=encode_subscription(replace(subscription, policy=policy)),
        )
        await propose(broker, put)
        await until(storage, lambda: list(broker.queues.subscribed_partitions.faults()) == ["bad"])
        await broker.queues.lifecycle.delete(CALLER, "bad")
        assert broker.queues.subscribed_partitions.faults() == {}


async def test_messages_of_a_subscription_whose_filter_is_not_valid_do_not_expire(storage: Storage) -> None:
    """Without a valid filter, the subscription cannot tell which messages to dead-letter."""
    async with running_parts(storage=storage) as broker:
        await broker.topics.create(CALLER, TopicRequest(name="t"))
        await broker.queues.lifecycle.create(CALLER, "t", "bad", EARLIEST, {"on_expiry": "dead_letter"})
        message = OutgoingMessage(b"short", headers=(("conveyor-ttl-ms", b"1000"),))
        await broker.produce.messages.publish(CALLER, "t", [message])
    await store_filter(storage, "bad", "no such thing(")
    async with running_parts(storage=storage) as broker:
        await until(storage, lambda: not broker.coordinators.queues.unloaded())
        storage.clock.advance(seconds=100)
        await broker.partitions.tick.end()
        assert (await broker.queues.statistics.stats(CALLER, "bad")).unsettled == 1
        assert "t.dlq" not in broker.metadata.image.topics
