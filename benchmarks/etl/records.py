"""Topics with all that logs can have: all codecs, committed and aborted transactions, holes of a compaction."""

import time
from collections.abc import Iterable, Iterator
from itertools import islice

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic

from benchmarks.etl.content import Content, Record, content_of
from benchmarks.etl.demo_records import PARTITIONS, keyed_demo_records

_CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
_ABORTED, _COMMITTED = (4,), (1, 3)
"""Chunks of records by their number modulo 5: written in aborted and in committed transactions, the others in none."""

_TURNS = 5
_REPETITIONS = 4
_PATIENCE_S = 300.0


def create(servers: str, topic: str, **config: str) -> None:
    settings = {"retention.ms": "-1"} | {name.replace("_", "."): value for name, value in config.items()}
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic(topic, num_partitions=PARTITIONS, config=settings)])[topic].result(60)


class Filler:
    """Writes chunks of records in turn with each codec, plainly, in committed and in aborted transactions."""

    def __init__(self, servers: str, topic: str) -> None:
        self._topic = topic
        self._failures: list[object] = []
        common = {"bootstrap.servers": servers, "linger.ms": 20, "queue.buffering.max.messages": 1_000_000}
        self._plain = [Producer(common | {"compression.type": codec}) for codec in _CODECS]
        self._transactional = [
            Producer(common | {"compression.type": codec, "transactional.id": f"{topic}-{codec}"}) for codec in _CODECS
        ]
        for producer in self._transactional:
            producer.init_transactions(60)

    def fill(self, source: Iterator[Record], count: int, chunk: int) -> Content:
        """Write so many records, besides those of aborted transactions. Returns the hash of the visible ones."""
        content, number, written = Content(), 0, 0
        while written < count:
            records = list(islice(source, min(chunk, count - written)))
            is_visible = self._write(number, records)
            if is_visible:
                written += len(records)
                for record in records:
                    content = content.plus(record)
            number += 1
        for producer in self._plain:
            assert producer.flush(120) == 0
        assert not self._failures
        return content

    def _write(self, number: int, records: list[Record]) -> bool:
        """Write a chunk; returns whether readers of committed records see it."""
        turn, codec = number % _TURNS, number // _TURNS % len(_CODECS)
        if turn not in _ABORTED + _COMMITTED:
            self._produce(self._plain[codec], records)
            return True
        producer = self._transactional[codec]
        producer.begin_transaction()
        self._produce(producer, records)
        if turn in _ABORTED:
            assert producer.flush(120) == 0  # Aborted records that the broker has never seen would show nothing.
            producer.abort_transaction(60)
            return False
        producer.commit_transaction(60)
        return True

    def _produce(self, producer: Producer, records: Iterable[Record]) -> None:
        for record in records:
            producer.produce(
                self._topic,
                key=record.key,
                value=record.value,
                headers=list(record.headers),
                partition=record.partition,
                timestamp=record.timestamp_ms,
                on_delivery=self._note,
            )
            producer.poll(0)
        while len(producer) > 100_000:
            producer.poll(0.02)

    def _note(self, error: object, _: object) -> None:
        if error is not None:
            self._failures.append(error)


def fill_compacted(servers: str, topic: str, count: int, chunk: int) -> Content:
    """Write records with repeated keys, let the broker compact them, and keep it from compacting more.

    Returns the hash of what an ordinary consumer reads then.
    """
    size = str(max(20_000, count * 2))
    compaction = {"cleanup_policy": "compact", "segment_bytes": size, "min_cleanable_dirty_ratio": "0.01"}
    create(servers, topic, **compaction)
    filler = Filler(servers, topic)
    filler.fill(keyed_demo_records(count // _REPETITIONS), count, chunk)
    deadline = time.monotonic() + _PATIENCE_S
    while sum(1 for _ in consumed(servers, topic)) > count * 3 // 4:
        assert time.monotonic() < deadline, "the broker compacts nothing"
    admin = AdminClient({"bootstrap.servers": servers})
    entry = ConfigEntry("cleanup.policy", "delete", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result(60)
    content = content_of(consumed(servers, topic))
    # A compaction that had begun may end after the first look.
    while (again := content_of(consumed(servers, topic))) != content:
        content = again
    return content


def consumed(servers: str, topic: str) -> Iterator[Record]:
    """Read a topic with an ordinary consumer of committed records."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "content",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
        }
    )
    consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
    ended = 0
    try:
        while ended < PARTITIONS:
            for message in consumer.consume(10_000, 1.0):
                if message.error() is not None:
                    ended += 1
                    continue
                yield Record(
                    partition=message.partition(),
                    timestamp_ms=message.timestamp()[1],
                    key=message.key(),
                    value=message.value(),
                    headers=tuple((name, value) for name, value in message.headers() or ()),
                )
    finally:
        consumer.close()
