"""End-to-end latency at a steady rate.

A message's age counts from when it was due to be sent, not from when the generator got round to it: a stall is seen by
every message that it held up. Times are of the monotonic clock, which all processes of a machine share.
"""

import time
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition

from benchmarks import clients
from benchmarks.workers import Gate

_IN_FLIGHT = 5
"""Open requests, as the Java client and every idempotent producer have them: what waits meanwhile goes as one batch."""

_STAMP_BYTES = 8
_SECOND_NS = 1_000_000_000


def send_steadily(gate: Gate, bootstrap_servers: str, topic: str, rate: int, count: int, size: int) -> None:
    """Produce messages at a rate with acks=all and no linger, each with the time it was due in front."""
    failures: list[str] = []

    def delivered(error: Any, message: Any) -> None:
        if error is not None:
            failures.append(str(error))

    producer = Producer(
        clients.producer(
            bootstrap_servers,
            linger_ms=0,
            max_in_flight=_IN_FLIGHT,
            queue_buffering_max_messages=1_000_000,
            socket_nagle_disable=True,
            delivery_report_only_error=True,
        )
    )
    producer.list_topics(topic, 30)
    padding = bytes(size - _STAMP_BYTES)
    gate.wait()
    started_ns = time.monotonic_ns()
    for number in range(count):
        due_ns = started_ns + number * _SECOND_NS // rate
        ahead_ns = due_ns - time.monotonic_ns()
        if ahead_ns > 0:
            time.sleep(ahead_ns / _SECOND_NS)
            producer.poll(0)
        producer.produce(topic, due_ns.to_bytes(_STAMP_BYTES, "big") + padding, on_delivery=delivered)
    if producer.flush(60) or failures:
        raise RuntimeError(f"not acknowledged: {len(producer)} messages, {failures[:1]}")


def receive_steadily(gate: Gate, bootstrap_servers: str, topic: str, count: int) -> list[int]:
    """Read so many messages of partition 0 as they come. Returns how old each was, in microseconds, in order."""
    consumer = Consumer(clients.consumer(bootstrap_servers, fetch_wait_max_ms=100, socket_nagle_disable=True))
    consumer.list_topics(topic, 30)
    consumer.assign([TopicPartition(topic, 0, 0)])
    gate.wait()
    ages: list[int] = []
    while len(ages) < count:
        message = consumer.poll(30)
        if message is None or message.error() is not None:
            raise RuntimeError(f"{len(ages)} of {count} messages came: {message and message.error()}")
        due_ns = int.from_bytes(message.value()[:_STAMP_BYTES], "big")
        ages.append((time.monotonic_ns() - due_ns) // 1000)
    consumer.close()
    return ages
