"""librdkafka's transactional producer on delayed topics, and its consumer on the target."""

import time
from typing import Any

from confluent_kafka import Consumer, TopicPartition

from conveyor.testing import Broker
from tests.clients.test_confluent_transactions import PATIENCE_SECONDS, initialized, make_topic


def read(broker: Broker, topic: str, last: bytes, isolation_level: str) -> list[Any]:
    """Return the values of a partition up to this one."""
    consumer = Consumer(
        {"bootstrap.servers": broker.bootstrap_servers, "group.id": "all", "isolation.level": isolation_level}
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[Any] = []
    while last not in found:
        message = consumer.poll(PATIENCE_SECONDS)
        assert message is not None
        assert message.error() is None
        found.append(message.value())
    consumer.close()
    return found


def test_records_come_after_their_commit_and_their_time(broker: Broker, topic: str) -> None:
    make_topic(broker, topic, 1)
    delayed = f"{topic}-later"
    make_topic(broker, delayed, 1, **{"delay.target": topic})
    producer = initialized(broker, topic)
    for number in range(4):
        producer.begin_transaction()
        due_ms = int(time.time() * 1000) + 1_000
        later: Any = [("conveyor-deliver-at-ms", b"%d" % due_ms)]
        producer.produce(delayed, value=b"now %d" % number)
        producer.produce(delayed, value=b"later %d" % number, headers=later)
        assert producer.flush(PATIENCE_SECONDS) == 0
        if number % 2:
            producer.abort_transaction(PATIENCE_SECONDS)
        else:
            producer.commit_transaction(PATIENCE_SECONDS)
    for isolation_level in ("read_committed", "read_uncommitted"):
        found = read(broker, topic, b"later 2", isolation_level)
        assert time.time() * 1000 >= due_ms - 1_000
        assert sorted(found) == [b"later 0", b"later 2", b"now 0", b"now 2"]
        assert found.index(b"now 0") < found.index(b"now 2")


def test_transactions_of_target_and_delayed_topic_at_once(broker: Broker, topic: str) -> None:
    make_topic(broker, topic, 1)
    delayed = f"{topic}-later"
    make_topic(broker, delayed, 1, **{"delay.target": topic})
    producer = initialized(broker, topic)
    for number in range(4):
        producer.begin_transaction()
        producer.produce(topic, value=b"direct %d" % number)
        producer.produce(delayed, value=b"forwarded %d" % number)
        if number % 2:
            assert producer.flush(PATIENCE_SECONDS) == 0
            producer.abort_transaction(PATIENCE_SECONDS)
        else:
            producer.commit_transaction(PATIENCE_SECONDS)
    expected = [b"direct 0", b"direct 2", b"forwarded 0", b"forwarded 2"]
    assert sorted(read(broker, topic, b"forwarded 2", "read_committed")) == expected
    assert read(broker, delayed, b"forwarded 2", "read_committed") == [b"forwarded 0", b"forwarded 2"]
