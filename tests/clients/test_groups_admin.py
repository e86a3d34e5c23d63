"""Groups as administrators see them, with confluent_kafka and kafka-python: list, describe, alter, delete."""

import pytest
from confluent_kafka import Consumer, ConsumerGroupState, ConsumerGroupTopicPartitions, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient
from kafka import KafkaAdminClient
from kafka import TopicPartition as PlainPartition

from conveyor.testing import Broker
from tests.clients.test_topic_admin import produce


@pytest.fixture
def admin(broker: Broker) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.bootstrap_servers})


@pytest.fixture
def read_topic(broker: Broker, topic: str) -> str:
    """A topic of one record."""
    produce(broker, topic, [b"one"])
    return topic


def consumer_of(broker: Broker, topic: str) -> Consumer:
    """A member of the group of the topic's name, which has read a record and committed that."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": topic,
            "client.id": "reader",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([topic])
    message = consumer.poll(20)
    assert message is not None
    consumer.commit(asynchronous=False)
    return consumer


def listed(admin: AdminClient, **filters: object) -> dict[str, ConsumerGroupState]:
    found = admin.list_consumer_groups(**filters).result(20)
    assert not found.errors
    return {each.group_id: each.state for each in found.valid}


def test_living_group_is_listed_and_described(broker: Broker, admin: AdminClient, read_topic: str) -> None:
    consumer = consumer_of(broker, read_topic)
    assert listed(admin)[read_topic] is ConsumerGroupState.STABLE
    assert read_topic not in listed(admin, states={ConsumerGroupState.EMPTY})
    described = admin.describe_consumer_groups([read_topic], include_authorized_operations=True)[read_topic].result(20)
    assert (described.state, described.partition_assignor) == (ConsumerGroupState.STABLE, "range")
    assert {each.name for each in described.authorized_operations} >= {"READ", "DELETE", "DESCRIBE"}
    [member] = described.members
    assert (member.client_id, member.host) == ("reader", "/127.0.0.1")
    assert member.assignment.topic_partitions == [TopicPartition(read_topic, 0)]
    consumer.close()
    assert listed(admin)[read_topic] is ConsumerGroupState.EMPTY


def test_group_is_deleted_once_it_is_empty(broker: Broker, admin: AdminClient, read_topic: str) -> None:
    consumer = consumer_of(broker, read_topic)
    with pytest.raises(Exception, match=r"NON_EMPTY_GROUP|not empty"):
        admin.delete_consumer_groups([read_topic])[read_topic].result(20)
    consumer.close()
    admin.delete_consumer_groups([read_topic])[read_topic].result(20)
    assert read_topic not in listed(admin)
    with pytest.raises(Exception, match=r"GROUP_ID_NOT_FOUND|not exist"):
        admin.delete_consumer_groups([read_topic])[read_topic].result(20)


def test_unknown_group_is_described_as_dead(broker: Broker, admin: AdminClient, topic: str) -> None:
    described = admin.describe_consumer_groups([topic])[topic].result(20)
    assert described.state is ConsumerGroupState.DEAD


def test_offsets_are_listed_and_altered(broker: Broker, admin: AdminClient, read_topic: str) -> None:
    consumer_of(broker, read_topic).close()
    moved = ConsumerGroupTopicPartitions(read_topic, [TopicPartition(read_topic, 0, 0)])
    admin.alter_consumer_group_offsets([moved])[read_topic].result(20)
    asked = ConsumerGroupTopicPartitions(read_topic)
    found = admin.list_consumer_group_offsets([asked])[read_topic].result(20)
    assert [(each.topic, each.partition, each.offset) for each in found.topic_partitions] == [(read_topic, 0, 0)]


def test_offsets_of_a_living_group_are_not_altered(broker: Broker, admin: AdminClient, read_topic: str) -> None:
    consumer = consumer_of(broker, read_topic)
    moved = ConsumerGroupTopicPartitions(read_topic, [TopicPartition(read_topic, 0, 0)])
    try:
        found = admin.alter_consumer_group_offsets([moved])[read_topic].result(20)
        codes = {each.error.code() for each in found.topic_partitions if each.error is not None}
    except Exception as error:  # noqa: BLE001 - the client raises when every partition was refused
        codes = {error.args[0].code()}
    consumer.close()
    assert codes == {KafkaError.UNKNOWN_MEMBER_ID}


def test_kafka_python_lists_describes_and_deletes(broker: Broker, read_topic: str) -> None:
    consumer = consumer_of(broker, read_topic)
    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    assert read_topic in {each["group_id"] for each in admin.list_groups()}
    described = admin.describe_groups([read_topic])[read_topic]
    assert described["group_state"] == "Stable"
    place = PlainPartition(read_topic, 0)
    refused = admin.delete_group_offsets(read_topic, [place])[place]
    assert refused.errno == 86
    consumer.close()
    assert admin.list_group_offsets([read_topic])[read_topic][place].offset == 1
    assert admin.delete_group_offsets(read_topic, [place])[place].errno == 0
    assert place not in admin.list_group_offsets([read_topic])[read_topic]
    admin.delete_groups([read_topic])
    assert read_topic not in {each["group_id"] for each in admin.list_groups()}
    admin.close()
