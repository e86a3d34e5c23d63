"""The HTTP listener: how many may connect, and what it says of a request that is none."""

import json
import logging
import socket
from typing import Any

import pytest

from conveyor.testing import Broker


def connect(broker: Broker) -> socket.socket:
    host, _, port = broker.http_url.removeprefix("http://").rpartition(":")
    return socket.create_connection((host, int(port)), timeout=20)


def ask(connection: socket.socket, request: bytes = b"GET /healthz HTTP/1.1\r\nHost: h\r\n\r\n") -> bytes:
    connection.sendall(request)
    return connection.recv(65536)


def problem(answer: bytes) -> dict[str, Any]:
    """The problem document (RFC 9457) of an answer."""
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"content-type: application/problem+json" in head.lower()
    document: dict[str, Any] = json.loads(body)
    return document


def test_a_connection_too_many_is_answered_and_closed(caplog: pytest.LogCaptureFixture) -> None:
    with Broker(memory=True, settings={"network.max_http_connections": 2}) as broker:
        with connect(broker) as one, connect(broker) as two, connect(broker) as three:
            assert ask(one).startswith(b"HTTP/1.1 200")
            assert ask(two).startswith(b"HTTP/1.1 200")
            refused = ask(three)
            assert refused.startswith(b"HTTP/1.1 503")
            assert three.recv(1) == b""
            assert ask(one).startswith(b"HTTP/1.1 200"), "those that are there are still served"
        assert "more than 2 connections (network.max_http_connections)" in caplog.text
    assert problem(refused)["kind"] == "too_many_connections"


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET / HTTP/1.1\r\nno colon\r\n\r\n",
        b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nX: " + b"a" * 9000 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"X: a\r\n" * 200 + b"\r\n",
        b"F(O / HTTP/1.1\r\nHost: h\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
    ids=[
        *("TLS", "version", "header", "long line", "long header", "many headers"),
        *("method", "no host", "length", "chunk"),
    ],
)
def test_a_request_that_is_none_is_one_line_without_a_traceback(
    request_bytes: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "conveyor")
    with Broker(memory=True) as broker, connect(broker) as connection:
        answer = ask(connection, request_bytes)
    assert answer.startswith(b"HTTP/1.0 400")
    assert problem(answer)["kind"] == "malformed_request"
    assert "\n" not in problem(answer)["detail"]
    told = [each for each in caplog.records if each.name == "conveyor.http_api.request_log"]
    assert [(each.levelname, each.exc_info) for each in told] == [("DEBUG", None)]
    assert "\n" not in told[0].getMessage()
    assert not [each for each in caplog.records if each.name.startswith("aiohttp")]


@pytest.mark.parametrize("path", [b"/topics/t/messages", b"/topics"], ids=["payload", "JSON"])
@pytest.mark.parametrize("chunk", [b"zz\r\n", b"3\r\nabcdef"], ids=["size", "end"])
def test_a_chunk_that_cannot_be_read_ends_a_request_that_has_begun(
    path: bytes, chunk: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    head = b"POST " + path + b" HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n"
    with Broker(memory=True) as broker, connect(broker) as connection:
        assert ask(connection, head).startswith(b"HTTP/1.1 100")
        answer = ask(connection, chunk)
        assert connection.recv(1) == b""
    assert answer.startswith(b"HTTP/1.1 400")
    assert problem(answer)["detail"].startswith("the request's body cannot be read: ")
    assert not [each for each in caplog.records if each.levelname == "ERROR"]


def test_a_packed_body_that_goes_on_without_end_is_refused() -> None:
    head = b"POST /topics HTTP/1.1\r\nHost: h\r\nContent-Encoding: deflate\r\nTransfer-Encoding: chunked\r\n\r\n"
    blocks_of_nothing = b"\x00\x00\x00\xff\xff" * 220_000
    with Broker(memory=True) as broker, connect(broker) as connection:
        answer = ask(connection, head + b"%x\r\n%b\r\n" % (len(blocks_of_nothing), blocks_of_nothing))
    assert problem(answer)["kind"] == "message_too_large"


def test_a_chunk_that_cannot_be_read_is_told_however_soon_it_comes() -> None:
    head = b"POST /topics/t/messages HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
    with Broker(memory=True) as broker:
        for _ in range(20):
            with connect(broker) as connection:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connection.sendall(head)
                assert problem(ask(connection, b"zz\r\n"))["status"] == 400
