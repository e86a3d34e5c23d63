"""Connections that stay open between micro-batches."""

import socket
from collections.abc import Iterator
from typing import Any

import pytest

from conveyor.testing import Broker
from pyspark_conveyor.brokers import kept_client as module
from pyspark_conveyor.brokers.kept_client import kept_client
from pyspark_conveyor.brokers.raw_client import RawClient
from pyspark_conveyor.pipeline_errors import PipelineError


@pytest.fixture(autouse=True)
def nothing_kept(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    kept: dict[Any, RawClient] = {}
    monkeypatch.setattr(module, "_kept", kept)
    yield
    for client in kept.values():
        client.close()


def test_client_is_lent_again() -> None:
    with Broker(memory=True) as broker:
        with kept_client(broker.bootstrap_servers, {}) as first:
            first.metadata(())
        with kept_client(broker.bootstrap_servers, {}) as second:
            assert second is first
        with kept_client(broker.bootstrap_servers, {"client.id": "other"}) as other:
            assert other is not first


def test_connections_that_have_ended_are_replaced() -> None:
    with Broker(memory=True) as broker:
        with kept_client(broker.bootstrap_servers, {}) as first:
            first.metadata(())
        broker.stop()
        broker.start()
        with kept_client(broker.bootstrap_servers, {}) as second:
            assert second is not first
            assert second.metadata(()).brokers


def test_client_is_lent_to_one_at_a_time() -> None:
    with Broker(memory=True) as broker:
        servers = broker.bootstrap_servers
        with kept_client(servers, {}) as one, kept_client(servers, {}) as other:
            assert one is not other
        assert list(module._kept.values()) == [one]


def test_client_is_closed_after_an_error() -> None:
    with Broker(memory=True) as broker:
        with pytest.raises(PipelineError), kept_client(broker.bootstrap_servers, {}):
            raise PipelineError("unknown topic")
        assert not module._kept


def test_few_clients_are_kept() -> None:
    with Broker(memory=True) as broker:
        for number in range(6):
            with kept_client(broker.bootstrap_servers, {"client.id": str(number)}):
                pass
    assert [dict(options)["client.id"] for _, options in module._kept] == ["2", "3", "4", "5"]


def test_socket_that_still_connects_is_closed_without_a_warning() -> None:
    """kafka-python reconnects by itself, and leaves the socket to the collector when the client is closed meanwhile."""
    with Broker(memory=True) as broker:
        client = RawClient(broker.bootstrap_servers, {})
        client.metadata(())
        host, port = broker.bootstrap_servers.split(":")

        async def connect() -> None:
            other = socket.create_connection((host, int(port)))
            await client._net.wait_read(other)

        client._net.call_soon(connect)
        client.metadata(())
        client.close()
