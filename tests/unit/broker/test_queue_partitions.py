"""Which partitions are queues as well, as topics grow and subscriptions come and go."""

import asyncio

from conveyor.broker.broker import Broker
from conveyor.broker.messages import OutgoingMessage
from conveyor.cluster.topic_creation import TopicRequest
from conveyor.queues.attributes import DELAY_MS
from conveyor.queues.policy import Start
from tests.unit.broker.parts import Storage

EARLIEST = Start(kind="earliest")


async def publish(broker: Broker, partition: int) -> None:
    await broker.messages.publish("t", [OutgoingMessage(b"payload", partition=partition)])


async def leased(broker: Broker, wait_ms: int = 0) -> list[str]:
    return [each.message.message_id for each in await broker.queues.lease("s", 10, wait_ms, None)]


async def test_who_waits_is_given_messages_of_a_partition_that_was_added_meanwhile(broker: Broker) -> None:
    await broker.queues.create("t", "s", EARLIEST, {})
    waiting = asyncio.ensure_future(leased(broker, wait_ms=20_000))
    await asyncio.sleep(0)
    await broker.topics.add_partitions("t", 3, None)
    await publish(broker, 2)
    assert await waiting == ["2-0"]


async def test_topic_without_subscriptions_has_no_queues_loaded(broker: Broker) -> None:
    await broker.queues.create("t", "s", EARLIEST, {})
    await broker.queues.create("t", "other", EARLIEST, {})
    await publish(broker, 0)
    await broker.queues.delete("other")
    assert broker.partitions.find("t", 0).queue is not None
    await broker.queues.delete("s")
    assert broker.partitions.find("t", 0).queue is None
    await broker.queues.create("t", "s", EARLIEST, {})
    assert await leased(broker) == ["0-0"]


async def test_subscription_made_while_the_last_is_deleted_has_its_queues(broker: Broker) -> None:
    await broker.queues.create("t", "last", EARLIEST, {})
    await publish(broker, 1)
    await asyncio.gather(broker.queues.create("t", "s", EARLIEST, {}), broker.queues.delete("last"))
    assert await leased(broker) == ["1-0"]


async def test_rates_are_there_when_they_are_first_asked_for(broker: Broker, storage: Storage) -> None:
    await broker.queues.create("t", "s", EARLIEST, {})
    for _ in range(4):
        await publish(broker, 0)
    assert await broker.queues.ack("s", await leased(broker)) == [None] * 4
    storage.clock.advance(seconds=20)
    assert (await broker.queues.stats("s")).ack_rate == 0.2
    storage.clock.advance(seconds=100)
    assert (await broker.queues.stats("s")).ack_rate == 0


async def test_queues_and_inboxes_share_the_cache_as_long_as_they_are_there(broker: Broker) -> None:
    limit_bytes = broker.settings.broker.queue_cache_bytes
    await broker.queues.create("t", "s", EARLIEST, {})
    assert broker.queue_cache.bytes == limit_bytes // 2
    await broker.topics.create(TopicRequest(name="d", config={"delay.enable": "true"}))
    await broker.messages.publish("d", [OutgoingMessage(b"waits", headers=((DELAY_MS, b"1000"),))])
    assert await broker.messages.get("d", "0-i0")
    assert broker.queue_cache.bytes == limit_bytes // 3
    await broker.queues.delete("s")
    await broker.topics.delete("d")
    assert broker.queue_cache.bytes == limit_bytes
