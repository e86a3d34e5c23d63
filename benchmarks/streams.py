"""Producing and consuming as fast as confluent-kafka can, and end-to-end latency at a steady rate."""

import time
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.workers import Gate

_BATCH = 10_000
_STAMP_BYTES = 8


def create_topic(bootstrap_servers: str, name: str, partitions: int, config: dict[str, str]) -> None:
    """Create a topic and wait until it is there."""
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    admin.create_topics([NewTopic(name, num_partitions=partitions, config=config)])[name].result(60)


def produce(gate: Gate, bootstrap_servers: str, topic: str, partition: int, count: int, size: int) -> None:
    """Produce so many messages of one size to a partition with acks=all; raise unless every one is acknowledged."""
    failures: list[str] = []

    def delivered(error: Any, message: Any) -> None:
        if error is not None:
            failures.append(str(error))

    producer = Producer(
        {
            "bootstrap.servers": bootstrap_servers,
            "acks": "all",
            "linger.ms": 5,
            "batch.size": 1_000_000,
            "batch.num.messages": 100_000,
            "queue.buffering.max.messages": 1_000_000,
            "queue.buffering.max.kbytes": 1_000_000,
            "delivery.report.only.error": True,
        }
    )
    producer.list_topics(topic, 30)
    messages = [{"value": bytes(size)} for _ in range(_BATCH)]
    gate.wait()
    sent = 0
    while sent < count:
        queued = producer.produce_batch(topic, messages[: count - sent], partition, on_delivery=delivered)
        sent += queued
        producer.poll(0 if queued == _BATCH else 0.01)
    if producer.flush(120) or failures:
        raise RuntimeError(f"not acknowledged: {len(producer)} messages, {failures[:1]}")


def consume(gate: Gate, bootstrap_servers: str, topic: str, partition: int, count: int) -> int:
    """Read so many messages of a partition from its start. Returns the bytes of their values."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "bench",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "fetch.queue.backoff.ms": 5,
            "queued.min.messages": 1_000_000,
            "fetch.message.max.bytes": 10_000_000,
        }
    )
    consumer.list_topics(topic, 30)
    gate.wait()
    consumer.assign([TopicPartition(topic, partition, 0)])
    total = read = 0
    while read < count:
        messages = consumer.consume(_BATCH, 30)
        if not messages:
            raise RuntimeError(f"{read} of {count} messages came")
        read += len(messages)
        total += sum(map(len, messages))
    consumer.close()
    return total


def send_steadily(gate: Gate, bootstrap_servers: str, topic: str, rate: int, seconds: int, size: int) -> int:
    """Produce messages at a rate with acks=all and no linger, each with its time of sending in front."""
    producer = Producer(
        {"bootstrap.servers": bootstrap_servers, "acks": "all", "linger.ms": 0, "socket.nagle.disable": True}
    )
    producer.list_topics(topic, 30)
    padding = bytes(size - _STAMP_BYTES)
    count = rate * seconds
    gate.wait()
    started = time.perf_counter()
    for number in range(count):
        ahead = started + number / rate - time.perf_counter()
        if ahead > 0:
            producer.poll(ahead)
        producer.produce(topic, time.time_ns().to_bytes(_STAMP_BYTES, "big") + padding)
    if producer.flush(60):
        raise RuntimeError(f"{len(producer)} messages are not acknowledged")
    return count


def receive_steadily(gate: Gate, bootstrap_servers: str, topic: str, count: int, partitions: int) -> list[int]:
    """Read so many messages as they come. Returns how old each was, in microseconds."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "bench",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 100,
            "socket.nagle.disable": True,
        }
    )
    consumer.list_topics(topic, 30)
    consumer.assign([TopicPartition(topic, each, 0) for each in range(partitions)])
    gate.wait()
    ages: list[int] = []
    while len(ages) < count:
        message = consumer.poll(30)
        if message is None:
            raise RuntimeError(f"{len(ages)} of {count} messages came")
        ages.append((time.time_ns() - int.from_bytes(message.value()[:_STAMP_BYTES], "big")) // 1000)
    consumer.close()
    return ages
