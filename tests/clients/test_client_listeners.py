"""Listeners with TLS beside those without: each tells its clients its own address, on every broker of a cluster."""

from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from conveyor.settings.tls_settings import REQUIRED
from conveyor.testing import Broker, Cluster
from conveyor.testing.held_port import HeldPort
from tests.certificates import Certificates
from tests.clients.python.security import librdkafka
from tests.clients.scenarios import make_topic
from tests.clients.throttling import alter, throttled

PATIENCE_S = 30
PARTITIONS = range(4)
RATE = "producer_byte_rate"

ByTls = Callable[[tuple[str, str] | None], None]


@pytest.fixture
def encrypted() -> Iterator[HeldPort]:
    """The port of the listener with TLS."""
    port = HeldPort()
    yield port
    port.close()


@pytest.fixture
def broker(encrypted: HeldPort, certificates: Certificates) -> Iterator[Broker]:
    settings = certificates.settings(f"127.0.0.1:0,SSL://{encrypted.address}", REQUIRED)
    with Broker(memory=True, settings=settings) as running:
        yield running


def listed(bootstrap: str) -> list[str]:
    """Return the addresses of the brokers, as a client learns them."""
    brokers = AdminClient(librdkafka(bootstrap)).list_topics(timeout=PATIENCE_S).brokers.values()
    return [f"{each.host}:{each.port}" for each in brokers]


def produce(bootstrap: str, topic: str, partitions: range = range(1)) -> None:
    """Send a record to each partition, and fail unless all are acknowledged."""
    producer = Producer(librdkafka(bootstrap))
    errors = []
    for partition in partitions:
        producer.produce(
            topic, b"%d" % partition, partition=partition, on_delivery=lambda error, _: errors.append(error)
        )
    assert producer.flush(PATIENCE_S) == 0
    assert errors == [None] * len(partitions)


def test_each_listener_tells_its_own_address(
    broker: Broker, encrypted: HeldPort, certificates: Certificates, by_tls: ByTls
) -> None:
    assert listed(broker.bootstrap_servers) == [broker.bootstrap_servers]
    by_tls(certificates.client)
    assert listed(encrypted.address) == [encrypted.address]


def test_quota_holds_for_the_user_of_the_certificate(
    broker: Broker, encrypted: HeldPort, topic: str, certificates: Certificates, by_tls: ByTls
) -> None:
    alter(broker, "user", "CN=worker", **{RATE: 1})
    produce(broker.bootstrap_servers, topic)
    assert throttled(broker, RATE) == 0
    by_tls(certificates.client)
    produce(encrypted.address, topic)
    assert throttled(broker, RATE) > 0


def test_clients_reach_leaders_on_both_brokers_of_a_cluster(
    topic: str, certificates: Certificates, by_tls: ByTls
) -> None:
    by_tls(certificates.client)
    settings = certificates.settings("SSL://127.0.0.1:0,127.0.0.1:0", REQUIRED)
    with Cluster(brokers=2, settings=settings) as cluster:
        make_topic(cluster.bootstrap_servers, topic, len(PARTITIONS))
        assert {cluster.leader(topic, partition) for partition in PARTITIONS} == {1, 2}
        produce(cluster.bootstrap_servers, topic, PARTITIONS)
        consumer = Consumer(librdkafka(cluster.bootstrap_servers) | {"group.id": topic})
        consumer.assign([TopicPartition(topic, partition, 0) for partition in PARTITIONS])
        found = consumer.consume(len(PARTITIONS), PATIENCE_S)
        assert sorted(message.value() for message in found) == [b"%d" % partition for partition in PARTITIONS]
        consumer.close()
