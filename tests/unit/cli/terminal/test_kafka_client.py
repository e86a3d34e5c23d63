"""Why a command reaches no broker."""

import socket
import threading

from conveyor.cli.terminal.kafka_client import unreachable_error
from conveyor.testing import Broker


def _accept_and_close(listener: socket.socket) -> None:
    listener.accept()[0].close()


def test_a_broker_that_closes_connections_is_told_from_one_that_does_not_run() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        closing = threading.Thread(target=_accept_and_close, args=(listener,))
        closing.start()
        error = unreachable_error(f"127.0.0.1:1, {address}")
        closing.join()
    assert "the broker is cut off from its cluster" in str(error)
    assert "no broker answers at" in str(unreachable_error(address))


def test_an_http_listener_is_told_from_a_broker_that_does_not_run(memory_broker: Broker) -> None:
    address = memory_broker.http_url.removeprefix("http://")
    assert str(unreachable_error(address)).startswith(f"{address} answers HTTP requests")
    for url in (memory_broker.http_url, f"{memory_broker.http_url}/topics"):
        assert str(unreachable_error(url)).startswith(f"{url} answers HTTP requests")
    assert "no broker answers at" in str(unreachable_error(memory_broker.bootstrap_servers))


def test_a_url_is_told_from_the_address_of_a_broker_that_does_not_run(memory_broker: Broker) -> None:
    for url in (f"http://{memory_broker.bootstrap_servers}", "https://queues.example.invalid", "kafka://127.0.0.1:1"):
        assert str(unreachable_error(url)) == f"{url} is a URL: give the Kafka address of a broker, HOST:PORT"
    assert "no broker answers at" in str(unreachable_error("PLAINTEXT://127.0.0.1:1"))


def test_an_address_that_is_none_is_only_reported() -> None:
    for address in ("nonsense", "127.0.0.1:99999", "127.0.0.1:x", ""):
        assert "no broker answers at" in str(unreachable_error(address))
