"""Making topics, filling them, and reading them with Spark."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from confluent_kafka import IsolationLevel, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic, OffsetSpec

from pyspark_conveyor.brokers.token_file import TOKEN_URL
from tests.clients.applications import until
from tests.clients.python.security import librdkafka, token_file

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class HasAddress(Protocol):
    """A broker in this process or in another one."""

    @property
    def bootstrap_servers(self) -> str: ...


BASE_TIME_MS = 1_700_000_000_000
_MARKERS_S = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """A record to produce."""

    value: bytes | None = b"value"
    key: bytes | None = None
    partition: int = 0
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp_ms: int = BASE_TIME_MS


def create_topic(broker: HasAddress, topic: str, partitions: int = 1, **config: str) -> None:
    admin = AdminClient(librdkafka(broker.bootstrap_servers))
    # The records are of 2023, which the usual retention would delete after some minutes.
    settings = {"retention.ms": "-1"} | {name.replace("_", "."): value for name, value in config.items()}
    wanted = NewTopic(topic, num_partitions=partitions, config=settings)
    admin.create_topics([wanted])[topic].result(30)


def delete_topic(broker: HasAddress, topic: str) -> None:
    admin = AdminClient(librdkafka(broker.bootstrap_servers))
    admin.delete_topics([topic])[topic].result(30)


def add_partitions(broker: HasAddress, topic: str, partitions: int) -> None:
    """Let a topic have so many partitions."""
    admin = AdminClient(librdkafka(broker.bootstrap_servers))
    admin.create_partitions([NewPartitions(topic, partitions)])[topic].result(30)


def await_markers(broker: HasAddress, topic: str) -> None:
    """Return once committed readers may read everything: a commit is confirmed before its markers are written."""
    admin = AdminClient(librdkafka(broker.bootstrap_servers))
    partitions = admin.list_topics(topic, timeout=60).topics[topic].partitions
    latest = {TopicPartition(topic, partition): OffsetSpec.latest() for partition in partitions}

    def ends(isolation: IsolationLevel) -> list[int]:
        found = admin.list_offsets(latest, isolation_level=isolation, request_timeout=60)
        return [offsets.result().offset for offsets in found.values()]

    until(
        lambda: ends(IsolationLevel.READ_COMMITTED) == ends(IsolationLevel.READ_UNCOMMITTED),
        f"the end of the transactions on {topic}",
        _MARKERS_S,
    )


def delete_records(broker: HasAddress, topic: str, before: int, partitions: int = 1) -> None:
    """Delete what lies before an offset, in each partition."""
    admin = AdminClient(librdkafka(broker.bootstrap_servers))
    for done in admin.delete_records([TopicPartition(topic, each, before) for each in range(partitions)]).values():
        done.result(30)


def produce(broker: HasAddress, topic: str, records: Iterable[Sent]) -> None:
    """Produce and wait until everything is acknowledged."""
    errors: list[object] = []
    producer = Producer(librdkafka(broker.bootstrap_servers) | {"enable.idempotence": True, "linger.ms": 5})
    for each in records:
        producer.produce(
            topic,
            value=each.value,
            key=each.key,
            partition=each.partition,
            headers=list(each.headers),
            timestamp=each.timestamp_ms,
            on_delivery=lambda error, _: errors.append(error) if error is not None else None,
        )
    assert producer.flush(60) == 0
    assert errors == []


def numbered(numbers: Iterable[int], partitions: int = 1) -> list[Sent]:
    """Records whose value is their number, in turn to each partition, a second apart."""
    return [
        Sent(value=b"%d" % number, partition=number % partitions, timestamp_ms=BASE_TIME_MS + 1000 * number)
        for number in numbers
    ]


def connection_options(bootstrap: str) -> dict[str, str]:
    """Return the options by which Spark connects as the test does, as `tests.clients.python.security` has it."""
    client = librdkafka(bootstrap)
    if client.pop("oauth_cb", None) is not None:
        client[TOKEN_URL] = token_file().as_uri()
    return {"bootstrap.servers": client.pop("bootstrap.servers")} | {
        f"kafka.{name}": value for name, value in client.items()
    }


def read(spark: "SparkSession", broker: HasAddress, topic: str, **options: object) -> "DataFrame":
    reader = (
        spark.read.format("conveyor").options(**connection_options(broker.bootstrap_servers)).option("topic", topic)
    )
    return reader.options(**{name: str(value) for name, value in options.items()}).load()


def numbers_of(table: "DataFrame") -> list[int]:
    """The values of numbered records, in the order in which Spark brings them."""
    return [int(row.value) for row in table.select("value").collect()]
