"""Keys published by messages go to the partition where a Kafka client with the default partitioner puts them."""

from confluent_kafka import Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from conveyor.records.partitioner import partition_for_key
from conveyor.testing import Broker

PARTITIONS = 7


def test_keys_go_where_murmur2_random_puts_them(broker: Broker, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.create_topics([NewTopic(topic, num_partitions=PARTITIONS)])[topic].result(10)
    keys = [b"k" * size + b"%d" % size for size in range(40)] + [b"\xff\x80", "schlüssel".encode()]
    placed: dict[bytes, int] = {}

    def delivered(error: object, message: Message) -> None:
        key, partition = message.key(), message.partition()
        assert error is None
        assert isinstance(key, bytes)
        assert partition is not None
        placed[key] = partition

    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "partitioner": "murmur2_random"})
    for key in keys:
        producer.produce(topic, key=key, value=b"v", on_delivery=delivered)
    assert producer.flush(10) == 0
    assert placed == {key: partition_for_key(key, PARTITIONS) for key in keys}
