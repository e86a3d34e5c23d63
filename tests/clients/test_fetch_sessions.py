"""Clients that fetch in sessions, and clients that do not, read every record once and in order."""

import logging
from collections import defaultdict
from collections.abc import Iterable

import pytest
from aiokafka import AIOKafkaConsumer
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer
from confluent_kafka import TopicPartition as Position
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaConsumer, TopicPartition

from conveyor.testing import Broker

PARTITIONS = 40
ROUNDS = 5
Found = dict[int, list[bytes]]


def make_topic(broker: Broker, topic: str, partitions: int = PARTITIONS) -> list[TopicPartition]:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.create_topics([NewTopic(topic, partitions)])[topic].result(20)
    return [TopicPartition(topic, number) for number in range(partitions)]


def produce(broker: Broker, topic: str, partitions: Iterable[int], text: str) -> None:
    """One record to each partition: its number, and a text."""
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 0})
    for number in partitions:
        producer.produce(topic, value=f"{number}:{text}", partition=number)
    assert producer.flush(20) == 0


def expected(*texts: str) -> Found:
    return {number: [f"{number}:{text}".encode() for text in texts] for number in range(PARTITIONS)}


def session_consumer(broker: Broker, **settings: object) -> KafkaConsumer:
    """kafka-python fetches in sessions."""
    known = {"auto_offset_reset": "earliest", "fetch_max_wait_ms": 50} | settings
    return KafkaConsumer(bootstrap_servers=broker.bootstrap_servers, **known)


def poll(consumer: KafkaConsumer, count: int) -> Found:
    """The next so many records, by partition, in the order of their coming."""
    found: Found = defaultdict(list)
    while sum(map(len, found.values())) < count:
        records = consumer.poll(20_000)
        assert records, f"nothing came after {sum(map(len, found.values()))} of {count} records"
        for partition, messages in records.items():
            found[partition.partition] += [message.value for message in messages]
    return found


def test_a_session_goes_on_while_records_come(broker: Broker, topic: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "kafka.consumer.fetcher")
    consumer = session_consumer(broker)
    consumer.assign(make_topic(broker, topic))
    for turn in range(ROUNDS):
        produce(broker, topic, range(PARTITIONS), str(turn))
        assert poll(consumer, PARTITIONS) == expected(str(turn))
    produce(broker, topic, [7], "last")
    assert poll(consumer, 1) == {7: [b"7:last"]}
    consumer.close()
    assert "created a new incremental fetch session" in caplog.text
    assert "for session" in caplog.text, "the session goes on"
    for refused in ("unable to process the fetch request", "invalid full fetch", "invalid incremental fetch"):
        assert refused not in caplog.text


def test_a_session_with_room_for_one_batch_reads_everything(broker: Broker, topic: str) -> None:
    partitions = make_topic(broker, topic)
    texts = [str(turn) for turn in range(ROUNDS)]
    for text in texts:
        produce(broker, topic, range(PARTITIONS), text)
    consumer = session_consumer(broker, fetch_max_bytes=1, max_partition_fetch_bytes=1)
    consumer.assign(partitions)
    assert poll(consumer, PARTITIONS * ROUNDS) == expected(*texts)
    consumer.close()


def test_a_session_follows_seeks_and_pauses(broker: Broker, topic: str) -> None:
    partitions = make_topic(broker, topic, 3)
    produce(broker, topic, range(3), "a")
    consumer = session_consumer(broker)
    consumer.assign(partitions)
    poll(consumer, 3)
    consumer.pause(partitions[0])
    produce(broker, topic, range(3), "b")
    assert poll(consumer, 2) == {1: [b"1:b"], 2: [b"2:b"]}
    consumer.seek(partitions[2], 0)
    assert poll(consumer, 2) == {2: [b"2:a", b"2:b"]}
    consumer.resume(partitions[0])
    assert poll(consumer, 1) == {0: [b"0:b"]}
    consumer.close()


def test_a_session_follows_what_is_assigned(broker: Broker, topic: str) -> None:
    first, second, third = make_topic(broker, topic, 3)
    produce(broker, topic, range(3), "a")
    consumer = session_consumer(broker)
    found = []
    for assigned in ([first], [second], [second, third], [first]):
        consumer.assign(assigned)
        consumer.seek_to_beginning(*assigned)
        found.append(poll(consumer, len(assigned)))
    assert found == [{0: [b"0:a"]}, {1: [b"1:a"]}, {1: [b"1:a"], 2: [b"2:a"]}, {0: [b"0:a"]}]
    consumer.close()


def test_librdkafka_reads_without_a_session(broker: Broker, topic: str) -> None:
    make_topic(broker, topic)
    produce(broker, topic, range(PARTITIONS), "a")
    settings = {"bootstrap.servers": broker.bootstrap_servers, "group.id": topic, "enable.auto.commit": False}
    consumer = Consumer(settings | {"fetch.message.max.bytes": 1, "fetch.wait.max.ms": 50})
    consumer.assign([Position(topic, number, OFFSET_BEGINNING) for number in range(PARTITIONS)])
    found: Found = defaultdict(list)
    for _ in range(PARTITIONS):
        message = consumer.poll(20)
        assert message is not None
        assert message.error() is None
        found[message.partition()].append(message.value())
    consumer.close()
    assert found == expected("a")


async def test_aiokafka_reads_without_a_session(broker: Broker, topic: str) -> None:
    partitions = make_topic(broker, topic)
    produce(broker, topic, range(PARTITIONS), "a")
    consumer = AIOKafkaConsumer(bootstrap_servers=broker.bootstrap_servers, auto_offset_reset="earliest")
    await consumer.start()
    consumer.assign(partitions)
    found: Found = defaultdict(list)
    for _ in range(PARTITIONS):
        message = await consumer.getone()
        found[message.partition].append(message.value)
    await consumer.stop()
    assert found == expected("a")
