"""Changing topics with a real admin client: settings, partitions, deleted records."""

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
)

from conveyor.testing import Broker


@pytest.fixture
def admin(broker: Broker, topic: str) -> AdminClient:
    """An admin client of a broker that has the topic."""
    client = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    client.create_topics([NewTopic(topic, 1)])[topic].result(20)
    return client


def described(admin: AdminClient, topic: str) -> dict[str, ConfigEntry]:
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    entries: dict[str, ConfigEntry] = admin.describe_configs([resource])[resource].result(20)
    return entries


def alter(admin: AdminClient, topic: str, name: str, operation: AlterConfigOpType, value: str | None) -> None:
    entry = ConfigEntry(name, value, incremental_operation=operation)
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result(20)


def produce(broker: Broker, topic: str, values: list[bytes], partition: int = 0) -> None:
    failures = []
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for value in values:
        producer.produce(topic, value, partition=partition, on_delivery=lambda error, _: failures.append(error))
    producer.flush()
    if any(failures):
        raise KafkaException(next(each for each in failures if each))


def test_settings_are_described_with_their_sources(admin: AdminClient, topic: str) -> None:
    entries = described(admin, topic)
    assert entries["retention.ms"].value == str(14 * 24 * 3_600_000)
    assert entries["retention.ms"].source == ConfigSource.DEFAULT_CONFIG.value
    alter(admin, topic, "retention.ms", AlterConfigOpType.SET, "1000")
    changed = described(admin, topic)["retention.ms"]
    assert (changed.value, changed.source) == ("1000", ConfigSource.DYNAMIC_TOPIC_CONFIG.value)
    alter(admin, topic, "retention.ms", AlterConfigOpType.DELETE, None)
    assert described(admin, topic)["retention.ms"].is_default


def test_settings_of_the_broker_are_described(admin: AdminClient) -> None:
    resource = ConfigResource(ConfigResource.Type.BROKER, "1")
    entries = admin.describe_configs([resource])[resource].result(20)
    assert entries["node.id"].value == "1"
    assert entries["node.id"].is_read_only


def test_a_changed_setting_holds_at_once(broker: Broker, admin: AdminClient, topic: str) -> None:
    produce(broker, topic, [bytes(2000)])
    alter(admin, topic, "max.message.bytes", AlterConfigOpType.SET, "1000")
    with pytest.raises(KafkaException, match=r"MSG_SIZE_TOO_LARGE"):
        produce(broker, topic, [bytes(2000)])


def test_a_bad_setting_is_refused_and_named(admin: AdminClient, topic: str) -> None:
    with pytest.raises(KafkaException, match=r"retention\.ms"):
        alter(admin, topic, "retention.ms", AlterConfigOpType.SET, "soon")
    with pytest.raises(KafkaException, match=r"no\.such"):
        alter(admin, topic, "no.such", AlterConfigOpType.SET, "1")


def test_partitions_are_added_and_can_be_written(broker: Broker, admin: AdminClient) -> None:
    admin.create_topics([NewTopic("growing", 1)])["growing"].result(20)
    admin.create_partitions([NewPartitions("growing", 3)])["growing"].result(20)
    assert len(admin.list_topics("growing", 20).topics["growing"].partitions) == 3
    produce(broker, "growing", [b"x"], partition=2)
    with pytest.raises(KafkaException, match="INVALID_PARTITIONS"):
        admin.create_partitions([NewPartitions("growing", 3)])["growing"].result(20)


def test_deleted_records_are_gone(broker: Broker, admin: AdminClient, topic: str) -> None:
    produce(broker, topic, [b"%d" % number for number in range(10)])
    wanted = TopicPartition(topic, 0, 4)
    deleted = admin.delete_records([wanted])[wanted].result(20)
    assert deleted.low_watermark == 4
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "g"})
    assert consumer.get_watermark_offsets(TopicPartition(topic, 0)) == (4, 10)
    consumer.assign([TopicPartition(topic, 0, 4)])
    assert [each.value() for each in consumer.consume(6, 20)] == [b"%d" % number for number in range(4, 10)]
    consumer.close()
    beyond = TopicPartition(topic, 0, 99)
    with pytest.raises(KafkaException, match="OFFSET_OUT_OF_RANGE"):
        admin.delete_records([beyond])[beyond].result(20)
