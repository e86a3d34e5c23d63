"""Clients that do not read their responses use bounded memory."""

import socket

from conveyor.http_api.engine.response_budget import ResponseBudget
from conveyor.testing import Broker
from tests.clients.rest_client import Rest


def test_budget_is_empty_at_first() -> None:
    assert not ResponseBudget().is_full


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
