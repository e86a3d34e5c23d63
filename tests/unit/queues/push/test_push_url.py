"""The URLs that a push may have."""

import pytest

from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.queues.push.push_url import MAX_URL_CHARACTERS, PushUrl, parse_push_url


@pytest.mark.parametrize(
    ("url", "parts", "authority"),
    [
        ("https://example.com", PushUrl(True, "example.com", 443, "/"), "example.com"),
        ("https://example.com:8443/a?b=c%20d", PushUrl(True, "example.com", 8443, "/a?b=c%20d"), "example.com:8443"),
        ("https://[2606:4700::1]/", PushUrl(True, "2606:4700::1", 443, "/"), "[2606:4700::1]"),
        ("http://localhost:9/x", PushUrl(False, "localhost", 9, "/x"), "localhost:9"),
        ("http://127.0.0.1/x", PushUrl(False, "127.0.0.1", 80, "/x"), "127.0.0.1"),
        ("http://[::1]:81", PushUrl(False, "::1", 81, "/"), "[::1]:81"),
    ],
)
def test_parts_of_a_url(url: str, parts: PushUrl, authority: str) -> None:
    assert parse_push_url(url) == parts
    assert parts.authority == authority


@pytest.mark.parametrize(
    "url",
    [
        "",
        "example.com",
        "ftp://example.com",
        "file:///etc/passwd",
        "gopher://example.com",
        "https://",
        "https:///path",
        "https://user:password@example.com",
        "https://user@example.com",
        "https://example.com/#part",
        "https://example.com/#",
        "https://example.com/a b",
        "https://example.com/\r\nx: y",
        "https://example.com/\u00e4",
        "https://ex\u00e4mple.com/",
        "https://example.com:0/",
        "https://example.com:65536/",
        "https://example.com:x/",
        "https://exa mple.com/",
        "https://-example.com/",
        "https://a..b/",
        "https://[::1/",
        "https://[fe80::1%25eth0]/",
        "https://" + "a" * 64 + ".com/",
        "https://example.com/" + "a" * MAX_URL_CHARACTERS,
        "http://example.com/",
        "http://10.0.0.1/",
        "http://localhost.example.com/",
    ],
)
def test_other_urls_are_refused_without_being_repeated(url: str) -> None:
    with pytest.raises(RequestError, match=r"push\.url is not valid") as refused:
        parse_push_url(url)
    assert refused.value.kind is ErrorKind.INVALID_SUBSCRIPTION
    assert "example" not in refused.value.message


def test_origin_has_neither_path_nor_query() -> None:
    assert parse_push_url("https://example.com:8443/hooks/secret?token=1").origin == "https://example.com:8443"
