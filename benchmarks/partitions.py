"""A topic of many partitions: one record to each."""

from typing import Any

from confluent_kafka import Producer

from benchmarks import clients
from benchmarks.workers import Gate


def produce_to_each(gate: Gate, bootstrap_servers: str, topic: str, partitions: int, size: int) -> None:
    """Produce one record to each partition with acks=all; raise unless every one is acknowledged."""
    acknowledged: set[int] = set()

    def delivered(error: Any, message: Any) -> None:
        if error is None:
            acknowledged.add(message.partition())

    producer = Producer(clients.producer(bootstrap_servers))
    producer.list_topics(topic, 60)
    gate.wait()
    for partition in range(partitions):
        producer.produce(topic, bytes(size), partition=partition, on_delivery=delivered)
    producer.flush(120)
    if len(acknowledged) < partitions:
        raise RuntimeError(f"{len(acknowledged)} of {partitions} partitions acknowledged their record")
