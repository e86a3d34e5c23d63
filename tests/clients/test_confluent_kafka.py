"""confluent-kafka (librdkafka): the client that most of the field's languages wrap."""

from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from conveyor.testing import Broker
from tests.clients.records import BASE_TIME_MS, PARTITIONS


def make_topic(broker: Broker, topic: str, partitions: int = PARTITIONS, **config: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.create_topics([NewTopic(topic, num_partitions=partitions, config=config)])[topic].result(10)


def read_all(broker: Broker, topic: str, count: int, **config: Any) -> list[Any]:
    consumer = Consumer(
        {"bootstrap.servers": broker.bootstrap_servers, "group.id": topic, "auto.offset.reset": "earliest", **config}
    )
    consumer.subscribe([topic])
    found: list[Any] = []
    while len(found) < count:
        messages = consumer.consume(min(10_000, count - len(found)), 20)
        assert messages, f"nothing came after {len(found)} of {count} records"
        for message in messages:
            assert message.error() is None
        found += messages
    consumer.close()
    return found


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_produce_with_each_acks(broker: Broker, topic: str, acks: str) -> None:
    make_topic(broker, topic, 1)
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "acks": acks})
    producer.produce(topic, value=b"x")
    assert producer.flush(10) == 0
    assert [each.value() for each in read_all(broker, topic, 1)] == [b"x"]


def test_committed_offsets_are_where_a_group_goes_on(broker: Broker, topic: str) -> None:
    make_topic(broker, topic, 1)
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for number in range(20):
        producer.produce(topic, value=str(number))
    producer.flush()
    first = read_all(broker, topic, 10)
    second = read_all(broker, topic, 10)
    assert [each.offset() for each in first + second] == list(range(20))


def test_committed_offsets_outlive_a_restart(topic: str) -> None:
    with Broker() as broker:
        make_topic(broker, topic, 1)
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
        for number in range(20):
            producer.produce(topic, value=str(number))
        producer.flush()
        first = read_all(broker, topic, 10)
        broker.stop()
        broker.start()
        second = read_all(broker, topic, 10)
    assert [each.offset() for each in first + second] == list(range(20))


def test_no_offset_is_found_for_a_time_after_the_last(broker: Broker, topic: str) -> None:
    make_topic(broker, topic, 1)
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    producer.produce(topic, value=b"last", timestamp=BASE_TIME_MS)
    producer.flush()
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": topic})
    late = consumer.offsets_for_times([TopicPartition(topic, 0, BASE_TIME_MS + 1)], timeout=10)
    assert late[0].offset == -1
    assert consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=10) == (0, 1)
    consumer.close()


@pytest.mark.parametrize(
    ("name", "partitions", "config", "code"),
    [
        ("no spaces", 1, {}, KafkaError.TOPIC_EXCEPTION),
        ("zero", 0, {}, KafkaError.INVALID_PARTITIONS),
        ("bad-config", 1, {"segment.bytes": "many"}, KafkaError.INVALID_CONFIG),
        ("odd-config", 1, {"no.such.setting": "1"}, KafkaError.INVALID_CONFIG),
    ],
)
def test_bad_topics_are_refused(broker: Broker, name: str, partitions: int, config: dict[str, str], code: int) -> None:
    with pytest.raises(KafkaException) as refused:
        make_topic(broker, name, partitions, **config)
    assert refused.value.args[0].code() == code


def test_an_unknown_topic_is_not_made_when_that_is_off(topic: str) -> None:
    with Broker(memory=True, settings={"broker.auto_create_topics": False}) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        asked = admin.list_topics(topic, timeout=10).topics[topic]
        assert asked.error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART
        assert topic not in admin.list_topics(timeout=10).topics


def test_a_batch_that_is_too_large_is_refused(broker: Broker, topic: str) -> None:
    make_topic(broker, topic, 1, **{"max.message.bytes": "1000"})
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    errors: list[Any] = []
    producer.produce(topic, value=b"x" * 2000, on_delivery=lambda error, _: errors.append(error))
    producer.flush(10)
    assert errors[0].code() == KafkaError.MSG_SIZE_TOO_LARGE


def test_log_append_time_is_the_brokers(broker: Broker, topic: str) -> None:
    make_topic(broker, topic, 1, **{"message.timestamp.type": "LogAppendTime"})
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    producer.produce(topic, value=b"x", timestamp=1000)
    producer.flush()
    kind, when = read_all(broker, topic, 1)[0].timestamp()
    assert kind == 2
    assert when > BASE_TIME_MS


def test_end_of_the_log_covers_what_acks_1_has_acknowledged(broker: Broker, topic: str) -> None:
    make_topic(broker, topic, 1)
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "acks": "1", "linger.ms": 0})
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": topic})
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    place, ends = TopicPartition(topic, 0), []
    for _ in range(50):
        producer.produce(topic, value=b"x")
        assert producer.flush(10) == 0
        ends.append(consumer.get_watermark_offsets(place, timeout=10)[1])
    assert ends == list(range(1, 51))
    producer.produce(topic, value=b"x")
    assert producer.flush(10) == 0
    before = TopicPartition(topic, 0, 51)
    assert admin.delete_records([before])[before].result(10).low_watermark == 51
    consumer.close()
