"""Transactions one after the other, as fast as confluent-kafka can."""

from typing import Any

from confluent_kafka import Producer

from benchmarks import clients
from benchmarks.workers import Gate

RECORDS = 100
"""Records of a transaction."""

_TIMEOUT_S = 60


def commit_transactions(gate: Gate, bootstrap_servers: str, topic: str, partition: int, count: int, size: int) -> None:
    """Commit so many transactions of records of one size to a partition; raise unless every one is committed.

    One more transaction goes before, which is not counted: it connects the producer with its coordinator.
    """
    producer = Producer(
        clients.producer(bootstrap_servers, linger_ms=5, batch_size=1_000_000, transactional_id=f"{topic}-{partition}")
    )
    producer.init_transactions(_TIMEOUT_S)
    messages: list[dict[str, Any]] = [{"value": bytes(size)} for _ in range(RECORDS)]
    _commit(producer, topic, partition, messages)
    gate.wait()
    for _ in range(count):
        _commit(producer, topic, partition, messages)


def _commit(producer: Producer, topic: str, partition: int, messages: list[dict[str, Any]]) -> None:
    producer.begin_transaction()
    if producer.produce_batch(topic, messages, partition) != len(messages):
        raise RuntimeError("the producer's queue was full")
    producer.commit_transaction(_TIMEOUT_S)
