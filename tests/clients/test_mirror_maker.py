"""MirrorMaker 2: topics, their settings and the offsets of groups are copied from one broker to another."""

import re
from collections.abc import Iterable, Mapping
from struct import pack, unpack_from

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from tests.clients.applications import Killable, Processes, bounds_of, committed_of, until
from tests.clients.python.security import librdkafka
from tests.clients.records import Sent, number_of, sent
from tests.clients.scenarios import make_topic
from tests.clients.toolchains import connect_command

TOPIC = "orders"
COPY = f"source.{TOPIC}"
CHECKPOINTS = "source.checkpoints.internal"
GROUP = "readers"
PARTITIONS = 2
COUNT = 20_000
POLL_SECONDS = 60
INTERVALS = ("refresh.topics", "refresh.groups", "sync.topic.configs", "emit.checkpoints", "sync.group.offsets")
INTERNAL = ("offset-syncs.topic", "checkpoints.topic", "heartbeats.topic")
STORAGES = ("offset.storage", "status.storage", "config.storage")
SETTINGS = {
    "clusters": "source,target",
    "source->target.enabled": "true",
    "source->target.topics": TOPIC,
    "sync.group.offsets.enabled": "true",
    # Each record's place is translated, not that of each hundredth.
    "offset.lag.max": "0",
    "plugin.discovery": "service_load",
    "replication.factor": "1",
    **{f"{each}.replication.factor": "1" for each in INTERNAL + STORAGES},
    **{f"{each}.interval.seconds": "1" for each in INTERVALS},
}


class Side:
    """The topic on one of the two brokers, as its producer, its readers and its administrator see it."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._settings = librdkafka(bootstrap) | {"log_level": 0}
        self._topic = topic
        self._resource = ConfigResource(ResourceType.TOPIC, topic)
        self._admin = AdminClient(self._settings)
        self._group = self._consumer()
        self._producer = Producer(self._settings | {"enable.idempotence": True})

    def send(self, numbers: Iterable[int]) -> None:
        """Give records to the producer, by turns to each partition."""
        for record in map(sent, numbers):
            self._producer.produce(
                self._topic,
                record.value,
                record.key,
                record.number % PARTITIONS,
                timestamp=record.timestamp_ms,
                headers=list(record.headers),
            )

    def flush(self) -> None:
        assert self._producer.flush(POLL_SECONDS) == 0

    def is_there(self) -> bool:
        return self._topic in self._admin.list_topics(timeout=POLL_SECONDS).topics

    def ends(self) -> list[int]:
        return [bounds_of(self._group, place)[1] for place in self._places()]

    def has_records(self) -> bool:
        return any(self.ends())

    def read(self, last: Iterable[int]) -> list[list[Sent]]:
        """The records of each partition, up to the first one that has the last number."""
        consumer = self._consumer()
        partitions: list[list[Sent]] = []
        for partition, number in enumerate(last):
            consumer.assign([TopicPartition(self._topic, partition, 0)])
            partitions.append([])
            while not partitions[-1] or partitions[-1][-1].number != number:
                partitions[-1].append(next_of(consumer))
        consumer.close()
        return partitions

    def read_as_group(self, count: int) -> list[int]:
        """Read so many records as a member of the group, and commit them. Returns their numbers."""
        consumer = self._consumer()
        consumer.subscribe([self._topic])
        numbers = [next_of(consumer).number for _ in range(count)]
        consumer.commit(asynchronous=False)
        consumer.close()
        return numbers

    def committed(self) -> list[int]:
        """The offsets of the group."""
        return committed_of(self._group, self._places())

    def config(self, name: str) -> str:
        return str(self._admin.describe_configs([self._resource])[self._resource].result(POLL_SECONDS)[name].value)

    def set_config(self, name: str, value: str) -> None:
        entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, self._topic, incremental_configs=[entry])
        self._admin.incremental_alter_configs([resource])[resource].result(POLL_SECONDS)

    def _consumer(self) -> Consumer:
        own = {"group.id": GROUP, "enable.auto.commit": False, "auto.offset.reset": "earliest"}
        return Consumer(self._settings | own)

    def _places(self) -> list[TopicPartition]:
        return [TopicPartition(self._topic, partition) for partition in range(PARTITIONS)]


def next_of(consumer: Consumer) -> Sent:
    message = consumer.poll(POLL_SECONDS)
    assert message is not None
    assert message.error() is None
    headers = tuple(message.headers() or ())
    return Sent(number_of(message.value()), message.key(), message.value(), headers, message.timestamp()[1])


class Checkpoints:
    """The topic of MirrorMaker that has the offsets of the group at the source, and where that is at the target."""

    def __init__(self, bootstrap: str) -> None:
        self._consumer = Consumer(librdkafka(bootstrap) | {"group.id": "checkpoints", "log_level": 0})
        self._place = TopicPartition(CHECKPOINTS, 0, 0)

    def newest(self) -> list[tuple[int, int]]:
        """The offsets at the source and at the target, for each partition of the topic."""
        self._consumer.assign([self._place])
        _, end = bounds_of(self._consumer, self._place)
        found: dict[bytes, tuple[int, int]] = {}
        for message in self._consumer.consume(end, POLL_SECONDS):
            version, source_offset, target_offset = unpack_from(">hqq", message.value())
            assert version == 0
            found[message.key()] = source_offset, target_offset
        return [found.get(self._key(partition), (0, 0)) for partition in range(PARTITIONS)]

    @staticmethod
    def _key(partition: int) -> bytes:
        """The group and the topic as strings with their lengths before them, and the partition."""
        names = (GROUP.encode(), COPY.encode())
        return b"".join(pack(">h", len(name)) + name for name in names) + pack(">i", partition)


def errors(log: str) -> list[str]:
    return re.findall(r"^\S+ ERROR .*", log, re.MULTILINE)


@pytest.mark.parametrize("killed", ["source", "target"])
def test_a_topic_and_its_group_are_mirrored_over_a_kill_of_a_broker(processes: Processes, killed: str) -> None:
    brokers = {name: processes.broker(name) for name in ("source", "target")}
    check_mirror(processes, brokers, killed)
    assert [broker.stop() for broker in brokers.values()] == [0, 0]


def check_mirror(
    processes: Processes, brokers: Mapping[str, Killable], killed: str, client: Mapping[str, str] | None = None
) -> None:
    """A topic and its group are mirrored over a kill of a broker. client: how MirrorMaker connects, if it logs in."""
    places = {name: broker.bootstrap_servers for name, broker in brokers.items()}
    addresses = {f"{name}.bootstrap.servers": place for name, place in places.items()}
    make_topic(places["source"], TOPIC, PARTITIONS, {"retention.ms": "-1"})
    source, target = Side(places["source"], TOPIC), Side(places["target"], COPY)
    source.send(range(COUNT))
    source.flush()
    settings = processes.properties("mirror", SETTINGS | addresses | dict(client or {}))
    mirror = processes.application(
        "mirror", [*connect_command("org.apache.kafka.connect.mirror.MirrorMaker"), settings]
    )

    until(lambda: target.is_there() and target.has_records(), "records are mirrored")
    if client is None:
        mirror.await_line("No ACL authorizer is configured on the source Kafka cluster")
    assert errors(mirror.log()) == []
    source.send(range(COUNT, 2 * COUNT))
    brokers[killed].kill()
    brokers[killed].start()
    source.flush()
    last = range(2 * COUNT - PARTITIONS, 2 * COUNT)
    expected = [list(map(sent, range(partition, 2 * COUNT, PARTITIONS))) for partition in range(PARTITIONS)]
    assert source.read(last) == expected
    # MirrorMaker may repeat what it had not been told to be there.
    assert [list(dict.fromkeys(records)) for records in target.read(last)] == expected

    log_before = len(mirror.log())
    assert target.config("retention.ms") == "-1"
    source.set_config("max.message.bytes", "2000000")
    assert sorted(source.read_as_group(2 * COUNT)) == list(range(2 * COUNT))
    until(lambda: target.config("max.message.bytes") == "2000000", "the new setting is mirrored")
    until(lambda: target.committed() == target.ends(), "the group's offsets are mirrored")
    checkpoints = list(zip(source.ends(), target.ends(), strict=True))
    reader = Checkpoints(places["target"])
    until(lambda: reader.newest() == checkpoints, "there are checkpoints of the ends")
    source.send([2 * COUNT])
    source.flush()
    assert target.read_as_group(1) == [2 * COUNT]
    assert errors(mirror.log()[log_before:]) == []
    assert mirror.is_running()
