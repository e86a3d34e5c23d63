"""Payloads, keys and headers survive a round trip through JSON."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conveyor.http_api.requests.payloads import Base64, Headers, as_bytes, as_text, read_headers, show_headers
from conveyor.kernel.errors import RequestError
from conveyor.records.record import header_name


def read_back(value: bytes | None) -> bytes | None:
    text, encoding = as_text(value)
    return as_bytes(text, None if encoding is msgspec.UNSET else "base64", "payload")


@given(st.none() | st.binary() | st.text().map(str.encode))
def test_payload_survives_a_round_trip(value: bytes | None) -> None:
    assert read_back(value) == value


def test_utf8_payload_is_text() -> None:
    assert as_text("grüß".encode()) == ("grüß", msgspec.UNSET)
    assert as_text(b"\xff\x00") == ("/wA=", "base64")
    assert as_text(None) == (None, msgspec.UNSET)


@pytest.mark.parametrize("text", ["/w=", "a", "not base64!", "/wA=\n"])
def test_payload_that_is_not_base64_is_refused(text: str) -> None:
    with pytest.raises(RequestError, match=r"^payload is not base64: "):
        as_bytes(text, "base64", "payload")


@given(st.dictionaries(st.text(), st.lists(st.none() | st.binary(), min_size=1, max_size=3)))
def test_headers_survive_a_round_trip(values: dict[str, list[bytes | None]]) -> None:
    headers = [(header_name(name.encode()), value) for name, repeated in values.items() for value in repeated]
    shown = msgspec.json.decode(msgspec.json.encode(show_headers(headers)), type=Headers)
    assert read_headers(shown) == headers


def test_repeated_header_has_a_list() -> None:
    shown = show_headers([("a", b"1"), ("b", None), ("a", b"\xff"), ("a", b"3")])
    assert shown == {"a": ["1", Base64(base64="/w=="), "3"], "b": None}


def test_error_names_the_header_that_is_not_base64() -> None:
    with pytest.raises(RequestError, match=r"^headers\.trace\.base64 is not base64"):
        read_headers({"trace": Base64(base64="?")})


def test_header_name_that_is_not_utf8_can_be_shown() -> None:
    name = header_name(b"caf\xff\xc3\xa9")
    assert msgspec.json.encode(show_headers([(name, b"1")])).decode() == '{"caf\ufffd\u00e9":"1"}'
