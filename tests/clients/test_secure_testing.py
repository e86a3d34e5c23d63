"""Brokers of tests with security: nobody gets in without the password, and everybody trusts the certificate."""

import ssl
from base64 import b64encode
from collections.abc import Iterator
from http.client import HTTPSConnection
from urllib.parse import urlsplit

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from conveyor.testing import Broker, Cluster


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(memory=True, security=True) as running:
        yield running


def settings(
    secured: Broker | Cluster, mechanism: str = "SCRAM-SHA-512", password: str | None = None
) -> dict[str, str]:
    return {
        "bootstrap.servers": secured.bootstrap_servers,
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": secured.ca_file,
        "sasl.mechanism": mechanism,
        "sasl.username": secured.admin_user,
        "sasl.password": secured.admin_password if password is None else password,
    }


def status(secured: Broker, path: str, password: str | None = None) -> int:
    """Return the status of a GET request, with the password or without an attempt to log in."""
    connection = HTTPSConnection(
        urlsplit(secured.http_url).netloc, context=ssl.create_default_context(cafile=secured.ca_file)
    )
    pair = b64encode(f"{secured.admin_user}:{password}".encode()).decode()
    connection.request("GET", path, headers={} if password is None else {"Authorization": f"Basic {pair}"})
    answered = connection.getresponse().status
    connection.close()
    return answered


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


def test_brokers_without_security_say_so() -> None:
    with Broker(memory=True) as broker, pytest.raises(ValueError, match="create it with security=True"):
        assert broker.ca_file
