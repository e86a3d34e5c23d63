"""The handshake of WebSocket: what is accepted, what is refused and how, and whose pages may."""

import json
from itertools import count, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conveyor.http.engine.cross_origin import Origins
from conveyor.http.engine.exchange import Service
from conveyor.http.engine.http_response import DateHeader, Response
from conveyor.kernel.access.caller import Caller
from conveyor.kernel.request_budget import RequestBudget
from conveyor.testing.manual_clock import ManualClock
from tests.callers import ALICE, CALLER
from tests.unit.http.engine.test_http_connection import get, problem
from tests.unit.http.memory_wire import IDLE_S, Client, EchoApplication, EchoHandler
from tests.unit.http.websocket_client import KEY, TEXT, close, frame, upgrade


def test_acceptance_has_its_exact_bytes() -> None:
    client = Client()
    client.send(upgrade())
    assert client.take() == (
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\nDate: Thu, 01 Jan 1970 00:00:00 GMT\r\n\r\n"
    )
    assert client.wire.machine is not client.connection
    assert client.service.in_progress == 1


@given(st.lists(st.integers(0, 300)))
def test_request_may_arrive_in_any_pieces(cuts: list[int]) -> None:
    client, data = Client(), upgrade()
    places = sorted({0, len(data), *(cut % len(data) for cut in cuts)})
    for begin, end in pairwise(places):
        client.send(data[begin:end])
    assert client.take().startswith(b"HTTP/1.1 101 ")


@pytest.mark.parametrize(
    "request_bytes",
    [
        upgrade(Upgrade="WebSocket", Connection="upgrade"),
        upgrade("/websocket", "Connection: upgrade", Connection="keep-alive"),
        upgrade(Upgrade="h2c, websocket"),
        upgrade("/websocket", "Sec-WebSocket-Extensions: permessage-deflate", "Sec-WebSocket-Protocol: chat"),
        upgrade("/websocket", "Content-Length: 0"),
        b"\r\n" + upgrade(),
        get("/before") + upgrade(),
    ],
)
def test_request_is_upgraded(request_bytes: bytes) -> None:
    client = Client()
    client.send(request_bytes)
    head = client.take().partition(b"HTTP/1.1 101 ")[2]
    assert b"\r\nSec-WebSocket-Accept: " in head
    assert b"Extensions" not in head
    assert b"Protocol:" not in head


@pytest.mark.parametrize(
    ("request_bytes", "status", "reason"),
    [
        (get("/websocket"), 426, "this endpoint speaks WebSocket"),
        (upgrade(Connection="close"), 426, "this endpoint speaks WebSocket"),
        (upgrade(Upgrade="h2c"), 426, "this endpoint speaks WebSocket"),
        (upgrade(Sec_WebSocket_Version="12"), 426, "must be 13"),
        (upgrade(Sec_WebSocket_Version=None), 426, "must be 13"),
        (upgrade(Sec_WebSocket_Key=None), 400, "16 bytes in base64"),
        (upgrade(Sec_WebSocket_Key="dGhl"), 400, "16 bytes in base64"),
        (upgrade(Sec_WebSocket_Key=KEY[:-1]), 400, "16 bytes in base64"),
        (upgrade(Sec_WebSocket_Key=KEY.replace("d", "d*", 1)), 400, "16 bytes in base64"),
        (upgrade("/websocket", f"Sec-WebSocket-Key: {KEY}"), 400, "must not be repeated"),
        (upgrade("/websocket", "Sec-WebSocket-Version: 12"), 400, "must not be repeated"),
        (upgrade(version="HTTP/1.0"), 400, "GET of HTTP/1.1"),
        (upgrade().replace(b"GET", b"POST"), 400, "GET of HTTP/1.1"),
        (upgrade("/websocket", "Content-Length: 3") + b"abc", 400, "must not have a body"),
        (upgrade("/websocket", "Transfer-Encoding: chunked") + b"0\r\n\r\n", 400, "must not have a body"),
        (upgrade() + frame(TEXT, b"early"), 400, "nothing after the request"),
        (upgrade() + get("/after"), 400, "nothing after the request"),
        (upgrade() + b"G", 400, "nothing after the request"),
    ],
)
def test_request_that_cannot_be_upgraded_gets_a_problem(request_bytes: bytes, status: int, reason: str) -> None:
    client = Client()
    client.send(request_bytes)
    head, _, body = client.wire.written.partition(b"\r\n\r\n")
    document = json.loads(body)
    assert (document["status"], head.split()[1]) == (status, str(status).encode())
    assert reason in document["detail"]
    assert b"\r\nContent-Type: application/problem+json" in head
    assert (b"\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13" in head) == (status == 426)
    assert (client.application.websockets, client.service.in_progress) == ([], 0)
    assert client.wire.machine is client.connection


@pytest.mark.parametrize("request_bytes", [get("/websocket"), upgrade(Sec_WebSocket_Key=None)])
def test_refused_request_leaves_a_connection_for_others(request_bytes: bytes) -> None:
    client = Client()
    client.send(request_bytes)
    client.take()
    client.send(get("/a"))
    assert client.responses() == [(200, b"GET /a ")]


def test_what_follows_a_request_ends_its_connection() -> None:
    client = Client()
    client.send(upgrade() + get("/after"))
    assert client.wire.state == "closed"
    assert client.application.served == [("GET", b"/websocket", b"")]


def test_application_that_does_not_know_websockets_answers_as_always() -> None:
    client = Client()
    client.send(upgrade("/a") + get("/b"))
    assert client.responses() == [(200, b"GET /a "), (200, b"GET /b ")]


def test_request_is_decided_on_before_it_is_upgraded() -> None:
    client = Client()
    client.send(upgrade("/refused"))
    assert client.responses() == [(401, b"no")]
    client.send(upgrade("/undecided/websocket"))
    assert client.take() == b""
    client.application.undecided[0].reply(Response(403, b"no", "text/plain"))
    client.work()
    assert client.responses() == [(403, b"no")]
    assert client.application.websockets == []


def test_request_is_upgraded_once_it_is_admitted() -> None:
    client = Client()
    client.send(upgrade("/undecided/websocket"))
    assert (client.take(), client.reads()) == (b"", False)
    client.application.undecided[0].admit()
    assert client.take().startswith(b"HTTP/1.1 101 ")
    assert client.reads()


def test_client_that_left_before_the_decision_has_no_websocket() -> None:
    client = Client()
    client.send(upgrade("/later"))
    [exchange] = client.application.waiting
    client.connection.connection_lost()
    exchange.upgrade(EchoHandler(client.application, works=False), 1000)
    assert (client.application.websockets, client.service.in_progress) == ([], 0)


def test_stopping_service_upgrades_what_it_has_begun_and_closes_it() -> None:
    client = Client()
    client.send(upgrade("/later"))
    client.connection.finish()
    client.application.waiting[0].upgrade(EchoHandler(client.application, works=False), 1000)
    assert client.take().endswith(b"\r\n\r\n\x88\x12\x03\xe9the server stops")
    client.send(close(1001))
    assert (client.wire.state, client.service.in_progress) == ("closed", 0)


@pytest.mark.parametrize(
    ("listed", "caller", "origin", "may"),
    [
        ([], CALLER, "http://h", True),
        ([], CALLER, "https://elsewhere.example", False),
        ([], CALLER, "null", False),
        (["https://app.example"], CALLER, "https://app.example", True),
        (["https://app.example"], ALICE, "https://app.example", True),
        (["https://app.example"], CALLER, "https://elsewhere.example", False),
        (["*"], CALLER, "https://elsewhere.example", True),
        (["*"], ALICE, "https://elsewhere.example", False),
        (["*"], ALICE, "http://h", True),
        (["*"], CALLER, "null", False),
    ],
)
def test_pages_of_other_sites_open_a_websocket_only_if_listed(
    listed: list[str], caller: Caller, origin: str, may: bool
) -> None:
    """What a browser adds unasked, such as a certificate, is of no use to pages that nobody has listed by name."""
    application = EchoApplication()
    origins = Origins(listed) if listed else None
    service = Service(application, RequestBudget(1000), DateHeader(ManualClock(0)), IDLE_S, count(1), origins)
    client = Client(service=service)
    client.connection.caller = caller
    client.send(upgrade("/websocket", f"Origin: {origin}"))
    assert bool(application.websockets) == may
    if not may:
        assert problem(client) == (403, "foreign_origin", f"pages from {origin} may not open a WebSocket here")
