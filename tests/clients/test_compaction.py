"""Compaction as a reader sees it: by the broker's own process on a real disk, while clients write and read."""

from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from conveyor.testing import Broker

SETTINGS = {"broker.compaction_check_ms": 20}
CONFIG = {"cleanup.policy": "compact", "segment.bytes": "20000", "min.cleanable.dirty.ratio": "0.01"}
KEYS = 10
ROUNDS = 200


def read_all(
    broker: Broker, topic: str, isolation_level: str = "read_committed"
) -> list[tuple[int, bytes, bytes | None]]:
    """(offset, key, value) from the beginning to the end."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": "reader",
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
            "isolation.level": isolation_level,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    read = []
    while (message := consumer.poll(20)) is not None and message.error() is None:
        read.append((message.offset(), message.key(), message.value()))
    consumer.close()
    return read


def test_a_reader_finds_the_last_value_of_each_key(tmp_path: Path) -> None:
    with Broker(tmp_path, settings=SETTINGS) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        admin.create_topics([NewTopic("state", 1, config=CONFIG)])["state"].result(20)
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 1, "batch.size": 1000})
        for number in range(KEYS * ROUNDS):
            producer.produce("state", key=b"%d" % (number % KEYS), value=b"%d" % number + bytes(100))
        producer.flush()
        while len(read := read_all(broker, "state")) > KEYS * ROUNDS // 2:
            producer.produce("state", key=b"0", value=b"again")
            producer.flush()
        last = {key: value for _, key, value in read}
        offsets = [offset for offset, _, _ in read]
        assert offsets == sorted(offsets)
        assert sorted(last) == sorted(b"%d" % key for key in range(KEYS))
        for key in range(1, KEYS):
            assert last[b"%d" % key] == b"%d" % (KEYS * (ROUNDS - 1) + key) + bytes(100)
    with Broker(tmp_path) as broker:
        assert {key: value for _, key, value in read_all(broker, "state")} == last


def test_a_record_without_a_key_is_refused() -> None:
    failures = []
    with Broker(memory=True) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        admin.create_topics([NewTopic("state", 1, config=CONFIG)])["state"].result(20)
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
        producer.produce("state", value=b"no key", on_delivery=lambda error, _: failures.append(error))
        producer.flush()
        assert "key" in str(failures[0]) or failures[0].name() == "INVALID_RECORD"
        wanted = TopicPartition("state", 0, 0)
        with pytest.raises(KafkaException, match="POLICY_VIOLATION"):
            admin.delete_records([wanted])[wanted].result(20)


def test_readers_find_the_last_committed_value_of_each_key(tmp_path: Path) -> None:
    """Of twelve transactions, every third commits. Once the aborted records are gone, all readers see the same."""
    with Broker(tmp_path, settings=SETTINGS) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        config = CONFIG | {"delete.retention.ms": "0", "segment.bytes": "4000"}
        admin.create_topics([NewTopic("state", 1, config=config)])["state"].result(20)
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "t", "linger.ms": 0})
        producer.init_transactions(20)
        for number in range(12):
            producer.begin_transaction()
            for key in range(KEYS):
                producer.produce("state", key=b"%d" % key, value=b"%d" % number + bytes(100))
            producer.flush()
            if number % 3 == 0:
                producer.commit_transaction(20)
            else:
                producer.abort_transaction(20)
        wanted = {b"%d" % key: b"9" + bytes(100) for key in range(KEYS)}
        assert {key: value for _, key, value in read_all(broker, "state")} == wanted
        while len(read := read_all(broker, "state", "read_uncommitted")) > 2 * KEYS:
            producer.begin_transaction()
            producer.produce("state", key=b"0", value=b"9" + bytes(100))
            producer.commit_transaction(20)
        assert {value for offset, _, value in read if offset < KEYS * 9} == set(), "aborted, or replaced"
        assert {key: value for _, key, value in read_all(broker, "state")} == wanted
    with Broker(tmp_path) as broker:
        assert {key: value for _, key, value in read_all(broker, "state")} == wanted
