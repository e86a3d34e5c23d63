"""Responses allow listed origins to read them, and no others; all of them depend on the origin."""

from itertools import count

import pytest

from conveyor.http.engine.cross_origin import Origins
from conveyor.http.engine.exchange import Service
from conveyor.http.engine.http_response import DateHeader, Response
from conveyor.kernel.request_budget import RequestBudget
from conveyor.testing.manual_clock import ManualClock
from tests.unit.http.memory_wire import IDLE_S, LIMIT_BYTES, RECEIVE_MS, Client, EchoApplication

APP = "https://app.example"
OTHERS = (
    "https://evil.example",
    "null",
    "",
    "https://app.example.evil.example",
    "https://app.example:443",
    "http://app.example",
    "HTTPS://app.example",
    "https://app.example/",
    "https://app.example, https://evil.example",
    "*",
)
REFUSED = {
    "Content-Type": "text/plain",
    "Content-Length": "2",
    "Date": "Thu, 01 Jan 1970 00:00:00 GMT",
    "Vary": "Origin",
    "Access-Control-Allow-Origin": APP,
    "Access-Control-Expose-Headers": "Allow, Retry-After, WWW-Authenticate",
}


def client(*origins: str) -> Client:
    service = Service(
        EchoApplication(), RequestBudget(10_000_000), DateHeader(ManualClock(0)), IDLE_S, count(1), Origins(origins)
    )
    made = Client(service=service)
    assert isinstance(service.application, EchoApplication)
    made.application = service.application
    return made


def request(target: str, origin: str | None, *headers: str, method: str = "GET") -> bytes:
    named = [] if origin is None else [f"Origin: {origin}"]
    return "".join(f"{line}\r\n" for line in (f"{method} {target} HTTP/1.1", "Host: h", *named, *headers, "")).encode()


def heads(written: Client) -> tuple[int, dict[str, str]]:
    """Return the status and the headers of the last response that was written."""
    head = written.take().rpartition(b"HTTP/1.1 ")[2].partition(b"\r\n\r\n")[0].decode()
    status, *lines = head.split("\r\n")
    assert len({line.partition(":")[0] for line in lines}) == len(lines), "each header is there once"
    return int(status.split()[0]), dict(line.split(": ", 1) for line in lines)


def test_listed_origin_is_allowed_by_name() -> None:
    asking = client(APP, "http://localhost:3000")
    for origin in (APP, "http://localhost:3000"):
        asking.send(request("/a", origin))
        status, headers = heads(asking)
        assert (status, headers["Access-Control-Allow-Origin"], headers["Vary"]) == (200, origin, "Origin")
        assert "Retry-After" in headers["Access-Control-Expose-Headers"]
        assert "Access-Control-Allow-Credentials" not in headers


@pytest.mark.parametrize("origin", [None, *OTHERS])
def test_unlisted_origin_is_never_reflected(origin: str | None) -> None:
    asking = client(APP)
    asking.send(request("/a", origin))
    status, headers = heads(asking)
    assert (status, headers["Vary"]) == (200, "Origin")
    assert not any(name.startswith("Access-Control-") for name in headers)


def test_star_allows_all_origins_but_null() -> None:
    asking = client("*")
    asking.send(request("/a", "https://any.example"))
    assert heads(asking)[1]["Access-Control-Allow-Origin"] == "*"
    asking.send(request("/a", "null"))
    assert "Access-Control-Allow-Origin" not in heads(asking)[1]


def test_null_cannot_be_listed() -> None:
    asking = client("null", APP)
    asking.send(request("/a", "null"))
    assert "Access-Control-Allow-Origin" not in heads(asking)[1]


def test_refusals_of_the_connection_and_of_the_application_are_readable() -> None:
    """A page sees only a network error otherwise, not the status."""
    asking = client(APP)
    asking.send(request("/refused", APP))
    assert heads(asking) == (401, REFUSED)
    for status, sent in (
        (413, request("/a", APP, f"Content-Length: {LIMIT_BYTES + 1}", method="POST")),
        (417, request("/a", APP, "Expect: miracles", "Content-Length: 2", method="POST")),
    ):
        refused = client(APP)
        refused.send(sent)
        found, headers = heads(refused)
        assert (found, headers["Access-Control-Allow-Origin"]) == (status, APP)


def test_late_and_slow_responses_are_readable() -> None:
    asking = client(APP)
    asking.send(request("/later", APP))
    asking.answer(Response(503, b"{}", headers={"Retry-After": "1"}, closes=True))
    assert heads(asking)[1]["Access-Control-Allow-Origin"] == APP
    slow = client(APP)
    slow.send(request("/a", APP, "Content-Length: 5", method="POST"))
    slow.advance(RECEIVE_MS / 1000)
    status, headers = heads(slow)
    assert (status, headers["Access-Control-Allow-Origin"]) == (408, APP)


def test_unreadable_request_has_no_origin() -> None:
    asking = client(APP)
    asking.send(b"GET / HTTP/1.1\r\nOrigin: https://app.example\r\nBroken\r\n\r\n")
    status, headers = heads(asking)
    assert (status, headers["Vary"]) == (400, "Origin")
    assert "Access-Control-Allow-Origin" not in headers


def test_without_origins_there_are_no_such_headers() -> None:
    asking = Client()
    asking.send(request("/a", APP))
    assert heads(asking)[1].keys() == {"Content-Type", "Content-Length", "Date"}
