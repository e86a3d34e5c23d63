"""The topics that both connectors read. All records differ, and are spread evenly over two partitions."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

PARTITIONS = 2
_AT_ONCE = 10_000
_BYTES_AT_ONCE = 10_000_000
_MOST_WAITING = 300_000
_MOST_WAITING_BYTES = 200_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """A topic. size: bytes of each value. headers: how many each record has."""

    topic: str
    records: int
    size: int
    headers: int = 0
    partitions: int = PARTITIONS


def create(servers: str, topic: str, partitions: int = PARTITIONS) -> None:
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic(topic, num_partitions=partitions, config={"retention.ms": "-1"})])[topic].result(60)


def fill(servers: str, load: Load) -> None:
    """Create a topic and produce its records."""
    create(servers, load.topic, load.partitions)
    producer = Producer(
        {
            "bootstrap.servers": servers,
            "linger.ms": 20,
            "batch.size": 500_000,
            "queue.buffering.max.messages": 2 * _MOST_WAITING,
            "queue.buffering.max.kbytes": 400_000,
            "log_level": 4,
        }
    )
    step = max(1, min(_AT_ONCE, _BYTES_AT_ONCE // load.size))
    for start in range(0, load.records, step):
        _produce(producer, load, range(start, min(start + step, load.records)))
        while len(producer) > min(_MOST_WAITING, _MOST_WAITING_BYTES // load.size):
            producer.poll(0.02)
    assert producer.flush(300) == 0


def _produce(producer: Producer, load: Load, numbers: range) -> None:
    if load.headers:
        for number in numbers:
            headers = [(f"header-{place}", b"%d" % number) for place in range(load.headers)]
            producer.produce(load.topic, _value(load, number), partition=number % load.partitions, headers=headers)
    else:
        producer.produce_batch(load.topic, list(_messages(load, numbers)))


def _messages(load: Load, numbers: range) -> Iterator[dict[str, Any]]:
    for number in numbers:
        yield {"value": _value(load, number), "partition": number % load.partitions}


def _value(load: Load, number: int) -> bytes:
    return (b'{"number": %d, "city": "%d", "more": "' % (number, number * 7919 % 1000)).ljust(load.size, b"-")
