"""Quotas with real clients: what they are told, and that a throttled one is not listened to.

And telemetry, which no client is asked for.
"""

import logging
import socket
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, ThrottleEvent, TopicPartition

from conveyor.testing import Broker
from tests.clients.throttling import alter, connected, received
from tests.clients.toolchains import java_tool
from tests.unit.kafka_api.requests import API_VERSIONS, SOFTWARE, framed, request, response

PING = framed(request(API_VERSIONS, 3, **SOFTWARE))


@pytest.fixture
def still() -> Iterator[Broker]:
    """A broker whose clock stands still."""
    with Broker(memory=True, manual_clock=True) as running:
        yield running


class Throttled:
    """A confluent client's settings; `seconds` is what it was told, each time that this has changed."""

    def __init__(self, broker: Broker, client_id: str, **settings: Any) -> None:
        self.seconds: list[float] = []
        named = {name.replace("_", "."): value for name, value in settings.items()}
        self.settings: dict[str, Any] = {"bootstrap.servers": broker.bootstrap_servers, "client.id": client_id} | named
        self.settings["throttle_cb"] = self._told

    def _told(self, event: ThrottleEvent) -> None:
        self.seconds.append(event.throttle_time)


def test_a_producer_waits_until_the_time_it_was_told_is_over(still: Broker, topic: str) -> None:
    alter(still, "client-id", "fast", producer_byte_rate=1000)
    client = Throttled(still, "fast")
    producer = Producer(client.settings)
    producer.produce(topic, value=bytes(20_000))
    assert producer.flush(20) == 0, "the first is answered at once"
    while not client.seconds:
        producer.poll(0.05)
    assert 10 < client.seconds[0] < 11
    producer.produce(topic, value=b"next")
    others = Producer({"bootstrap.servers": still.bootstrap_servers, "client.id": "other"})
    others.produce(topic, value=bytes(20_000))
    assert others.flush(20) == 0, "nobody else is held back"
    assert producer.flush(0.2) == 1
    still.clock.advance(seconds=client.seconds[0] + 1)
    assert producer.flush(20) == 0


def test_a_consumer_reads_everything_under_a_quota(still: Broker, topic: str) -> None:
    producer = Producer({"bootstrap.servers": still.bootstrap_servers})
    for number in range(20):
        producer.produce(topic, value=b"%02d" % number + bytes(2000), partition=0)
        assert producer.flush(20) == 0
    alter(still, "user", None, consumer_byte_rate=1000)
    client = Throttled(still, "reader", group_id="g", fetch_wait_max_ms=10)
    consumer = Consumer(client.settings)
    consumer.assign([TopicPartition(topic, 0, 0)])
    values: list[bytes] = []
    while len(values) < 20:
        message = consumer.poll(0.05)
        if message is None:
            still.clock.advance(seconds=1)
        else:
            assert message.error() is None
            values.append(bytes(message.value() or b"")[:2])
    consumer.close()
    assert values == [b"%02d" % number for number in range(20)]
    assert max(client.seconds) > 0


def test_a_muted_connection_is_served_again_in_order(still: Broker) -> None:
    alter(still, "client-id", None, request_percentage=1e-9)
    with connected(still) as muted, connected(still) as other:
        muted.sendall(PING + PING + PING + PING)
        assert [told_seconds(muted), told_seconds(muted)] == [0, 1]
        other.sendall(PING)
        assert told_seconds(other) == 1, "the rate is the client's, whatever its connection"
        muted.settimeout(0.05)
        with pytest.raises(TimeoutError):
            muted.recv(1)
        muted.settimeout(20)
        for _ in range(2):
            still.clock.advance(seconds=1)
            assert told_seconds(muted) == 1


def told_seconds(connection: socket.socket) -> float:
    """What the next answer to a ping says."""
    seconds: float = response(API_VERSIONS, 3, received(connection)).throttle_time.total_seconds()
    return seconds


def test_a_broker_stops_though_a_client_is_muted(topic: str) -> None:
    with Broker(memory=True, manual_clock=True) as broker:
        alter(broker, "client-id", "fast", producer_byte_rate=1)
        client = Throttled(broker, "fast")
        producer = Producer(client.settings)
        producer.produce(topic, value=bytes(20_000))
        assert producer.flush(20) == 0
        producer.produce(topic, value=b"never taken")
        producer.poll(0)
    producer.purge()


def test_connections_beyond_an_address_rate_are_closed(still: Broker) -> None:
    alter(still, "ip", "127.0.0.1", connection_creation_rate=1)
    made = [connected(still) for _ in range(11)]
    for connection in made[:10]:
        connection.sendall(PING)
        assert received(connection)
    assert is_closed(made[10])
    still.clock.advance(seconds=11)
    with connected(still) as again:
        again.sendall(PING)
        assert received(again)
    for connection in made:
        connection.close()


def is_closed(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def test_kafkas_own_tool_sets_and_shows_quotas(broker: Broker) -> None:
    configs = partial(java_tool("kafka.admin.ConfigCommand").print, "--bootstrap-server", broker.bootstrap_servers)
    app, anybody = (
        ("--entity-type", "clients", "--entity-name", "app"),
        ("--entity-type", "clients", "--entity-default"),
    )
    configs("--alter", *app, "--add-config", "producer_byte_rate=1024000,request_percentage=12.5")
    configs("--alter", *anybody, "--add-config", "consumer_byte_rate=2048000")
    configs("--alter", *app, "--delete-config", "producer_byte_rate")
    page = configs("--describe", "--entity-type", "clients")
    assert "Quota configs for client-id 'app' are request_percentage=12.5" in page.splitlines()
    assert "default client-id are consumer_byte_rate=2048000.0" in page
    configs("--alter", *app, "--add-config", "controller_mutation_rate=2.5")
    assert "controller_mutation_rate=2.5" in configs("--describe", "--entity-type", "clients")


def test_confluent_logs_nothing_of_telemetry(topic: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "telemetry")
    with Broker(memory=True) as broker:
        settings = {"bootstrap.servers": broker.bootstrap_servers, "enable.metrics.push": True, "debug": "telemetry"}
        producer = Producer(settings, logger=logging.getLogger("telemetry"))
        producer.produce(topic, value=b"value")
        assert producer.flush(20) == 0
        for _ in range(2):
            producer.list_topics(timeout=20)  # Answered after all that the client asked when it connected.
            producer.poll(0)
    lines = [each.getMessage() for each in caplog.records if each.name == "telemetry"]
    assert [line for line in lines if not line.startswith("INIT ")] == []
