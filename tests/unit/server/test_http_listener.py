"""The HTTP listener: the limit of connections, and its responses to invalid requests."""

import json
import logging
import socket
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from conveyor.server.http_listener import OPERATIONS_CONNECTIONS
from conveyor.testing import Broker
from tests.clients.rest_client import Rest

PACKED = b"Content-Encoding: gzip\r\nContent-Length: 1000"


TOPICS = b"GET /topics HTTP/1.1\r\nHost: h\r\n\r\n"


def connect(broker: Broker) -> socket.socket:
    host, _, port = broker.http_url.removeprefix("http://").rpartition(":")
    return socket.create_connection((host, int(port)), timeout=20)


def ask(connection: socket.socket, request: bytes = b"GET /healthz HTTP/1.1\r\nHost: h\r\n\r\n") -> bytes:
    connection.sendall(request)
    return connection.recv(65536)


def problem(answer: bytes) -> dict[str, Any]:
    """Return the problem document (RFC 9457) of a response."""
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"content-type: application/problem+json" in head.lower()
    document: dict[str, Any] = json.loads(body)
    return document


def test_a_connection_beyond_the_limit_is_answered_and_closed(caplog: pytest.LogCaptureFixture) -> None:
    with Broker(memory=True, settings={"network.max_http_connections": 2}) as broker:
        with connect(broker) as one, connect(broker) as two, connect(broker) as three:
            assert ask(one).startswith(b"HTTP/1.1 200")
            assert ask(two).startswith(b"HTTP/1.1 200")
            refused = ask(three, TOPICS)
            assert refused.startswith(b"HTTP/1.1 503")
            assert three.recv(1) == b""
            assert ask(one).startswith(b"HTTP/1.1 200"), "open connections are still served"
        assert "more than 2 connections (network.max_http_connections)" in caplog.text
    assert problem(refused)["kind"] == "too_many_connections"


@pytest.mark.parametrize("path", [b"/healthz", b"/readyz", b"/metrics"])
def test_operators_are_answered_beyond_the_limit(path: bytes) -> None:
    with Broker(memory=True, settings={"network.max_http_connections": 1}) as broker, ExitStack() as crowd:
        for _ in range(2 * OPERATIONS_CONNECTIONS):
            crowd.enter_context(connect(broker))
        with connect(broker) as probe:
            for _ in range(2):
                assert ask(probe, b"GET " + path + b" HTTP/1.1\r\nHost: h\r\n\r\n").startswith(b"HTTP/1.1 200")
        with connect(broker) as client:
            assert ask(client, TOPICS).startswith(b"HTTP/1.1 503")


def test_silent_connection_beyond_the_limit_is_closed() -> None:
    with (
        Broker(memory=True, settings={"network.max_http_connections": 1}) as broker,
        connect(broker) as client,
        connect(broker) as silent,
    ):
        assert ask(client).startswith(b"HTTP/1.1 200")
        assert silent.recv(1) == b""
        assert ask(client).startswith(b"HTTP/1.1 200")


def test_strangers_make_room_for_others(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("secret\n")
    asked = b"GET /topics HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer secret\r\n\r\n"
    settings = {"network.token_file": str(tokens), "network.max_http_connections": 2}
    with (
        Broker(memory=True, settings=settings) as broker,
        connect(broker) as client,
        connect(broker) as stranger,
    ):
        assert ask(client, asked).startswith(b"HTTP/1.1 200")
        assert ask(stranger, TOPICS).startswith(b"HTTP/1.1 401")
        with connect(broker) as late:
            assert ask(late, asked).startswith(b"HTTP/1.1 200")
            assert stranger.recv(1) == b""
            with connect(broker) as beyond:
                assert ask(beyond, asked).startswith(b"HTTP/1.1 503"), "nobody is left who could make room"
            for known in (client, late):
                assert ask(known, asked).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("framing", [b"Content-Length: 1000", b"Transfer-Encoding: chunked", PACKED])
@pytest.mark.parametrize("path", [b"/topics", b"/topics/t/messages", b"/topics/t/messages:batch"])
def test_body_that_does_not_arrive_in_time_closes_its_connection(framing: bytes, path: bytes) -> None:
    head = b"POST " + path + b" HTTP/1.1\r\nHost: h\r\n" + framing + b"\r\n\r\n"
    with Broker(memory=True, settings={"network.max_receive_ms": 100}) as broker, connect(broker) as connection:
        answer = ask(connection, head + (b"1\r\na\r\n" if b"chunked" in framing else b"a"))
        assert answer.startswith(b"HTTP/1.1 408")
        assert problem(answer)["kind"] == "request_too_slow"
        connection.sendall(b"b")  # A trickle does not keep the connection open.
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(1) == b""


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
def test_an_invalid_request_is_one_line_without_a_traceback(
    request_bytes: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "conveyor")
    with Broker(memory=True) as broker, connect(broker) as connection:
        answer = ask(connection, request_bytes)
    assert answer.startswith(b"HTTP/1.1 400")
    assert problem(answer)["kind"] == "malformed_request"
    assert "\n" not in problem(answer)["detail"]
    entries = [record for record in caplog.records if record.name == "conveyor.http.engine.http_connection"]
    assert [(entry.levelname, entry.exc_info) for entry in entries] == [("DEBUG", None)]
    assert "\n" not in entries[0].getMessage()


@pytest.mark.parametrize("path", [b"/topics/t/messages", b"/topics"], ids=["payload", "JSON"])
@pytest.mark.parametrize("chunk", [b"zz\r\n", b"3\r\nabcdef"], ids=["size", "end"])
def test_an_invalid_chunk_ends_a_request_that_has_begun(
    path: bytes, chunk: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    head = b"POST " + path + b" HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n"
    with Broker(memory=True) as broker, connect(broker) as connection:
        assert ask(connection, head).startswith(b"HTTP/1.1 100")
        answer = ask(connection, chunk)
        assert connection.recv(1) == b""
    assert answer.startswith(b"HTTP/1.1 400")
    assert problem(answer)["detail"].startswith("the request's body cannot be read: ")
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_an_endless_compressed_body_is_refused() -> None:
    head = b"POST /topics HTTP/1.1\r\nHost: h\r\nContent-Encoding: deflate\r\nTransfer-Encoding: chunked\r\n\r\n"
    blocks_of_nothing = b"\x00\x00\x00\xff\xff" * 220_000
    with Broker(memory=True) as broker, connect(broker) as connection:
        answer = ask(connection, head + b"%x\r\n%b\r\n" % (len(blocks_of_nothing), blocks_of_nothing))
    assert problem(answer)["kind"] == "message_too_large"


def test_an_invalid_chunk_is_reported_however_early_it_arrives() -> None:
    head = b"POST /topics/t/messages HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
    with Broker(memory=True) as broker:
        for _ in range(20):
            with connect(broker) as connection:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connection.sendall(head)
                assert problem(ask(connection, b"zz\r\n"))["status"] == 400


def test_large_bodies_wait_for_their_turn_while_small_ones_do_not() -> None:
    limits = {"network.max_buffered_bytes": 2_400_000, "network.max_request_bytes": 2_000_000}
    head = b"POST /topics/t/messages HTTP/1.1\r\nHost: h\r\nContent-Length: 900000\r\n\r\n"
    body = b"x" * 900_000
    with Broker(memory=True, settings=limits) as broker, ExitStack() as stack:
        rest = Rest(broker)
        rest.post("/topics", {"name": "t"})
        connections = [stack.enter_context(connect(broker)) for _ in range(3)]
        for connection in connections:
            connection.sendall(head + body[:400_000])
        while b"conveyor_network_requests_waiting 1.0" not in rest.ask("GET", "/metrics").body:
            pass
        assert rest.ask("POST", "/topics/t/messages", b"small").status == 201
        for connection in connections:
            connection.sendall(body[400_000:])
        for connection in connections:
            assert connection.recv(100).startswith(b"HTTP/1.1 201")
        rest.close()


def test_slow_client_gets_its_complete_response_at_a_stop() -> None:
    with Broker(memory=True) as broker:
        client = Rest(broker)
        client.post("/topics", {"name": "t"})
        for _ in range(8):
            client.post("/topics/t/messages", b"x" * 900_000)
        client.close()
        with connect(broker) as connection, connect(broker) as probe:
            connection.sendall(b"GET /topics/t/messages?from=earliest HTTP/1.1\r\nHost: h\r\n\r\n")
            answer = connection.recv(1000)
            assert ask(probe).startswith(b"HTTP/1.1 200")
            stopping = threading.Thread(target=broker.stop)
            stopping.start()
            assert probe.recv(1) == b"", "a connection without a request is closed"
            with connect(broker) as another:
                assert b'"status":"stopping"' in ask(another, b"GET /readyz HTTP/1.1\r\nHost: h\r\n\r\n")
            with connect(broker) as another:
                assert problem(ask(another, TOPICS))["kind"] == "stopping"
            while part := connection.recv(1 << 16):
                answer += part
            stopping.join()
    head, _, body = answer.partition(b"\r\n\r\n")
    assert f"content-length: {len(body)}".encode() in head.lower()
    assert len(json.loads(body)["messages"]) == 8
