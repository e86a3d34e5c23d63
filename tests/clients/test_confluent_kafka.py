"""confluent-kafka (librdkafka): the client that most of the field's languages wrap."""

from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from conveyor.testing import Broker
from tests.clients.records import BASE_TIME_MS, CODECS, COUNT, PARTITIONS, Sent, number_of, sent, slice_for


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


def test_records_come_back_as_they_were_sent(broker: Broker, topic: str) -> None:
    make_topic(broker, topic)
    for codec in CODECS:
        producer = Producer(
            {"bootstrap.servers": broker.bootstrap_servers, "compression.type": codec, "enable.idempotence": True}
        )
        for number in slice_for(codec):
            each = sent(number)
            while len(producer) > 50_000:
                producer.poll(0.1)
            producer.produce(
                topic, key=each.key, value=each.value, headers=list(each.headers), timestamp=each.timestamp_ms
            )
        assert producer.flush(60) == 0
    found = [
        Sent(number_of(m.value()), m.key(), m.value(), tuple(m.headers() or ()), m.timestamp()[1])
        for m in read_all(broker, topic, COUNT)
    ]
    assert sorted(found, key=lambda each: each.number) == [sent(number) for number in range(COUNT)]


def test_offsets_of_a_partition_have_no_gaps(broker: Broker, topic: str) -> None:
    make_topic(broker, topic)
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 0})
    for number in range(5000):
        producer.produce(topic, value=str(number))
    producer.flush()
    offsets: dict[int, list[int]] = {}
    for message in read_all(broker, topic, 5000):
        offsets.setdefault(message.partition(), []).append(message.offset())
    assert all(each == list(range(len(each))) for each in offsets.values())


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


def test_offsets_by_time(broker: Broker, topic: str) -> None:
    make_topic(broker, topic, 1)
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 0, "batch.num.messages": 7})
    for number in range(100):
        producer.produce(topic, value=str(number), timestamp=BASE_TIME_MS + number * 10)
    producer.flush()
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": topic})
    for wanted, expected in ((0, 0), (BASE_TIME_MS + 500, 50), (BASE_TIME_MS + 501, 51), (BASE_TIME_MS + 990, 99)):
        found = consumer.offsets_for_times([TopicPartition(topic, 0, wanted)], timeout=10)
        assert found[0].offset == expected
    late = consumer.offsets_for_times([TopicPartition(topic, 0, BASE_TIME_MS + 991)], timeout=10)
    assert late[0].offset == -1
    assert consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=10) == (0, 100)
    consumer.close()


def test_topics_are_made_listed_and_deleted(broker: Broker, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    make_topic(broker, topic, 4)
    assert len(admin.list_topics(timeout=10).topics[topic].partitions) == 4
    with pytest.raises(KafkaException) as twice:
        make_topic(broker, topic, 4)
    assert twice.value.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS
    admin.delete_topics([topic])[topic].result(10)
    assert topic not in admin.list_topics(timeout=10).topics


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


def test_a_rebalance_gives_every_partition_to_one_member(broker: Broker, topic: str) -> None:
    make_topic(broker, topic, 6)
    config = {"bootstrap.servers": broker.bootstrap_servers, "group.id": topic, "session.timeout.ms": 6000}
    config |= {"heartbeat.interval.ms": 200}
    first, second = Consumer(config), Consumer(config)
    first.subscribe([topic])
    while len(first.assignment()) < 6:
        first.poll(0.1)
    second.subscribe([topic])
    while len(first.assignment()) != 3 or len(second.assignment()) != 3:
        first.poll(0.1)
        second.poll(0.1)
    shared = {each.partition for each in first.assignment()} | {each.partition for each in second.assignment()}
    assert shared == set(range(6))
    second.close()
    while len(first.assignment()) < 6:
        first.poll(0.1)
    first.close()
