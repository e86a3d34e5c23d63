"""Topics with all that records can have: nulls, empty bytes, headers, all codecs, aborted transactions, holes."""

import random
import time
from collections.abc import Iterable, Iterator

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic

from benchmarks.etl.content import Content, Record, content_of

PARTITIONS = 3
_CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
_START_MS = 1_767_225_600_000
_SPREAD_MS = 3 * 86_400_000
_HEADER_NAMES = ("trace", "source", "tenant")
_ABORTED, _COMMITTED = (4,), (1, 3)
"""Chunks of records by their number modulo 5: written in aborted and in committed transactions, the others in none."""

_TURNS = 5
_KEYS_SHARE = 4
_PATIENCE_S = 300.0


def create(servers: str, topic: str, **config: str) -> None:
    settings = {"retention.ms": "-1"} | {name.replace("_", "."): value for name, value in config.items()}
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic(topic, num_partitions=PARTITIONS, config=settings)])[topic].result(60)


def generated(start: int, count: int, *, keys: int | None = None) -> Iterator[Record]:
    """Records from a seed: the same numbers are the same records. keys: how many keys there are, if each has one."""
    source = random.Random(start)
    for number in range(start, start + count):
        kind = source.random()
        value = None if kind < 0.05 else b"" if kind < 0.1 else source.randbytes(10) + b'{"number": %d}' % number * 4
        key = None if kind > 0.7 else b"" if kind > 0.65 else b"key-%d" % number
        yield Record(
            partition=number % PARTITIONS if keys is None else number % keys % PARTITIONS,
            timestamp_ms=_START_MS + number * 7919 % _SPREAD_MS,
            key=key if keys is None else b"key-%d" % (number % keys),
            value=value,
            headers=_headers(source, number),
        )


def _headers(source: random.Random, number: int) -> tuple[tuple[str, bytes | None], ...]:
    count = source.choice((0, 0, 1, 2, 4))
    values = (None, b"", b"%d" % number, "ü".encode())
    return tuple((source.choice(_HEADER_NAMES), source.choice(values)) for _ in range(count))


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

    def fill(self, count: int, chunk: int, *, keys: int | None = None) -> Content:
        """Write so many records, besides those of aborted transactions. Returns the hash of the visible ones."""
        content, number, written = Content(), 0, 0
        while written < count:
            records = list(generated(number * chunk, min(chunk, count - written), keys=keys))
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
    filler.fill(count, chunk, keys=count // _KEYS_SHARE)
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
