"""A consumer that died while its broker was killed every 15 seconds is taken out of its group all the same."""

import pytest
from confluent_kafka import Consumer, ConsumerGroupState
from confluent_kafka.admin import AdminClient, NewTopic

from conveyor.testing import Broker

LIFE_S = 15
SESSION_S = 45


def dead_consumer(broker: Broker, protocol: str) -> None:
    """Joins a group, reads, and is gone without a word, as static members are when they are closed."""
    config: dict[str, str | int] = {"group.protocol": protocol, "group.instance.id": "one"}
    if protocol == "classic":
        config["session.timeout.ms"] = SESSION_S * 1000
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "g"} | config)
    consumer.subscribe(["t"])
    while not consumer.assignment():
        consumer.poll(0.1)
    consumer.close()


def is_empty(broker: Broker) -> bool:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    group = admin.describe_consumer_groups(["g"], request_timeout=20)["g"].result(20)
    assert (group.state is ConsumerGroupState.EMPTY) == (not group.members)
    return not group.members


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_dead_member_does_not_outlive_its_session_by_restarts(protocol: str) -> None:
    with Broker(memory=True, manual_clock=True) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        admin.create_topics([NewTopic("t", 1)])["t"].result(20)
        dead_consumer(broker, protocol)
        for _ in range(SESSION_S // (LIFE_S - 5)):
            broker.stop()
            broker.start()
            assert not is_empty(broker)
            broker.clock.advance(seconds=LIFE_S - 0.001)
        broker.stop()
        broker.start()
        assert not is_empty(broker)
        broker.clock.advance(seconds=5)
        assert is_empty(broker)
