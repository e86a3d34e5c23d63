"""One connection: the order of requests, early refusals, slow clients, memory, disconnects and the stop."""

import json
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conveyor.http.engine.http_connection import Phase
from conveyor.http.engine.http_response import Response
from conveyor.kernel.request_budget import BEFORE_SHARE_BYTES
from conveyor.kernel.response_budget import SMALL_BYTES, BudgetFull
from tests.unit.http.memory_wire import IDLE_S, LIMIT_BYTES, RECEIVE_MS, Client, parse_responses

CLOSE = b"\r\nConnection: close"


def get(path: str, *headers: str) -> bytes:
    return "".join(f"{line}\r\n" for line in (f"GET {path} HTTP/1.1", "Host: h", *headers, "")).encode()


def post(path: str, body: bytes, *headers: str) -> bytes:
    lines = (f"POST {path} HTTP/1.1", "Host: h", f"Content-Length: {len(body)}", *headers, "")
    return "".join(f"{line}\r\n" for line in lines).encode() + body


def chunked(path: str, *chunks: bytes) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    return head + b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in (*chunks, b""))


def problem(client: Client) -> tuple[int, str, str]:
    """Return the status, kind and detail of the one response that was written."""
    ((status, body),) = client.responses()
    document = json.loads(body)
    return status, document["kind"], document["detail"]


def test_response_has_its_exact_bytes() -> None:
    client = Client()
    client.send(post("/a?b", b"body"))
    assert client.take() == (
        b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 14\r\n"
        b"Date: Thu, 01 Jan 1970 00:00:00 GMT\r\n\r\nPOST /a?b body"
    )


def test_response_has_its_headers() -> None:
    client = Client()
    client.send(get("/later"))
    client.application.answer(Response(503, b"{}", headers={"Retry-After": "1"}, closes=True))
    assert client.take() == (
        b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nContent-Length: 2\r\n"
        b"Date: Thu, 01 Jan 1970 00:00:00 GMT\r\nConnection: close\r\nRetry-After: 1\r\n\r\n{}"
    )
    assert client.wire.state == "closed"


def test_status_204_has_neither_body_nor_length() -> None:
    client = Client()
    client.send(get("/later"))
    client.application.answer(Response(204))
    assert client.take() == b"HTTP/1.1 204 No Content\r\nDate: Thu, 01 Jan 1970 00:00:00 GMT\r\n\r\n"


def test_response_to_head_has_the_length_but_no_body() -> None:
    client = Client()
    client.send(get("/a").replace(b"GET", b"HEAD") + get("/b"))
    head, _, rest = client.take().partition(b"\r\n\r\n")
    assert b"Content-Length: 8" in head
    assert parse_responses(rest) == [(200, b"GET /b ")]


def test_requests_after_an_error_are_not_answered() -> None:
    client = Client()
    client.send(get("/later") + b"nonsense\r\n\r\n" + get("/b"))
    assert client.take() == b""
    client.answer()
    (first, second) = client.responses()
    assert (first, second[0]) == ((200, b"GET /later "), 400)
    assert json.loads(second[1])["kind"] == "malformed_request"
    assert client.wire.state == "ended"
    client.send(get("/c"))
    assert client.take() == b""


@pytest.mark.parametrize("request_bytes", [get("/", "Connection: close"), b"GET / HTTP/1.0\r\n\r\n"])
def test_connection_is_closed_if_the_client_says_so(request_bytes: bytes) -> None:
    client = Client()
    client.send(request_bytes + get("/b"))
    response = client.take()
    assert CLOSE in response
    assert len(parse_responses(response)) == 1
    assert client.wire.state == "closed"


def test_connection_of_http_10_is_kept_alive_on_request() -> None:
    client = Client()
    client.send(b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
    assert b"\r\nConnection: keep-alive\r\n" in client.take()
    assert client.wire.state == "open"


def test_expected_body_is_asked_for() -> None:
    client = Client()
    head, _, body = post("/a", b"abc", "Expect: 100-continue").partition(b"\r\n\r\n")
    client.send(head + b"\r\n\r\n")
    assert client.take() == b"HTTP/1.1 100 Continue\r\n\r\n"
    client.send(body)
    assert client.responses() == [(200, b"POST /a abc")]


def test_expected_body_is_asked_for_after_the_responses_before() -> None:
    client = Client()
    head, _, body = post("/a", b"abc", "Expect: 100-continue").partition(b"\r\n\r\n")
    client.send(get("/later") + head + b"\r\n\r\n")
    client.answer()
    first, _, rest = client.take().partition(b"HTTP/1.1 100")
    assert (parse_responses(first), rest) == ([(200, b"GET /later ")], b" Continue\r\n\r\n")
    client.send(body)
    assert client.responses() == [(200, b"POST /a abc")]


@pytest.mark.parametrize(
    ("path", "length", "headers", "status"),
    [
        ("/refused", 3, ("Expect: 100-continue",), 401),
        ("/a", LIMIT_BYTES + 1, ("Expect: 100-continue",), 413),
        ("/a", 3, ("Expect: more",), 417),
        ("/refused", 100, (), 401),
    ],
)
def test_request_is_refused_before_its_body(path: str, length: int, headers: tuple[str, ...], status: int) -> None:
    client = Client()
    lines = (f"POST {path} HTTP/1.1", "Host: h", f"Content-Length: {length}", *headers, "", "")
    client.send("\r\n".join(lines).encode())
    response = client.take()
    assert CLOSE in response
    assert [found for found, _ in parse_responses(response)] == [status]
    assert client.wire.state == "ended", "the client may be sending the body"
    client.send(b"x" * 100_000)
    assert client.wire.is_reading
    client.connection.end_of_input()
    assert client.wire.state == "closed"


def test_connection_goes_on_after_the_refusal_of_a_complete_request() -> None:
    client = Client()
    client.send(post("/refused", b"abc") + get("/a"))
    assert client.responses() == [(401, b"no"), (200, b"GET /a ")]


def test_refused_client_that_sends_on_is_disconnected_after_a_while() -> None:
    client = Client()
    client.send(post("/refused", b"abc")[:-1])
    client.advance(4)
    assert client.wire.state == "ended"
    client.advance(2)
    assert client.wire.state == "closed"


@pytest.mark.parametrize("has_length", [True, False])
def test_body_larger_than_the_limit_is_refused(has_length: bool) -> None:
    client = Client()
    body = b"x" * (LIMIT_BYTES + 1)
    client.send(post("/a", body) if has_length else chunked("/a", body), pieces=100_000)
    status, kind, _ = problem(client)
    assert (status, kind) == (413, "message_too_large")
    assert client.application.served == []


def test_body_larger_than_the_limit_is_refused_when_the_next_request_has_begun() -> None:
    client = Client()
    data = chunked("/a", b"x" * LIMIT_BYTES)
    client.send(data.replace(b"\r\n0\r\n\r\n", b"\r\n"))
    client.send(b"1\r\ny\r\n0\r\n\r\n" + post("/b", b"abc")[:-1])
    client.work()
    client.send(b"c")
    assert [status for status, _ in client.responses()] == [413, 200]
    assert client.application.served == [("POST", b"/b", b"abc")]


def test_body_of_the_limit_is_served() -> None:
    client = Client()
    client.send(post("/a", b"x" * LIMIT_BYTES) + chunked("/a", b"y" * LIMIT_BYTES))
    client.work()
    assert [body for _, _, body in client.application.served] == [b"x" * LIMIT_BYTES, b"y" * LIMIT_BYTES]


def test_invalid_chunk_ends_a_request_that_has_begun() -> None:
    client = Client()
    client.send(chunked("/a")[:-5])
    client.send(b"zz\r\n")
    assert problem(client) == (
        400,
        "invalid_request",
        "the request's body cannot be read: Invalid character in chunk size",
    )
    assert client.wire.state == "ended"


def test_idle_connection_is_closed() -> None:
    client = Client()
    client.advance(IDLE_S - 1)
    client.send(get("/a") + b"GET /half")
    client.take()
    client.advance(IDLE_S - 1)
    assert client.wire.state == "open"
    client.send(b"/trickle")
    client.advance(2)
    assert (client.wire.state, client.take()) == ("closed", b"")


def test_body_that_does_not_arrive_in_time_is_refused() -> None:
    client = Client()
    client.send(post("/a", b"abc")[:-1])
    client.advance(RECEIVE_MS / 1000 - 0.1)
    client.send(b"")
    assert client.take() == b""
    client.advance(0.2)
    assert problem(client)[:2] == (408, "request_too_slow")
    assert client.wire.state == "ended"
    assert client.service.in_progress == 0


def test_request_that_is_worked_on_has_no_deadline() -> None:
    client = Client()
    client.send(post("/later", b"abc"))
    assert client.connection._deadline is None
    client.advance(1000)
    client.application.answer()
    assert len(client.responses()) == 1


def test_large_body_waits_for_its_share() -> None:
    body = b"x" * (BEFORE_SHARE_BYTES + 100_000)
    first, second = Client(), Client()
    second.budget = first.budget = first.service.request_budget
    second = Client(service=first.service)
    first.service.request_budget.ask(10_000_000 - len(body), lambda: None)
    first.send(post("/later", body))
    second.send(post("/later", body)[:-10_000])
    assert [client.connection.phase for client in (first, second)] == [Phase.SERVING, Phase.WAITING]
    assert second.connection._deadline is None
    assert not second.reads()
    second.send(body[-10_000:])
    first.application.answer()
    second.work()
    first.application.answer()
    assert second.responses() == [(200, b"POST /later " + body)]
    assert second.reads()
    assert first.service.request_budget.held_bytes == 10_000_000 - len(body)


def test_share_of_a_client_that_disconnects_is_released() -> None:
    body = b"x" * (BEFORE_SHARE_BYTES + 100_000)
    client = Client(budget_bytes=len(body))
    client.send(post("/later", body)[:-1])
    assert client.budget.held_bytes == len(body)
    other = Client(service=client.service)
    other.send(post("/later", body)[:-1])
    assert client.budget.waiting_count == 1
    assert client.budget.lasting_bytes > BEFORE_SHARE_BYTES
    other.connection.connection_lost()
    client.connection.connection_lost()
    assert (client.budget.used_bytes, client.budget.waiting_count) == (0, 0)
    assert client.service.in_progress == 0


@pytest.mark.parametrize("is_large", [False, True], ids=["small", "large"])
def test_body_counts_until_its_reply_although_its_client_has_disconnected(*, is_large: bool) -> None:
    """Otherwise clients that send again, while a disk or another broker hangs, could have any number of bodies."""
    body = b"x" * (BEFORE_SHARE_BYTES + 100_000 if is_large else 200_000)
    client = Client()
    client.send(post("/later", body)[:100_000])
    assert 99_000 < client.budget.lasting_bytes < 100_000
    client.send(post("/later", body)[100_000:])
    client.connection.connection_lost()
    counted = (client.budget.held_bytes, client.budget.lasting_bytes)
    assert counted == ((len(body), 0) if is_large else (0, len(body)))
    client.application.answer()
    assert client.budget.used_bytes == client.service.in_progress == 0


def test_bodies_are_refused_while_others_use_all_the_memory() -> None:
    """The first one goes on: its client has disconnected."""
    client = Client(budget_bytes=100)
    client.send(post("/later", b"x" * 60))
    client.connection.connection_lost()
    others = [Client(service=client.service) for _ in range(4)]
    others[0].send(post("/a", b"y" * 50))
    others[1].send(post("/a", b"y" * 50)[:-1])
    others[2].send(post("/a", b"y" * (BEFORE_SHARE_BYTES + 100_000))[:BEFORE_SHARE_BYTES])
    others[3].send(get("/a"))
    for other, state in zip(others, ("open", "ended", "ended", "open"), strict=True):
        assert other.wire.state == state
    assert others[3].responses() == [(200, b"GET /a ")]
    assert b"\r\nRetry-After: 1\r\n" in others[0].wire.written
    for other in others[:3]:
        status, kind, detail = problem(other)
        assert (status, kind) == (503, "busy")
        assert "network.max_buffered_bytes" in detail
    assert client.budget.used_bytes == 60
    others[0].send(post("/a", b"y" * 40))
    assert others[0].responses() == [(200, b"POST /a " + b"y" * 40)]
    client.application.answer()
    others[0].send(post("/a", b"y" * 50))
    assert others[0].responses() == [(200, b"POST /a " + b"y" * 50)]


def test_large_body_that_waits_for_its_share_is_counted_meanwhile() -> None:
    body = b"x" * (BEFORE_SHARE_BYTES + 100_000)
    client = Client()
    share = client.budget.ask(9_900_000, lambda: None)
    client.send(post("/a", body)[:-1], pieces=100_000)
    assert client.connection.phase is Phase.WAITING
    waiting_bytes = client.budget.lasting_bytes
    assert BEFORE_SHARE_BYTES < waiting_bytes < len(body)
    client.budget.give_back(share)
    client.work()
    assert (client.budget.held_bytes, client.budget.lasting_bytes) == (len(body), 0)
    client.send(b"x")
    assert client.responses() == [(200, b"POST /a " + body)]
    assert client.budget.used_bytes == 0


def test_nothing_begins_while_the_client_does_not_read() -> None:
    client = Client()
    client.wire.high_water_bytes = 10
    client.send(get("/a") + get("/b"))
    assert len(client.application.served) == 1
    client.send(b"x" * 100_000)
    assert not client.wire.is_reading
    client.connection.resume_writing()
    assert len(client.application.served) == 2


def test_client_that_does_not_read_its_response_is_disconnected() -> None:
    client = Client()
    client.wire.high_water_bytes = 10
    client.send(get("/later"))
    client.application.answer(Response(200, b"x" * (SMALL_BYTES + 1)))
    assert client.service.response_budget.used_bytes == SMALL_BYTES + 1
    client.advance(59)
    assert client.wire.state == "closed", "it is idle, but its response is still sent"
    client.advance(2)
    assert client.wire.state == "aborted"
    assert client.service.response_budget.used_bytes == 0


def test_memory_of_a_large_response_is_released_when_it_is_read() -> None:
    client = Client()
    client.wire.high_water_bytes = 10
    client.send(get("/later"))
    client.application.waiting[0].memory.hold(1 << 20)
    assert client.service.response_budget.used_bytes == 1 << 20
    client.application.answer(Response(200, b"x" * (SMALL_BYTES + 1)))
    assert client.service.response_budget.used_bytes == SMALL_BYTES + 1
    client.connection.resume_writing()
    assert client.service.response_budget.used_bytes == 0


def test_no_response_is_made_when_the_memory_for_responses_is_used_up() -> None:
    client = Client()
    client.send(get("/later"))
    client.application.waiting[0].memory.hold(1 << 30)
    with pytest.raises(BudgetFull):
        client.application.waiting[0].memory.hold(1)
    client.application.answer()
    assert client.service.response_budget.used_bytes == 0


def test_client_that_disconnects_withdraws_what_it_waits_for() -> None:
    client = Client()
    client.send(get("/poll"))
    client.connection.connection_lost()
    assert client.application.gone == 1
    assert client.service.in_progress == 1
    client.application.answer()
    assert (client.take(), client.service.in_progress) == (b"", 0)


def test_request_runs_to_completion_after_a_disconnect() -> None:
    client = Client()
    client.send(post("/later", b"abc"))
    client.connection.connection_lost()
    assert client.service.in_progress == 1
    client.application.answer()
    assert (client.take(), client.service.in_progress) == (b"", 0)


def test_client_that_sends_no_more_gets_its_responses() -> None:
    client = Client()
    client.send(post("/later", b"1") + get("/2"))
    client.connection.end_of_input()
    client.answer()
    assert [body for _, body in client.responses()] == [b"POST /later 1", b"GET /2 "]
    assert client.wire.state == "closed"


@pytest.mark.parametrize("begun", [b"", b"GET /ha", post("/a", b"abc")[:-1]])
def test_client_that_sends_no_more_in_the_middle_is_disconnected(begun: bytes) -> None:
    client = Client()
    client.send(begun)
    client.connection.end_of_input()
    assert (client.wire.state, client.take()) == ("closed", b"")
    client.connection.connection_lost()
    assert client.service.in_progress == 0


def test_end_of_input_withdraws_a_poll() -> None:
    client = Client()
    client.send(get("/poll"))
    client.connection.end_of_input()
    assert (client.application.gone, client.wire.state) == (1, "aborted")


def test_client_that_is_gone_before_its_poll_begins_withdraws_it() -> None:
    client = Client()
    client.send(get("/later"))
    exchange, gone = client.application.waiting[0], list[str]()
    client.connection.end_of_input()
    assert exchange.is_gone
    exchange.until_gone(lambda: gone.append("now"))
    assert gone == ["now"]


def test_stop_closes_idle_connections_and_lets_the_others_end() -> None:
    idle, half, working, receiving = Client(), Client(), Client(), Client()
    half.send(b"GET /ha")
    working.send(get("/later") + get("/more"))
    receiving.send(post("/a", b"abc")[:-1])
    for client in (idle, half, working, receiving):
        client.connection.finish()
    assert (idle.wire.state, half.wire.state) == ("closed", "closed")
    working.application.answer()
    receiving.send(b"c")
    for client in (working, receiving):
        response = client.take()
        assert CLOSE in response
        assert len(parse_responses(response)) == 1
        assert client.wire.state == "closed"


def test_stop_is_told_when_no_request_is_in_progress() -> None:
    client = Client()
    quiet: list[None] = []
    client.service.quiet.listen(quiet.append)
    client.send(get("/a") + get("/later"))
    client.service.is_stopping = True
    assert quiet == []
    client.application.answer()
    assert quiet == [None]


@given(
    st.lists(st.sampled_from(["get", "post", "chunks", "refused", "nonsense", "upgrade"]), min_size=1, max_size=6),
    st.lists(st.integers(0, 2_000), max_size=12),
)
@settings(deadline=None)
def test_any_division_of_the_bytes_has_the_same_responses(kinds: list[str], cuts: list[int]) -> None:
    requests = {
        "get": get("/a"),
        "post": post("/b", b"x" * 50),
        "chunks": chunked("/c", b"abc", b"d" * 20),
        "refused": get("/refused"),
        "nonsense": b"nonsense\r\n\r\n",
        "upgrade": post("/d", b"abc", "Connection: Upgrade", "Upgrade: h2c"),
    }
    data = b"".join(requests[kind] for kind in kinds)
    whole, divided = Client(), Client()
    whole.send(data)
    places = sorted({0, len(data), *(cut % len(data) for cut in cuts)})
    for begin, end in pairwise(places):
        divided.send(data[begin:end])
    assert divided.responses() == whole.responses()
    assert divided.application.served == whole.application.served
    assert divided.wire.state == whole.wire.state
