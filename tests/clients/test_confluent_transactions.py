"""confluent-kafka's transactional producer (librdkafka)."""

from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from conveyor.testing import Broker

PATIENCE_SECONDS = 60


def make_topic(broker: Broker, topic: str, partitions: int = 2, **config: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.create_topics([NewTopic(topic, num_partitions=partitions, config=config)])[topic].result(PATIENCE_SECONDS)


def initialized(broker: Broker, transactional_id: str, **config: Any) -> Producer:
    producer = Producer(
        {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": transactional_id, "linger.ms": 0, **config}
    )
    producer.init_transactions(PATIENCE_SECONDS)
    return producer


def records(broker: Broker, topic: str, partition: int = 0) -> list[bytes]:
    """Return all records of a partition, whether committed or not."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers, "group.id": "all", "enable.auto.commit": False,
            "isolation.level": "read_uncommitted", "enable.partition.eof": True,
        }
    )  # fmt: skip
    consumer.assign([TopicPartition(topic, partition, 0)])
    found: list[bytes] = []
    while True:
        message = consumer.poll(PATIENCE_SECONDS)
        assert message is not None
        if message.error() is not None:
            assert message.error().code() == KafkaError._PARTITION_EOF
            break
        found.append(message.value())
    consumer.close()
    return found


def end_offset(broker: Broker, topic: str, partition: int = 0) -> int:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "ends"})
    _, end = consumer.get_watermark_offsets(TopicPartition(topic, partition), PATIENCE_SECONDS)
    consumer.close()
    return int(end)


def test_commits_and_aborts_in_turn(broker: Broker, topic: str) -> None:
    """The next transaction begins once the markers of the one before are written."""
    make_topic(broker, topic)
    producer = initialized(broker, topic)
    for number in range(6):
        producer.begin_transaction()
        for partition in (0, 1):
            producer.produce(topic, value=str(number), partition=partition)
        if number % 2:
            producer.abort_transaction(PATIENCE_SECONDS)
        else:
            producer.flush()
            producer.commit_transaction(PATIENCE_SECONDS)
    initialized(broker, topic)
    for partition in (0, 1):
        found = records(broker, topic, partition)
        assert {b"0", b"2", b"4"} <= set(found)
        assert end_offset(broker, topic, partition) > len(found), "markers have offsets, too"


def test_zombie_is_fenced(broker: Broker, topic: str) -> None:
    make_topic(broker, topic)
    zombie = initialized(broker, topic)
    zombie.begin_transaction()
    zombie.produce(topic, value=b"zombie", partition=0)
    zombie.flush()
    successor = initialized(broker, topic)
    successor.begin_transaction()
    successor.produce(topic, value=b"successor", partition=0)
    successor.commit_transaction(PATIENCE_SECONDS)
    with pytest.raises(KafkaException) as fenced:
        zombie.commit_transaction(PATIENCE_SECONDS)
    assert fenced.value.args[0].code() in (KafkaError._FENCED, KafkaError.PRODUCER_FENCED)
    assert fenced.value.args[0].fatal()


def test_transaction_that_takes_too_long_is_aborted(broker: Broker, topic: str) -> None:
    make_topic(broker, topic)
    producer = initialized(broker, topic, **{"transaction.timeout.ms": 1_000})
    producer.begin_transaction()
    producer.produce(topic, value=b"late", partition=0)
    producer.flush()
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "ends"})
    while consumer.get_watermark_offsets(TopicPartition(topic, 0), PATIENCE_SECONDS)[1] < 2:
        producer.poll(0.05)
    consumer.close()
    with pytest.raises(KafkaException):
        producer.commit_transaction(PATIENCE_SECONDS)


def test_transaction_goes_on_after_a_restart(topic: str) -> None:
    with Broker() as broker:
        make_topic(broker, topic)
        producer = initialized(broker, topic)
        producer.begin_transaction()
        producer.produce(topic, value=b"before", partition=0)
        producer.flush()
        broker.stop()
        broker.start()
        producer.produce(topic, value=b"after", partition=0)
        producer.commit_transaction(PATIENCE_SECONDS)
        initialized(broker, topic)
        assert records(broker, topic) == [b"before", b"after"]
        assert end_offset(broker, topic) == 3
