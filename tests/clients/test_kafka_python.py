"""kafka-python: synchronous, pure Python."""

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import NewTopic

from conveyor.testing import Broker
from tests.clients.records import CODECS, COUNT, PARTITIONS, Sent, number_of, sent, slice_for


def make_topic(broker: Broker, topic: str, partitions: int = PARTITIONS) -> None:
    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    admin.create_topics([NewTopic(name=topic, num_partitions=partitions, replication_factor=1)])
    admin.close()


def test_records_come_back_as_they_were_sent(broker: Broker, topic: str) -> None:
    make_topic(broker, topic)
    for codec in CODECS:
        producer = KafkaProducer(
            bootstrap_servers=broker.bootstrap_servers,
            compression_type=None if codec == "none" else codec,
            linger_ms=5,
            batch_size=1 << 18,
        )
        for number in slice_for(codec):
            each = sent(number)
            producer.send(topic, each.value, key=each.key, headers=list(each.headers), timestamp_ms=each.timestamp_ms)
        producer.flush()
        producer.close()
    consumer = KafkaConsumer(
        topic,
        bootstrap_servers=broker.bootstrap_servers,
        group_id=topic,
        auto_offset_reset="earliest",
        consumer_timeout_ms=20_000,
    )
    found: list[Sent] = []
    for message in consumer:
        headers = tuple(message.headers)
        found.append(Sent(number_of(message.value), message.key, message.value, headers, message.timestamp))
        if len(found) == COUNT:
            break
    consumer.close()
    assert sorted(found, key=lambda each: each.number) == [sent(number) for number in range(COUNT)]


def test_a_group_commits_and_goes_on(broker: Broker, topic: str) -> None:
    make_topic(broker, topic, 1)
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers)
    for number in range(10):
        producer.send(topic, b"%d" % number)
    producer.flush()
    producer.close()
    offsets = []
    for _ in range(2):
        consumer = KafkaConsumer(
            topic,
            bootstrap_servers=broker.bootstrap_servers,
            group_id=topic,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            max_poll_records=5,
        )
        offsets += [next(consumer).offset for _ in range(5)]
        consumer.commit()
        assert consumer.committed(TopicPartition(topic, 0)) == len(offsets)
        consumer.close()
    assert offsets == list(range(10))
