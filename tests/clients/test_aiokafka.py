"""aiokafka: asyncio, its own protocol code."""

import asyncio

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from conveyor.testing import Broker
from tests.clients.records import PARTITIONS


async def make_topic(broker: Broker, topic: str, partitions: int = PARTITIONS) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    await admin.start()
    await admin.create_topics([NewTopic(topic, partitions, 1)])
    await admin.close()


async def test_a_group_commits_and_seeks(broker: Broker, topic: str) -> None:
    await make_topic(broker, topic, 1)
    producer = AIOKafkaProducer(bootstrap_servers=broker.bootstrap_servers)
    await producer.start()
    for number in range(10):
        await producer.send_and_wait(topic, b"%d" % number)
    await producer.stop()
    consumer = AIOKafkaConsumer(
        topic,
        bootstrap_servers=broker.bootstrap_servers,
        group_id=topic,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    await consumer.start()
    place = TopicPartition(topic, 0)
    first = [await consumer.getone() for _ in range(4)]
    await consumer.commit({place: 4})
    assert await consumer.committed(place) == 4
    consumer.seek(place, 8)
    assert (await consumer.getone()).value == b"8"
    assert [each.offset for each in first] == [0, 1, 2, 3]
    assert (await consumer.end_offsets([place]))[place] == 10
    await consumer.stop()


async def test_a_consumer_hears_at_once_of_a_new_record(broker: Broker, topic: str) -> None:
    """A long poll is answered by the record, not by its timeout."""
    await make_topic(broker, topic, 1)
    consumer = AIOKafkaConsumer(
        topic, bootstrap_servers=broker.bootstrap_servers, auto_offset_reset="earliest", fetch_max_wait_ms=60_000
    )
    await consumer.start()
    producer = AIOKafkaProducer(bootstrap_servers=broker.bootstrap_servers)
    await producer.start()
    waiting = asyncio.create_task(consumer.getone())
    async with asyncio.timeout(30):
        for number in range(5):
            await producer.send_and_wait(topic, b"%d" % number)
            assert (await waiting).value == b"%d" % number
            waiting = asyncio.create_task(consumer.getone())
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await producer.stop()
    await consumer.stop()
