"""What every client has to get right, whatever its language: played with its program, checked here."""

import time
from base64 import b64decode, b64encode
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.clients.programs import Line, Program
from tests.clients.python.security import librdkafka
from tests.clients.records import BASE_TIME_MS, COUNT, PARTITIONS, Sent, number_of, sent
from tests.processes import BrokerProcess

HALF = 10_000
_CREATED_S = _COMMITTED_S = 60
QUICK_COMPACTION = {"broker.compaction_check_ms": 20}
COMPACTED = {"cleanup.policy": "compact", "segment.bytes": "20000", "min.cleanable.dirty.ratio": "0.01"}
KEYS = 20
ROUNDS = 100

ADMIN_STEPS: list[Line] = [
    {"step": "create", "partitions": 2},
    {"step": "create again", "error": "TOPIC_ALREADY_EXISTS"},
    {"step": "configs", "retention.ms": "60000"},
    {"step": "alter", "retention.ms": "120000"},
    {"step": "alter badly", "error": "INVALID_CONFIG"},
    {"step": "grow", "partitions": 4},
    {"step": "delete records", "start": 4, "end": 10},
    {"step": "delete records beyond", "error": "OFFSET_OUT_OF_RANGE"},
    {"step": "delete", "listed": False},
]

GROUP_STEPS: list[Line] = [
    {"step": "list", "listed": True},
    {"step": "describe", "state": "Empty", "members": 0},
    {"step": "offsets", "offset": 5},
    {"step": "alter offsets", "offset": 3},
    {"step": "delete offsets", "left": 0},
    {"step": "delete", "listed": False},
    {"step": "delete again", "error": "GROUP_ID_NOT_FOUND"},
]

ACL_STEPS: list[Line] = [
    {"step": "create", "acls": ["User:* 4 2", "User:alice 3 3"]},
    {"step": "create badly", "error": "INVALID_REQUEST"},
    {"step": "delete", "deleted": 1},
    {"step": "left", "acls": ["User:* 4 2"]},
]
"""4 and 3 are Write and Read, 2 and 3 Deny and Allow."""


class Bootstrap(Protocol):
    """A broker, or a cluster."""

    @property
    def bootstrap_servers(self) -> str: ...


def make_topic(bootstrap: str, topic: str, partitions: int = PARTITIONS, config: dict[str, str] | None = None) -> None:
    """Create a topic. If the connection breaks, repeat it: the client does not, and the first may have succeeded."""
    admin = AdminClient(librdkafka(bootstrap))
    deadline, is_repeated = time.monotonic() + _CREATED_S, False
    while True:
        try:
            admin.create_topics([NewTopic(topic, partitions, config=config or {})])[topic].result(60)
            return
        except KafkaException as failure:
            code = failure.args[0].code()
            if is_repeated and code == KafkaError.TOPIC_ALREADY_EXISTS:
                return
            if code != KafkaError._TRANSPORT or time.monotonic() > deadline:
                raise
            is_repeated = True


def commit_start(bootstrap: str, topic: str, partitions: int = PARTITIONS) -> None:
    """Commit offset 0 everywhere for the group that is named as the topic: its members never need a reset position.

    A coordinator that moves meanwhile refuses partitions, and the client tells that with each of them only. It does not
    repeat a request whose connection breaks.
    """
    admin = AdminClient(librdkafka(bootstrap))
    deadline = time.monotonic() + _COMMITTED_S
    refused = [TopicPartition(topic, number, 0) for number in range(partitions)]
    while refused:
        places = [TopicPartition(topic, place.partition, 0) for place in refused]
        try:
            told = admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(topic, places)])[topic].result()
            refused = [place for place in told.topic_partitions if place.error is not None]
        except KafkaException as failure:
            if failure.args[0].code() != KafkaError._TRANSPORT:
                raise
        assert time.monotonic() < deadline, refused


def to_line(record: Sent) -> Line:
    def text(data: bytes | None) -> str | None:
        return None if data is None else b64encode(data).decode()

    headers = [{"name": name, "value": text(value)} for name, value in record.headers]
    return {
        "key": text(record.key), "value": text(record.value), "headers": headers, "timestamp": record.timestamp_ms
    }  # fmt: skip


def from_line(line: Line) -> Sent:
    value = b64decode(line["value"])
    headers = tuple((each["name"], b64decode(each["value"])) for each in line["headers"])
    key = None if line["key"] is None else b64decode(line["key"])
    return Sent(number_of(value), key, value, headers, line["timestamp"])


def lines_of(numbers: Iterable[int]) -> list[Line]:
    return [to_line(sent(number)) for number in numbers]


def check_records(program: Program, broker: Bootstrap, topic: str, codecs: tuple[str, ...], count: int = COUNT) -> None:
    """Records sent with each codec come back as they were sent."""
    make_topic(broker.bootstrap_servers, topic)
    share = count // len(codecs)
    for place, codec in enumerate(codecs):
        given = lines_of(range(place * share, (place + 1) * share))
        program.run("produce", broker.bootstrap_servers, topic, codec, given=given)
    read = program.run("consume", broker.bootstrap_servers, topic, topic, share * len(codecs))
    found = sorted(map(from_line, read), key=lambda each: each.number)
    assert found == [sent(number) for number in range(share * len(codecs))]
    partitions = {each: [line["offset"] for line in read if line["partition"] == each] for each in range(PARTITIONS)}
    assert all(offsets == list(range(len(offsets))) for offsets in partitions.values())


def check_kill(program: Program, topic: str, folder: Path) -> None:
    """An idempotent producer goes on over the death of the broker: each record is kept, and none twice."""
    broker = BrokerProcess(folder / "data").start()
    make_topic(broker.kafka, topic)
    producer = program.start("produce", broker.kafka, topic, "none")
    producer.give(lines_of(range(2 * HALF)))
    producer.until(lambda line: line["acknowledged"] > 0)
    broker.kill()
    broker.start()
    producer.finish()
    read = program.run("consume", broker.kafka, topic, topic, 2 * HALF)
    assert sorted(map(from_line, read)) == [sent(number) for number in range(2 * HALF)]
    ends = {each["partition"]: each["offset"] + 1 for each in sorted(read, key=lambda line: int(line["offset"]))}
    assert sum(ends.values()) == 2 * HALF
    assert broker.stop() == 0


def check_transaction(program: Program, broker: Bootstrap, topic: str) -> None:
    """Of two transactions, one of them aborted, a reader finds the records of the committed one alone."""
    make_topic(broker.bootstrap_servers, topic, 1)
    program.run("transact", broker.bootstrap_servers, topic)
    assert values_read(broker, topic, "read_uncommitted") == [b"aborted", b"committed"]
    assert values_read(broker, topic, "read_committed") == [b"committed"]


def values_read(broker: Bootstrap, topic: str, isolation_level: str) -> list[bytes | None]:
    """Return the values of the records in the first partition, from its start to its end."""
    to_the_end = {"enable.partition.eof": True, "fetch.wait.max.ms": 10, "enable.auto.commit": False}
    settings = {"group.id": topic, "isolation.level": isolation_level, **to_the_end}
    consumer = Consumer(librdkafka(broker.bootstrap_servers) | settings)
    consumer.assign([TopicPartition(topic, 0, 0)])
    values = []
    while (message := consumer.consume(1)[0]).error() is None:
        values.append(message.value())
    consumer.close()
    return values


def check_seek(program: Program, broker: Bootstrap, topic: str) -> None:
    """A time leads to the first record that is not older."""
    make_topic(broker.bootstrap_servers, topic, 1)
    program.run("produce", broker.bootstrap_servers, topic, "none", given=lines_of(range(0, 1000, 10)))
    wanted = {0: 0, BASE_TIME_MS + 500: 50, BASE_TIME_MS + 501: 51, BASE_TIME_MS + 990: 99}
    found = program.run("seek", broker.bootstrap_servers, topic, *wanted)
    assert [line["offset"] for line in found] == list(wanted.values())
    assert [from_line(line) for line in found] == [sent(offset * 10) for offset in wanted.values()]


def check_admin(program: Program, broker: Bootstrap, topic: str, without: tuple[str, ...] = ()) -> None:
    """An administrator's steps have Kafka's outcomes; without: the steps that a client does not know."""
    steps = program.run("admin", broker.bootstrap_servers, topic)
    assert steps == [each for each in ADMIN_STEPS if each["step"] not in without], steps


def check_acl_admin(program: Program, broker: Bootstrap, topic: str) -> None:
    """ACLs are created, found by the name of a topic for which they count, and deleted one by one."""
    steps = program.run("acls", broker.bootstrap_servers, topic)
    assert steps == ACL_STEPS, steps


def check_group_admin(program: Program, broker: Bootstrap, topic: str, without: tuple[str, ...] = ()) -> None:
    """A group without members is listed, described, moved and removed."""
    make_topic(broker.bootstrap_servers, topic, 1)
    program.run("produce", broker.bootstrap_servers, topic, "none", given=lines_of(range(5)))
    program.run("consume", broker.bootstrap_servers, topic, f"{topic}-readers", 5)
    steps = program.run("groups", broker.bootstrap_servers, topic, f"{topic}-readers")
    assert steps == [each for each in GROUP_STEPS if each["step"] not in without], steps


def check_compaction(program: Program, broker: Bootstrap, topic: str) -> None:
    """Of each key a reader finds what was written last, be it nothing, at its old offset; the rest are holes."""
    make_topic(broker.bootstrap_servers, topic, 1, COMPACTED)
    sent_last = range(KEYS * (ROUNDS - 1), KEYS * ROUNDS)
    values = [b"%d:" % number + bytes(100) for number in range(KEYS * ROUNDS)]
    # Of the last round each third record is a tombstone.
    written = [None if number in sent_last and number % 3 == 0 else value for number, value in enumerate(values)]
    given = [keyed(b"%d" % (number % KEYS), value) for number, value in enumerate(written)]
    program.run("produce", broker.bootstrap_servers, topic, "none", given=given)
    # The active segment is not compacted: these end the one that holds the last of the others.
    for end in (b"end", b"very end"):
        program.run("produce", broker.bootstrap_servers, topic, "none", given=[keyed(end, bytes(15_000))])
    await_compaction(broker, topic, KEYS + 2)
    read = program.run("read", broker.bootstrap_servers, topic)
    assert [line["offset"] for line in read] == [*sent_last, KEYS * ROUNDS, KEYS * ROUNDS + 1]
    found = [(line["key"], line["value"]) for line in read[:KEYS]]
    assert found == [(given[number]["key"], given[number]["value"]) for number in sent_last]


def keyed(key: bytes, value: bytes | None) -> Line:
    return to_line(Sent(0, key, value, (), BASE_TIME_MS))


def await_compaction(broker: Bootstrap, topic: str, count: int) -> None:
    """Wait until no more than so many records are left of a partition."""
    consumer = Consumer(librdkafka(broker.bootstrap_servers) | {"group.id": topic, "enable.partition.eof": True})
    left = count + 1
    while left > count:
        consumer.assign([TopicPartition(topic, 0, 0)])
        left = 0
        while consumer.consume(1)[0].error() is None:
            left += 1
    consumer.close()
