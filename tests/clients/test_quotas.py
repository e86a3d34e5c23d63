"""Quotas with real clients: what they are told, and that a throttled one is not listened to, over Kafka and HTTP.

And telemetry, which no client is asked for.
"""

import logging
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, ThrottleEvent, TopicPartition

from conveyor.testing import Broker, Cluster
from tests.clients.rest_client import Rest
from tests.clients.throttling import alter, connected, received, throttled
from tests.clients.toolchains import java_tool
from tests.unit.kafka_api.requests import API_VERSIONS, SOFTWARE, framed, request, response

PING = framed(request(API_VERSIONS, 3, **SOFTWARE))


@pytest.fixture
def still() -> Iterator[Broker]:
    """A broker whose clock stands still."""
    with Broker(memory=True, manual_clock=True) as running:
        yield running


@pytest.fixture
def still_rest(still: Broker) -> Iterator[Rest]:
    with closing(Rest(still)) as rest:
        yield rest


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


def test_user_over_both_doors_has_one_quota(still: Broker, still_rest: Rest, topic: str) -> None:
    rest = still_rest
    assert rest.post("/topics", {"name": topic}).status == 201
    alter(still, "user", "ANONYMOUS", producer_byte_rate=1000)
    client = Throttled(still, "fast")
    producer = Producer(client.settings)
    producer.produce(topic, value=bytes(20_000))
    assert producer.flush(20) == 0
    refused = rest.ask("POST", f"/topics/{topic}/messages", b"next")
    assert refused.problem[:2] == (429, "throttling_quota_exceeded")
    assert refused.json["retriable"]
    assert int(refused.headers["Retry-After"]) == 11
    assert throttled(still, "producer_byte_rate") >= 2
    still.clock.advance(seconds=12)
    assert rest.ask("POST", f"/topics/{topic}/messages", bytes(20_000)).status == 201
    while not client.seconds:
        producer.poll(0.05)
    told = client.seconds[-1]
    producer.produce(topic, value=b"next")
    assert producer.flush(20) == 0
    while client.seconds[-1] == told:
        producer.poll(0.05)
    assert client.seconds[-1] > 9, "what was published over HTTP counts"


def test_http_client_that_sends_a_large_body_is_refused_by_its_head(
    still: Broker, still_rest: Rest, topic: str
) -> None:
    assert still_rest.post("/topics", {"name": topic}).status == 201
    alter(still, "user", None, producer_byte_rate=1)
    assert still_rest.ask("POST", f"/topics/{topic}/messages", bytes(1000)).status == 201
    host, _, port = still.http_url.removeprefix("http://").rpartition(":")
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        connection.sendall(
            f"POST /topics/{topic}/messages HTTP/1.1\r\nHost: h\r\nContent-Length: 9999\r\n\r\n".encode()
        )
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 429 ")


def test_each_broker_meters_the_clients_that_are_connected_to_it() -> None:
    """Whichever broker leads the partition: it has no part in it."""
    with Cluster(2, settings={"clients.quota_window_count": 1000}) as cluster:
        brokers = list(cluster.brokers.values())
        with closing(Rest(brokers[0])) as rest:
            assert rest.post("/topics", {"name": "t", "partitions": 1, "replicas": 1}).status == 201
        alter(brokers[0], "user", None, producer_byte_rate=1)
        for broker in brokers:
            with closing(Rest(broker)) as rest:
                assert rest.ask("POST", "/topics/t/messages", bytes(100_000)).status == 201
                assert rest.ask("POST", "/topics/t/messages", b"next").status == 429


def test_command_waits_as_long_as_the_broker_says(still: Broker, still_rest: Rest, topic: str) -> None:
    assert still_rest.post("/topics", {"name": topic}).status == 201
    assert still_rest.post(f"/topics/{topic}/subscriptions", {"name": topic, "start": "earliest"}).status == 201
    for _ in range(2):
        assert still_rest.ask("POST", f"/topics/{topic}/messages", bytes(10_000)).status == 201
    alter(still, "user", None, consumer_byte_rate=1000)
    assert len(still_rest.get(f"/subscriptions/{topic}/messages").json["messages"]) == 1
    pull = [sys.executable, "-m", "conveyor.cli.main", "queue", "pull", topic, "--http", still.http_url, "--json"]
    with subprocess.Popen(pull, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as pulling:
        assert pulling.stderr is not None
        assert pulling.stderr.readline() == "over a quota: waiting 1 s\n"
        still.clock.advance(seconds=1)
        out, _ = pulling.communicate(timeout=60)
    assert (pulling.returncode, out.count("\n")) == (0, 1)


def test_http_connections_beyond_an_address_rate_are_closed(still: Broker) -> None:
    alter(still, "ip", "127.0.0.1", connection_creation_rate=1)
    host, _, port = still.http_url.removeprefix("http://").rpartition(":")
    made = [socket.create_connection((host, int(port)), timeout=20) for _ in range(10)]
    for connection in made:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: h\r\n\r\n")
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200 ")
    with socket.create_connection((host, int(port)), timeout=20) as refused:
        assert is_closed(refused)
    with connected(still) as kafka:
        assert is_closed(kafka), "connections of both doors are counted"
    for connection in made:
        connection.close()


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
