"""Targets are found by literal segments before parameters, and their text is decoded after they are divided."""

import pytest

from conveyor.http.endpoints.router import Router, parse_query, split_target
from conveyor.kernel.errors import RequestError

ROUTER = Router(
    [
        ("GET", "/topics", "list"),
        ("POST", "/topics", "create"),
        ("GET", "/topics/{topic}", "show"),
        ("POST", "/topics/{topic}/messages:batch", "batch"),
        ("GET", "/topics/{topic}/messages/{message_id}", "message"),
        ("DELETE", "/topics/{name}", "delete"),
        ("GET", "/topics/all/old", "old"),
    ]
)


@pytest.mark.parametrize(
    ("method", "path", "target", "names"),
    [
        ("GET", "/topics", "list", {}),
        ("GET", "/topics/t", "show", {"topic": "t"}),
        ("DELETE", "/topics/t", "delete", {"name": "t"}),
        ("POST", "/topics/t/messages:batch", "batch", {"topic": "t"}),
        ("POST", "/topics/t/messages%3Abatch", "batch", {"topic": "t"}),
        ("GET", "/topics/a%2Fb/messages/%c3%a9", "message", {"topic": "a/b", "message_id": "é"}),
        ("GET", "/topics/all/old", "old", {}),
        ("GET", "/topics/all/messages/1", "message", {"topic": "all", "message_id": "1"}),
        ("GET", "/topics/all", "show", {"topic": "all"}),
    ],
)
def test_path_has_a_target(method: str, path: str, target: str, names: dict[str, str]) -> None:
    assert ROUTER.find(path, method) == (target, names)


@pytest.mark.parametrize(
    "path",
    ["", "/", "topics", "*", "/topics/", "/topics//messages/1", "/topics/t/messages", "//topics", "/topics/all/o"],
)
def test_path_has_no_target(path: str) -> None:
    assert ROUTER.find(path, "GET") == []


def test_path_names_the_methods_that_it_supports() -> None:
    assert ROUTER.find("/topics", "PUT") == ["GET", "POST"]
    assert ROUTER.find("/topics/t", "POST") == ["DELETE", "GET"]


@pytest.mark.parametrize("path", ["/topics/%ff", "/%ed%a0%80"])
def test_path_that_is_not_utf8_is_refused(path: str) -> None:
    with pytest.raises(RequestError, match=f"'{path}' in the request's path or query is not UTF-8"):
        ROUTER.find(path, "GET")


@pytest.mark.parametrize(
    ("target", "path", "query"),
    [
        (b"/a", "/a", ""),
        (b"/a?", "/a", ""),
        (b"/a?b=c?d", "/a", "b=c?d"),
        (b"http://h:1/a?b", "/a", "b"),
        (b"HTTPS://h?b", "/", "b"),
        (b"*", "*", ""),
        (b"h:1", "h:1", ""),
        (b"//h/a", "//h/a", ""),
    ],
)
def test_target_is_divided(target: bytes, path: str, query: str) -> None:
    assert split_target(target) == (path, query)


@pytest.mark.parametrize(
    ("query", "values"),
    [
        ("a=1&b=2&a=3", {"a": ["1", "3"], "b": ["2"]}),
        ("a&b=&=c&&", {"a": [""], "b": [""], "": ["c"]}),
        ("a=b%3Dc%26d+e%2B", {"a": ["b=c&d e+"]}),
        ("%C3%A9=%c3%a9", {"é": ["é"]}),
        ("a=100%&b=%zz", {"a": ["100%"], "b": ["%zz"]}),
        ("a=b=c;d", {"a": ["b=c;d"]}),
    ],
)
def test_query_is_parsed(query: str, values: dict[str, list[str]]) -> None:
    assert parse_query(query) == values


def test_only_short_queries_are_remembered() -> None:
    short, long = "a=1", "&".join(f"a{number}" for number in range(100))
    assert parse_query(short) is parse_query(short)
    assert parse_query(long) == parse_query(long)
    assert parse_query(long) is not parse_query(long)


def test_query_that_is_not_utf8_is_refused() -> None:
    with pytest.raises(RequestError, match=r"^'b=%ff' in the request's path or query is not UTF-8$"):
        parse_query("a=1&b=%ff")
