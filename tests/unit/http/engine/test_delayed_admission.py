"""A request whose admission takes time: nothing more is read from its client until the application has decided."""

import pytest

from conveyor.http.engine.http_connection import Phase
from conveyor.http.engine.http_response import Response
from tests.unit.http.engine.test_http_connection import get, post, problem
from tests.unit.http.memory_wire import LIMIT_BYTES, Client


def test_request_that_is_admitted_later_is_served_in_its_order() -> None:
    client = Client()
    client.send(post("/undecided", b"body") + get("/next"))
    [exchange] = client.application.undecided
    assert (client.connection.phase, client.application.served, client.reads()) == (Phase.WAITING, [], False)
    client.advance(1_000)
    assert client.wire.state == "open", "the application decides how long it takes"
    exchange.limits.most_bytes = LIMIT_BYTES
    exchange.admit()
    client.work()
    assert client.responses() == [(200, b"POST /undecided body"), (200, b"GET /next ")]
    assert client.reads()


def test_body_arrives_after_the_admission() -> None:
    client = Client()
    body = bytes(100_000)
    head = post("/undecided", body, "Expect: 100-continue").partition(b"\r\n\r\n")[0] + b"\r\n\r\n"
    client.send(head + body[:10])
    assert client.take() == b""
    assert not client.reads()
    client.application.undecided[0].admit()
    assert client.take() == b"HTTP/1.1 100 Continue\r\n\r\n"
    assert client.reads()
    client.send(body[10:])
    assert client.responses() == [(200, b"POST /undecided " + body)]


def test_limit_of_a_body_counts_after_the_admission() -> None:
    client = Client()
    client.send(b"POST /undecided HTTP/1.1\r\nHost: h\r\nContent-Length: 1000001\r\n\r\n")
    client.application.undecided[0].admit()
    assert problem(client)[0] == 413


@pytest.mark.parametrize("is_complete", [True, False])
def test_request_that_is_refused_later_leaves_a_connection_that_reads(is_complete: bool) -> None:
    client = Client()
    whole = post("/undecided", b"body")
    client.send(whole if is_complete else whole[:-1])
    client.application.undecided[0].reply(Response(401, b"no", "text/plain"))
    client.work()
    assert client.responses() == [(401, b"no")]
    assert client.reads()
    if is_complete:
        client.send(get("/next"))
        assert client.responses() == [(200, b"GET /next ")]
    else:
        assert client.connection.phase is Phase.LINGERING
    assert client.service.in_progress == 0


def test_client_that_leaves_before_the_decision_is_forgotten() -> None:
    client = Client()
    client.send(post("/undecided", b"body"))
    [exchange] = client.application.undecided
    client.connection.connection_lost()
    assert exchange.is_over
    exchange.admit()
    client.work()
    assert (client.application.served, client.service.in_progress) == ([], 0)
