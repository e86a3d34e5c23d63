"""Brokers of tests with security: nobody gets in without the password, and everybody trusts the certificate."""

import json
import ssl
from base64 import b64encode
from collections.abc import Iterator
from http.client import HTTPSConnection
from urllib.parse import urlsplit

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import (
    AdminClient,
    NewTopic,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from conveyor.testing import Broker, Cluster


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(memory=True, security=True) as running:
        yield running


def settings(
    secured: Broker | Cluster, mechanism: str = "SCRAM-SHA-512", password: str | None = None, user: str | None = None
) -> dict[str, str]:
    return {
        "bootstrap.servers": secured.bootstrap_servers,
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": secured.ca_file,
        "sasl.mechanism": mechanism,
        "sasl.username": secured.admin_user if user is None else user,
        "sasl.password": secured.admin_password if password is None else password,
    }


def status(secured: Broker, path: str, password: str | None = None) -> int:
    """Return the status of a GET request, with the password or without an attempt to log in."""
    return ask(secured, "GET", path, None if password is None else (secured.admin_user, password))[0]


def ask(secured: Broker, method: str, path: str, login: tuple[str, str] | None) -> tuple[int, str]:
    """Return the status of a response, and the kind of its problem."""
    return ask_at(secured.http_url, secured.ca_file, method, path, login)


def ask_at(url: str, ca_file: str, method: str, path: str, login: tuple[str, str] | None) -> tuple[int, str]:
    """As `ask`."""
    connection = HTTPSConnection(urlsplit(url).netloc, context=ssl.create_default_context(cafile=ca_file))
    pair = b64encode(":".join(login or ()).encode()).decode()
    connection.request(method, path, b"", headers={} if login is None else {"Authorization": f"Basic {pair}"})
    response = connection.getresponse()
    content = response.read()
    connection.close()
    is_problem = response.headers["Content-Type"] == "application/problem+json"
    return response.status, json.loads(content)["kind"] if is_problem else ""


def add_user(secured: Broker | Cluster, user: str) -> None:
    change = UserScramCredentialUpsertion(user, ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096), b"secret")
    admin = AdminClient(settings(secured))
    admin.alter_user_scram_credentials([change])[user].result(20)


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_kafka_clients_log_in(broker: Broker, mechanism: str) -> None:
    assert len(AdminClient(settings(broker, mechanism)).list_topics(timeout=20).brokers) == 1
    with pytest.raises(KafkaException):
        AdminClient(settings(broker, mechanism, "wrong")).list_topics(timeout=1)


def test_http_clients_log_in(broker: Broker) -> None:
    assert broker.http_url.startswith("https://127.0.0.1:")
    assert status(broker, "/topics", broker.admin_password) == 200
    assert [status(broker, "/topics", "wrong"), status(broker, "/topics")] == [401, 401]
    assert status(broker, "/healthz") == 200


def test_another_user_may_do_nothing(broker: Broker) -> None:
    add_user(broker, "bob")
    bob, admin = ("bob", "secret"), (broker.admin_user, broker.admin_password)
    assert ask(broker, "POST", "/topics/orders/messages", admin) == (201, "")
    for path in ("/topics/orders/messages", "/topics/other/messages"):
        for method in ("POST", "GET"):
            assert ask(broker, method, path, bob) == (403, "topic_authorization_failed")
    assert ask(broker, "GET", "/topics", bob) == (200, "")
    assert "orders" not in AdminClient(settings(broker, password="secret", user="bob")).list_topics(timeout=20).topics
    failures: list[KafkaError] = []
    producer = Producer(settings(broker, password="secret", user="bob"))
    producer.produce("orders", b"x", on_delivery=lambda error, _: failures.append(error))
    assert producer.flush(30) == 0
    assert [failure.code() for failure in failures] == [KafkaError.TOPIC_AUTHORIZATION_FAILED]


def test_addresses_and_password_stay_over_a_restart() -> None:
    with Broker(memory=True, security=True) as broker:
        before = broker.bootstrap_servers, broker.http_url, broker.admin_password
        broker.stop()
        broker.start()
        assert before == (broker.bootstrap_servers, broker.http_url, broker.admin_password)
        assert status(broker, "/topics", broker.admin_password) == 200


def test_clients_of_a_cluster_log_in_at_each_broker() -> None:
    with Cluster(brokers=2, security=True) as cluster:
        admin = AdminClient(settings(cluster))
        admin.create_topics([NewTopic("t", 4)])["t"].result(20)
        producer = Producer(settings(cluster))
        failures: list[object] = []
        for number in range(8):
            producer.produce("t", b"x", partition=number % 4, on_delivery=lambda error, _: failures.append(error))
        assert producer.flush(30) == 0
        assert failures == [None] * 8
        leaders = {cluster.leader("t", number) for number in range(4)}
        assert leaders == {1, 2}


def test_another_user_may_do_nothing_at_any_broker_of_a_cluster() -> None:
    with Cluster(brokers=2, security=True) as cluster:
        add_user(cluster, "bob")
        for broker in cluster.brokers.values():
            broker.wait_until(lambda image: "bob" in str(image.scram), "the user is missing")
            url, ca_file = broker.http_url, cluster.ca_file
            refused = ask_at(url, ca_file, "POST", "/topics/orders/messages", ("bob", "secret"))
            assert refused == (403, "topic_authorization_failed")
            assert ask_at(url, ca_file, "GET", "/topics", (cluster.admin_user, cluster.admin_password)) == (200, "")


def test_brokers_without_security_say_so() -> None:
    with Broker(memory=True) as broker, pytest.raises(ValueError, match="create it with security=True"):
        assert broker.ca_file
