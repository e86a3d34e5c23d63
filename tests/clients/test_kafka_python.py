"""kafka-python: synchronous, pure Python."""

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import NewTopic

from conveyor.testing import Broker
from tests.clients.records import PARTITIONS


def make_topic(broker: Broker, topic: str, partitions: int = PARTITIONS) -> None:
    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    admin.create_topics([NewTopic(name=topic, num_partitions=partitions, replication_factor=1)])
    admin.close()


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
