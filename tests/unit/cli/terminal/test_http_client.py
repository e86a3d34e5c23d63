"""The commands' HTTP client: addresses, and errors in one line."""

import pytest

from conveyor.testing import Broker
from tests.unit.cli.commands import Run


def test_address_may_leave_out_the_scheme(run_on_broker: Run, memory_broker: Broker) -> None:
    without = memory_broker.http_url.removeprefix("http://")
    for address in (memory_broker.http_url, f"{memory_broker.http_url}/", without):
        assert run_on_broker("dlq", "list", "--json", "--http", address) == (0, "[]\n", "")


@pytest.mark.parametrize("address", ["ftp://127.0.0.1", "http://", "127.0.0.1:99999", "127.0.0.1:0", "", "http://[x"])
def test_invalid_address_is_refused(run: Run, address: str) -> None:
    expected = f"conveyor: --http {address}: expected an address such as http://127.0.0.1:8080\n"
    assert run("queue", "list", "--http", address) == (1, "", expected)


def test_error_without_a_broker(run: Run, memory_broker: Broker) -> None:
    url = memory_broker.http_url
    memory_broker.stop()
    expected = f"conveyor: no broker answers at {url}: give another --http URL\n"
    assert run("queue", "list", "--http", url) == (1, "", expected)


def test_error_if_a_kafka_listener_answers(run: Run, memory_broker: Broker) -> None:
    """A Kafka listener closes the connection on an HTTP request."""
    ended = run("queue", "list", "--http", memory_broker.bootstrap_servers)
    expected = f"http://{memory_broker.bootstrap_servers} is not the HTTP address of a broker"
    assert ended == (1, "", f"conveyor: {expected}: give another --http URL\n")


def test_path_without_an_api_is_an_error(run: Run, memory_broker: Broker) -> None:
    ended = run("queue", "list", "--http", f"{memory_broker.http_url}/docs")
    assert (ended.exit_code, ended.error.count("\n")) == (1, 1)
    assert "no endpoint has the path /docs/subscriptions" in ended.error
