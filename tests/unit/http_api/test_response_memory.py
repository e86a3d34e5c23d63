"""Clients that do not read their responses use bounded memory."""

import socket
from collections.abc import Callable
from typing import Any

import pytest

from conveyor.broker.slices import Slices
from conveyor.http.engine.exchange_memory import ExchangeMemory
from conveyor.kernel.response_budget import BudgetFull
from conveyor.testing import Broker
from tests.clients.rest_client import Rest

LEASE = "/subscriptions/s/messages?visibility=1h"


def test_large_responses_are_complete() -> None:
    with Broker(memory=True) as broker:
        rest = Rest(broker)
        rest.post("/topics", {"name": "t"})
        rest.post("/topics/t/subscriptions", {"name": "s", "start": "earliest"})
        large = "x" * 900_000
        for _ in range(5):
            rest.post("/topics/t/messages:batch", {"messages": [{"payload": large}]})
        host, port = broker.http_url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as idle:
            idle.sendall(b"GET /topics/t/messages?from=earliest&limit=5 HTTP/1.1\r\nHost: x\r\n\r\n")
            assert [message["payload"] for message in rest.lease("s", max_messages=5)] == [large] * 5
        rest.close()


def test_large_documents_are_made_and_encoded_in_threads_within_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """A packed batch of some kilobytes would take memory that nothing counts, and the event loop's time."""
    in_threads: list[object] = []
    in_thread = Slices.in_thread

    async def counted(slices: Slices, work: Callable[[], object], *meter: Any) -> object:
        in_threads.append(work)
        return await in_thread(slices, work, *meter)

    monkeypatch.setattr(Slices, "in_thread", counted)
    with Broker(memory=True) as broker:
        rest = Rest(broker)
        rest.post("/topics", {"name": "t"})
        rest.post("/topics/t/subscriptions", {"name": "s", "start": "earliest"})
        rest.post("/topics/t/messages:batch", {"messages": [{"payload": "small"}]})
        paths = ("/topics/t/messages?from=earliest", "/topics/t/messages/0-0", "/subscriptions/s/peek", LEASE)
        assert [rest.ask("GET", path).status for path in paths] == [200] * 4
        assert in_threads == []
        rest.post("/topics/t/messages:batch", {"messages": [{"payload": "x" * 100_000}]})
        paths = ("/topics/t/messages?from=earliest", "/topics/t/messages/0-1", "/subscriptions/s/peek", LEASE)
        assert [rest.ask("GET", path).status for path in paths] == [200] * 4
        assert len(in_threads) == 2 * len(paths)
        rest.close()


def test_large_leases_for_which_there_is_no_memory_are_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    with Broker(memory=True) as broker:
        rest = Rest(broker)
        rest.post("/topics", {"name": "t"})
        rest.post("/topics/t/subscriptions", {"name": "s", "start": "earliest"})
        rest.post("/topics/t/messages:batch", {"messages": [{"payload": "x" * 100_000}]})
        with monkeypatch.context() as full:
            full.setattr(ExchangeMemory, "hold", no_memory)
            assert rest.ask("GET", LEASE).status == 503
        (message,) = rest.lease("s")
        assert message["delivery_count"] == 1
        rest.close()


def no_memory(_: ExchangeMemory, __: int) -> None:
    raise BudgetFull
