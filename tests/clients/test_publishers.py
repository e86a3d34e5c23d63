"""Kafka clients that log in: a topic with `publisher.enable` has their users' names, whatever the clients send."""

import json
import ssl
from base64 import b64encode
from collections.abc import Iterator
from http.client import HTTPSConnection
from typing import Any
from urllib.parse import urlsplit

import pytest
from confluent_kafka import Consumer, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from conveyor.testing import Broker
from tests.clients.test_secure_testing import add_user, settings

NAME = "conveyor-publisher"
FORGED = [(NAME, b"User:admin"), ("a", b"b")]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    """Yield a broker with the user alice, who may do everything, and a topic with publishers and one without."""
    with Broker(memory=True, security=True, settings={"access.super_users": "User:admin;User:alice"}) as running:
        add_user(running, "alice")
        config = {"publisher.enable": "true"}
        topics = [NewTopic("named", 1, config=config), NewTopic("plain", 1), NewTopic("replayed", 1, config=config)]
        admin = AdminClient(settings(running))
        for created in admin.create_topics(topics).values():
            created.result(20)
        yield running


def produce(broker: Broker, topic: str, user: str, password: str, **config: object) -> None:
    """Produce three messages with forged names."""
    producer = Producer({**settings(broker, user=user, password=password), "linger.ms": 50, **config})
    for number in range(3):
        producer.produce(topic, b"%d" % number, headers=FORGED)
    assert producer.flush(20) == 0


def consumed(broker: Broker, topic: str, count: int) -> list[Message]:
    consumer = Consumer({**settings(broker), "group.id": topic, "auto.offset.reset": "earliest", "check.crcs": True})
    consumer.subscribe([topic])
    messages: list[Message] = []
    while len(messages) < count:
        messages += consumer.consume(count - len(messages), 20)
    consumer.close()
    return messages


def shown(broker: Broker, topic: str) -> list[dict[str, Any]]:
    """Return the messages as REST shows them."""
    context = ssl.create_default_context(cafile=broker.ca_file)
    connection = HTTPSConnection(urlsplit(broker.http_url).netloc, context=context)
    pair = b64encode(f"{broker.admin_user}:{broker.admin_password}".encode()).decode()
    connection.request("GET", f"/topics/{topic}/messages", headers={"Authorization": f"Basic {pair}"})
    messages: list[dict[str, Any]] = json.loads(connection.getresponse().read())["messages"]
    connection.close()
    return messages


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_named_topic_has_the_users_in_the_place_of_what_they_sent(broker: Broker, codec: str) -> None:
    before = len(shown(broker, "named"))
    produce(broker, "named", "alice", "secret", **{"compression.type": codec, "enable.idempotence": True})
    produce(broker, "named", broker.admin_user, broker.admin_password)
    users = ["User:alice"] * 3 + ["User:admin"] * 3
    assert [message["publisher"] for message in shown(broker, "named")[before:]] == users


def test_kafka_consumers_see_the_header(broker: Broker) -> None:
    produce(broker, "replayed", "alice", "secret")
    for message in consumed(broker, "replayed", 3):
        assert message.headers() == [("a", b"b"), (NAME, b"User:alice")]


def test_plain_topic_keeps_what_was_sent_and_rest_shows_no_name(broker: Broker) -> None:
    produce(broker, "plain", "alice", "secret")
    assert [message.headers() for message in consumed(broker, "plain", 3)] == [FORGED] * 3
    for message in shown(broker, "plain"):
        assert (message["headers"], "publisher" in message) == ({"a": "b"}, False)
