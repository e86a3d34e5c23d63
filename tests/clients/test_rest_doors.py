"""What holds for every request over HTTP: paths, methods, limits, and bytes that are no request."""

import gzip
import re

import pytest

from tests.clients.rest_client import Rest


@pytest.mark.parametrize("path", ["/nothing", "/topics/a/b/c/d", "/topics//messages", "/topics/", "/subscriptions/a/b"])
def test_path_that_leads_nowhere_is_told(rest: Rest, path: str) -> None:
    assert rest.get(path).problem == (
        404,
        "not_found",
        f"no endpoint has the path {path}: GET /docs lists the endpoints",
    )


def test_method_that_a_path_does_not_take_is_told_those_that_it_takes(rest: Rest) -> None:
    answer = rest.ask("PUT", "/topics/a", {})
    assert answer.headers["Allow"] == "DELETE, GET, HEAD, PATCH"
    detail = "/topics/a does not support PUT: use DELETE, GET, HEAD, PATCH"
    assert answer.problem == (405, "method_not_allowed", detail)


@pytest.mark.parametrize(("method", "target"), [("CONNECT", "example.org:443"), ("OPTIONS", "*")])
def test_target_without_a_path_is_told(rest: Rest, method: str, target: str) -> None:
    detail = f"no endpoint has the path {target}: GET /docs lists the endpoints"
    for _ in range(2):
        assert rest.ask(method, target).problem == (404, "not_found", detail)


def test_head_is_answered_where_get_changes_nothing(rest: Rest) -> None:
    assert rest.ask("HEAD", "/topics").status == 200
    assert rest.ask("HEAD", "/subscriptions/a/messages").status == 405


def test_parameter_that_nobody_knows_is_told_those_that_are_known(rest: Rest) -> None:
    assert rest.get("/topics", page=2).problem == (
        400,
        "invalid_request",
        "unknown query parameter 'page': use one of internal",
    )
    assert rest.get("/dlq", page=2).problem[2] == "unknown query parameter 'page': this request takes none"


def test_body_that_is_too_large_is_refused(rest: Rest) -> None:
    answer = rest.post("/topics", b" " * (1 << 20) + b"{}")
    detail = "the request's body is larger than the limit of 1048576 bytes"
    assert answer.problem == (413, "message_too_large", detail)


def test_body_that_becomes_too_large_is_refused(rest: Rest) -> None:
    packed = gzip.compress(b" " * (8 << 20))
    assert len(packed) < 1 << 20
    answer = rest.ask("POST", "/topics", packed, headers={"Content-Encoding": "gzip"})
    assert answer.problem[:2] == (413, "message_too_large")


def test_body_may_be_packed(rest: Rest, topic: str) -> None:
    packed = gzip.compress(b'{"name": "%s"}' % topic.encode())
    assert rest.ask("POST", "/topics", packed, headers={"Content-Encoding": "gzip"}).status == 201


def test_body_that_is_not_packed_as_it_says_is_refused(rest: Rest, topic: str) -> None:
    for packed, encoding in (
        (b"plain", "gzip"),
        (b"x", "gzip"),
        (b"hello", "deflate"),
        (gzip.compress(b"{}")[:-1], "gzip"),
    ):
        answer = rest.ask("POST", f"/topics/{topic}/messages", packed, headers={"Content-Encoding": encoding})
        assert answer.problem[:2] == (400, "invalid_request")
        assert f"not valid {encoding}" in answer.problem[2]
    assert rest.get(f"/topics/{topic}/messages").problem[0] == 404, "nothing was published"


def test_body_that_is_packed_otherwise_is_told_how_it_may_be(rest: Rest) -> None:
    for encoding in ("br", "zstd", "gzip, gzip"):
        answer = rest.ask("POST", "/topics", b"{}", headers={"Content-Encoding": encoding})
        detail = f"Content-Encoding '{encoding}' is not supported: send one of identity, gzip, deflate"
        assert answer.problem == (415, "unsupported_compression", detail)
        assert answer.headers["Accept-Encoding"] == "identity, gzip, deflate"
    assert rest.ask("POST", "/topics", b"[]", headers={"Content-Encoding": "Identity"}).problem[0] == 400


def test_body_of_a_request_that_needs_none_is_looked_at(rest: Rest, topic: str) -> None:
    rest.create(topic, topic)
    rest.publish(topic, "kept")
    for verb in ("purge", "pause", "resume", "peek"):
        path = f"/subscriptions/{topic}/{verb}"
        assert rest.post(path, {"partition": 0}).problem[:2] == (400, "invalid_request")
        assert rest.post(path, b"not json").problem[:2] == (400, "invalid_request")
    assert rest.get(f"/subscriptions/{topic}").json["depth"] == 1
    assert rest.post(f"/subscriptions/{topic}/purge", {}).json == {"purged": 1}


def test_error_names_the_valid_alternatives(rest: Rest, topic: str) -> None:
    rest.create(topic)
    answer = rest.post(f"/topics/{topic}/subscriptions", {"name": topic, "ordering": "fifo"})
    assert answer.problem[2].endswith("Invalid enum value 'fifo': use one of key, none - at `$.ordering`")
    answer = rest.post("/topics", {"name": "a b"})
    assert answer.problem[2].endswith("Expected `str` of letters, digits, '.', '_' and '-' - at `$.name`")


def test_expectation_that_cannot_be_met_is_told(rest: Rest) -> None:
    answer = rest.ask("GET", "/topics", headers={"Expect": "something"})
    detail = "'Expect: something' is not supported: send 100-continue, or leave the header out"
    assert answer.problem == (417, "expectation_failed", detail)


def test_browser_is_served_by_address_only_where_no_token_is_asked_for(rest: Rest) -> None:
    evil = {"Host": "evil.example:8080", "Origin": "http://evil.example:8080"}
    status, kind, detail = rest.ask("GET", "/topics", headers=evil).problem
    assert (status, kind) == (403, "foreign_origin")
    assert "--token-file" in detail
    assert rest.ask("GET", "/topics", headers={"Host": "conveyor:8080"}).status == 200


def test_page_shows_every_endpoint(rest: Rest) -> None:
    document = rest.get("/openapi.json").json
    page = rest.get("/docs")
    assert page.headers["Content-Type"] == "text/html; charset=utf-8"
    for path in document["paths"]:
        assert f"</span>{path}</span>" in page.body.decode()
    for name in document["components"]["schemas"]:
        assert f'id="{name}"' in page.body.decode()
    assert b"<script" not in page.body
    assert not re.search(rb'(src|href)="[^#/]', page.body), "nothing is loaded from elsewhere"
