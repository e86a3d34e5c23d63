"""Clients that try to make one connection take the loop's time or the broker's memory."""

import tracemalloc

import pytest

from conveyor.http.engine.http_connection import Phase
from conveyor.http.engine.request_parser import RequestParser
from tests.unit.http.engine.test_http_connection import chunked, get, post
from tests.unit.http.memory_wire import Client


def test_error_while_the_end_of_a_connection_is_handled_stays_in_the_connection(
    caplog: pytest.LogCaptureFixture,
) -> None:
    client = Client()

    def fail() -> None:
        raise ValueError("no")

    client.send(get("/poll"))
    client.application.waiting[0].until_gone(fail)
    client.connection.connection_lost()
    assert client.connection.phase is Phase.CLOSED
    assert "the end of a connection not handled" in caplog.text


def test_released_exchange_refers_to_no_route() -> None:
    client = Client()
    client.send(get("/later"))
    exchange = client.application.waiting[0]
    exchange.route = exchange
    client.application.answer()
    assert exchange.route is None


@pytest.mark.parametrize("body", [post("/a", b"x"), chunked("/a", b"x")])
@pytest.mark.parametrize("method", ["GET", "CONNECT"])
def test_bytes_behind_a_body_are_parsed_in_small_parts(
    body: bytes, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fed: list[int] = []
    plain_feed = RequestParser.feed

    def feed(self: RequestParser, data: bytes) -> None:
        fed.append(len(data))
        plain_feed(self, data)

    monkeypatch.setattr(RequestParser, "feed", feed)
    client = Client()
    end = body.rindex(b"x")
    client.send(body[:end])
    client.send(body[end:] + get("a").replace(b"GET", method.encode()) * 8_000)
    assert max(fed) <= 16 << 10


def test_large_body_of_known_length_is_parsed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client()
    request = post("/a", bytes(200_000))
    client.send(request[:-150_000])
    client.send(request[-150_000:])
    assert client.responses()[0][0] == 200


def test_body_of_many_small_chunks_takes_little_memory() -> None:
    client = Client()
    client.send(b"POST /a HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n")
    tracemalloc.start()
    for _ in range(10):
        client.send(b"2\r\nab\r\n" * 10_000)
    held_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held_bytes < 2 * 200_000


def test_closed_connection_holds_none_of_its_headers() -> None:
    client = Client()
    client.send(get("/later", "X: " + "a" * 8_000)[:-4])
    client.connection.connection_lost()
    assert client.connection._parser._fields == {}
    answered = Client()
    answered.send(get("/a", "X: " + "a" * 8_000))
    assert answered.connection._parser._fields == {}
