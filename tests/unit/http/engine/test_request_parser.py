"""Requests are parsed the same however their bytes are divided; what is ambiguous or too large is refused."""

from itertools import pairwise

import h11
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from conveyor.http.engine.request_parser import MAX_FIELD_BYTES, MAX_HEAD_BYTES, MAX_HEADERS, RequestParser

HEAD = b"GET / HTTP/1.1\r\nHost: h\r\n"
POST = b"POST / HTTP/1.1\r\nHost: h\r\n"
LARGE = b"X: " + b"a" * 1_023 + b"\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"

Parsed = tuple[str, bytes, list[tuple[str, str]], bytes, bool]


def parse(data: bytes, cuts: tuple[int, ...] = ()) -> tuple[list[Parsed], str | None]:
    """Return the complete requests, and the error. cuts: where to divide the bytes."""
    parser = RequestParser()
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    for begin, end in pairwise(places):
        if parser.error is None:
            parser.feed(data[begin:end])
    requests = [
        (request.method, request.target, list(request.headers()), request.body, request.keeps_alive)
        for request in parser.complete
    ]
    return requests, parser.error


ACCEPTED = {
    "no body": HEAD + b"\r\n",
    "lines before": b"\r\n\r\n" + HEAD + b"\r\n",
    "empty values": HEAD + b"A:\r\nB:   \r\nC: c \t\r\n\r\n",
    "bytes": HEAD + b"A: \xff\xc3\xa9\r\n\r\n",
    "repeated": HEAD + b"A: 1\r\nB: 2\r\na: 3\r\n\r\n",
    "length": POST + b"Content-Length: 3\r\n\r\nabc",
    "body of a GET": HEAD + b"Content-Length: 3\r\n\r\nabc",
    "empty chunks": CHUNKED + b"0\r\n\r\n",
    "chunks": CHUNKED + b"3;name=value\r\nabc\r\nA\r\n0123456789\r\n0\r\n\r\n",
    "trailers": CHUNKED + b"1\r\na\r\n0\r\nHost: other\r\nX: y\r\n\r\n" + HEAD + b"A: b\r\n\r\n",
    "1.0": b"GET / HTTP/1.0\r\n\r\n",
    "1.0 kept alive": b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n" + HEAD + b"\r\n",
    "close": HEAD + b"Connection: close\r\n\r\n",
    "absolute": b"GET http://h/a?b HTTP/1.1\r\nHost: h\r\n\r\n",
    "asterisk": b"OPTIONS * HTTP/1.1\r\nHost: h\r\n\r\n",
    "pipelined": (POST + b"Content-Length: 1\r\n\r\na") * 3 + HEAD + b"\r\n",
    "upgrade": HEAD + b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n" + HEAD + b"\r\n",
    "upgrade with a body": POST
    + b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nContent-Length: 3\r\n\r\nabc"
    + HEAD
    + b"\r\n",
    "upgrade with chunks": CHUNKED[:-2]
    + b"Connection: Upgrade\r\nUpgrade: h2c\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
    + HEAD
    + b"\r\n",
    "connect": b"CONNECT h:1 HTTP/1.1\r\nHost: h\r\n\r\n",
    "most headers": HEAD + b"X: a\r\n" * (MAX_HEADERS - 1) + b"\r\n",
    "longest header": HEAD + b"X: " + b"a" * (MAX_FIELD_BYTES - 1) + b"\r\n\r\n",
    "longest head": HEAD + LARGE * (MAX_HEAD_BYTES // 1_024 - 1) + b"\r\n" + HEAD + LARGE + b"\r\n",
}
REFUSED = {
    "length and chunks": POST + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunks and length": POST + b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n",
    "two lengths": POST + b"Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc",
    "list of lengths": POST + b"Content-Length: 3, 3\r\n\r\nabc",
    "signed length": POST + b"Content-Length: +3\r\n\r\nabc",
    "negative length": POST + b"Content-Length: -3\r\n\r\nabc",
    "hexadecimal length": POST + b"Content-Length: 0x3\r\n\r\nabc",
    "empty length": POST + b"Content-Length:\r\n\r\n",
    "zeros without end": POST + b"Content-Length: " + b"0" * 4301 + b"\r\n\r\n",
    "huge length": POST + b"Content-Length: 99999999999999999999\r\n\r\nabc",
    "folded": HEAD + b"X: a\r\n b\r\n\r\n",
    "folded first": b"GET / HTTP/1.1\r\n Host: h\r\n\r\n",
    "bare LF": b"GET / HTTP/1.1\nHost: h\n\n",
    "bare LF in a head": HEAD + b"X: a\nY: b\r\n\r\n",
    "bare LF after a head": HEAD + b"\n",
    "bare CR": HEAD + b"X: a\rY: b\r\n\r\n",
    "bare LF in chunks": CHUNKED + b"3\nabc\n0\n\n",
    "NUL": HEAD + b"X: a\0b\r\n\r\n",
    "control character": HEAD + b"X: a\x01b\r\n\r\n",
    "space before colon": HEAD + b"X : a\r\n\r\n",
    "no colon": HEAD + b"X\r\n\r\n",
    "no name": HEAD + b": a\r\n\r\n",
    "name": HEAD + b"X(: a\r\n\r\n",
    "other coding": POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "coding after chunked": POST + b"Transfer-Encoding: chunked, gzip\r\n\r\n0\r\n\r\n",
    "identity": POST + b"Transfer-Encoding: identity\r\n\r\n",
    "almost chunked": POST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "chunked twice": POST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "hidden chunked": POST + b"Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n",
    "chunks in 1.0": b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "0.9": b"GET / HTTP/0.9\r\nHost: h\r\n\r\n",
    "no version": b"GET /\r\n\r\n",
    "2.0": b"GET / HTTP/2.0\r\nHost: h\r\n\r\n",
    "9.9": b"GET / HTTP/9.9\r\nHost: h\r\n\r\n",
    "preface of HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "no host": b"GET / HTTP/1.1\r\n\r\n",
    "two hosts": HEAD + b"Host: h\r\n\r\n",
    "method": b"F(O / HTTP/1.1\r\nHost: h\r\n\r\n",
    "control character in the target": b"GET /\x01 HTTP/1.1\r\nHost: h\r\n\r\n",
    "target not in ASCII": b"GET /\xc3\xa9 HTTP/1.1\r\nHost: h\r\n\r\n",
    "query not in ASCII": b"GET /?\xff HTTP/1.1\r\nHost: h\r\n\r\n",
    "fragment": b"GET /a#b HTTP/1.1\r\nHost: h\r\n\r\n",
    "tab in the request line": b"GET /\tHTTP/1.1\r\nHost: h\r\n\r\n",
    "chunk size with a space": CHUNKED + b"3 \r\nabc\r\n0\r\n\r\n",
    "chunk size with 0x": CHUNKED + b"0x3\r\nabc\r\n0\r\n\r\n",
    "huge chunk": CHUNKED + b"fffffffffffffffff\r\nabc",
    "negative chunk": CHUNKED + b"-3\r\nabc",
    "chunk without an end": CHUNKED + b"3\r\nabc0\r\n\r\n",
    "chunk that is too long": CHUNKED + b"3\r\nabcdef\r\n0\r\n\r\n",
    "long target": b"GET /" + b"a" * MAX_FIELD_BYTES + b" HTTP/1.1\r\nHost: h\r\n\r\n",
    "long header": HEAD + b"X: " + b"a" * MAX_FIELD_BYTES + b"\r\n\r\n",
    "many headers": HEAD + b"X: a\r\n" * MAX_HEADERS + b"\r\n",
    "large head": HEAD + LARGE * (MAX_HEAD_BYTES // 1_024) + b"\r\n",
}
LENIENT_H11 = {
    *("length and chunks", "chunks and length", "two lengths", "list of lengths", "folded", "control character"),
    *(
        "bare LF",
        "bare LF in a head",
        "bare LF after a head",
        "bare LF in chunks",
        "chunks in 1.0",
        "0.9",
        "2.0",
        "9.9",
    ),
    *(
        "chunk size with a space",
        "huge chunk",
        "fragment",
        "many headers",
        "large head",
        "long target",
        "long header",
        "preface of HTTP/2",
    ),
    "huge length",
}
"""Requests that h11 accepts, or waits for more of."""
STRICT_H11 = {"lines before"}
places = st.lists(st.integers(0, 10_000), max_size=8).map(tuple)


def is_accepted_by_h11(data: bytes) -> bool:
    """Return whether h11 accepts the first request."""
    connection = h11.Connection(h11.SERVER)
    connection.receive_data(data)
    try:
        while not isinstance(event := connection.next_event(), h11.EndOfMessage):
            if event in (h11.NEED_DATA, h11.PAUSED):
                return True
    except h11.RemoteProtocolError:
        return False
    return True


@pytest.mark.parametrize("name", ACCEPTED)
def test_request_is_accepted(name: str) -> None:
    requests, error = parse(ACCEPTED[name])
    assert requests
    assert error is None
    assert is_accepted_by_h11(ACCEPTED[name]) == (name not in STRICT_H11)


@pytest.mark.parametrize("name", REFUSED)
def test_request_is_refused(name: str) -> None:
    """h11 is the second opinion: what it refuses, too, is not refused by mistake."""
    requests, error = parse(REFUSED[name])
    assert requests == []
    assert error
    assert "\n" not in error
    assert is_accepted_by_h11(REFUSED[name]) == (name in LENIENT_H11)


@pytest.mark.parametrize("name", [*ACCEPTED, *REFUSED])
def test_byte_by_byte_the_result_is_the_same(name: str) -> None:
    data = (ACCEPTED | REFUSED)[name]
    requests, error = parse(data, tuple(range(len(data))))
    assert requests == parse(data)[0]
    assert (error is None) == (name in ACCEPTED)


@given(st.lists(st.sampled_from([*ACCEPTED, *REFUSED]), min_size=1, max_size=4), places)
@example(["upgrade with chunks", "upgrade with a body"], (90, 120, 200))
@settings(deadline=None)
def test_division_of_the_bytes_does_not_matter(names: list[str], cuts: tuple[int, ...]) -> None:
    data = b"".join((ACCEPTED | REFUSED)[name] for name in names)
    whole, divided = parse(data), parse(data, cuts)
    assert divided[0] == whole[0]
    assert (divided[1] is None) == (whole[1] is None)


@given(st.binary(max_size=300), st.sampled_from(list(ACCEPTED)), st.integers(0, 300), places)
@settings(deadline=None)
def test_damaged_bytes_are_parsed_the_same_however_divided(
    noise: bytes, name: str, place: int, cuts: tuple[int, ...]
) -> None:
    data = ACCEPTED[name][:place] + noise + ACCEPTED[name][place + len(noise) :]
    assert parse(data, cuts)[0] == parse(data)[0]


def test_headers_have_lower_case_names_and_trimmed_values() -> None:
    ((method, target, headers, body, keeps_alive),), _ = parse(ACCEPTED["empty values"])
    assert (method, target, body, keeps_alive) == ("GET", b"/", b"", True)
    assert headers == [("host", "h"), ("a", ""), ("b", ""), ("c", "c")]
    assert parse(ACCEPTED["repeated"])[0][0][2] == [("host", "h"), ("a", "1"), ("b", "2"), ("a", "3")]
    assert parse(ACCEPTED["bytes"])[0][0][2] == [("host", "h"), ("a", "\udcffé")]


def test_body_is_put_together() -> None:
    assert parse(ACCEPTED["chunks"])[0][0][3] == b"abc0123456789"
    assert [request[3] for request in parse(ACCEPTED["pipelined"])[0]] == [b"a", b"a", b"a", b""]


def test_trailers_are_headers_of_no_request() -> None:
    first, second = parse(ACCEPTED["trailers"])[0]
    assert first[2] == [("host", "h"), ("transfer-encoding", "chunked")]
    assert second[2] == [("host", "h"), ("a", "b")]


@pytest.mark.parametrize(
    ("name", "body"), [("upgrade", b""), ("upgrade with a body", b"abc"), ("upgrade with chunks", b"abc")]
)
def test_upgrade_is_ignored(name: str, body: bytes) -> None:
    """Java's HTTP client asks for HTTP/2 in its first request, whatever it sends."""
    requests, _ = parse(ACCEPTED[name])
    assert [request[3] for request in requests] == [body, b""]


@pytest.mark.parametrize(
    ("name", "keeps_alive"),
    [("no body", True), ("close", False), ("1.0", False), ("1.0 kept alive", True), ("connect", False)],
)
def test_connection_is_kept_alive(name: str, keeps_alive: bool) -> None:
    assert parse(ACCEPTED[name])[0][0][4] == keeps_alive


def test_complete_requests_before_an_error_are_kept() -> None:
    requests, error = parse(HEAD + b"\r\n" + HEAD + b"\r\n" + b"nonsense\r\n\r\n")
    assert (len(requests), error) == (2, "Invalid method encountered")


@pytest.mark.parametrize("begin", [b"GET /", HEAD + b"X: ", HEAD, CHUNKED, CHUNKED + b"0\r\nX: ", CHUNKED + b"1;"])
def test_endless_field_is_refused(begin: bytes) -> None:
    """Its bytes would be kept until it ends."""
    parser = RequestParser()
    parser.feed(begin)
    sent = 0
    while parser.error is None:
        parser.feed(b"a" * 100 if begin != HEAD else b"a")
        sent += 100
        assert sent < 100 * 2 * MAX_FIELD_BYTES
    assert parser.receiving is None


def test_slow_requests_are_not_endless_fields() -> None:
    parser = RequestParser()
    for _ in range(200):
        parser.feed(HEAD + b"X: " + b"a" * 100)
        parser.feed(b"\r\n\r\n")
    assert parser.error is None
    assert len(parser.complete) == 200


def test_bug_in_a_callback_fails_the_connection_only(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise ValueError("a bug")

    monkeypatch.setattr("conveyor.http.engine.request_parser._check", fail)
    requests, error = parse(HEAD + b"\r\n")
    assert (requests, error) == ([], "it could not be parsed: a bug, see the log")
    assert "request not parsed" in caplog.text
