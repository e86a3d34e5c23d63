"""A client that asks for the offsets of a topic while another one creates it finds them."""

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from conveyor.testing import Broker

PARTITIONS = 200
WAIT_SECONDS = 60


def test_offsets_of_a_topic_that_is_being_created_are_found(conveyor_broker: Broker) -> None:
    settings = {"bootstrap.servers": conveyor_broker.bootstrap_servers, "log_level": 0}
    maker, watcher = AdminClient(settings), AdminClient(settings)
    for name in ("first", "second", "third"):
        reader = Consumer(settings | {"group.id": "readers"})
        maker.list_topics(timeout=WAIT_SECONDS)
        created = maker.create_topics([NewTopic(name, PARTITIONS, 1)])[name]
        while name not in watcher.list_topics(timeout=WAIT_SECONDS).topics:
            pass
        assert reader.get_watermark_offsets(TopicPartition(name, PARTITIONS - 1), WAIT_SECONDS) == (0, 0)
        created.result(WAIT_SECONDS)
        reader.close()
