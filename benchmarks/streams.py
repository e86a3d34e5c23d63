"""Producing and consuming as fast as confluent-kafka can."""

import time
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks import clients
from benchmarks.workers import Gate

_BATCH = 10_000


@dataclass(frozen=True, slots=True)
class Consumed:
    """What a consumer read, and how long it took from asking for the first message to having the last one."""

    messages: int
    value_bytes: int
    seconds: float


def create_topic(bootstrap_servers: str, name: str, partitions: int, config: dict[str, str]) -> None:
    """Create a topic. Its partitions may take some time yet until they answer."""
    admin = AdminClient(clients.client(bootstrap_servers))
    admin.create_topics([NewTopic(name, num_partitions=partitions, config=config)])[name].result(60)


def produce(gate: Gate, bootstrap_servers: str, topic: str, partition: int, count: int, size: int) -> None:
    """Produce so many messages of one size to a partition with acks=all; raise unless every one is acknowledged."""
    failures: list[str] = []

    def delivered(error: Any, message: Any) -> None:
        if error is not None:
            failures.append(str(error))

    producer = Producer(
        clients.producer(
            bootstrap_servers,
            linger_ms=5,
            batch_size=1_000_000,
            batch_num_messages=100_000,
            queue_buffering_max_messages=1_000_000,
            queue_buffering_max_kbytes=1_000_000,
            delivery_report_only_error=True,
        )
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


def consume(gate: Gate, bootstrap_servers: str, topic: str, partitions: int, count: int) -> Consumed:
    """Read so many messages of some partitions from their starts."""
    consumer = Consumer(
        clients.consumer(
            bootstrap_servers,
            fetch_queue_backoff_ms=5,
            queued_min_messages=1_000_000,
            fetch_message_max_bytes=10_000_000,
        )
    )
    consumer.list_topics(topic, 30)
    gate.wait()
    started = time.perf_counter()
    consumer.assign([TopicPartition(topic, each, 0) for each in range(partitions)])
    read = value_bytes = 0
    while read < count:
        messages = consumer.consume(_BATCH, 30)
        if not messages:
            raise RuntimeError(f"{read} of {count} messages came")
        read += len(messages)
        value_bytes += sum(map(len, messages))
    seconds = time.perf_counter() - started
    consumer.close()
    return Consumed(read, value_bytes, seconds)
