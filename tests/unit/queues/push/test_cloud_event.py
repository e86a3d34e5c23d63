"""Messages as CloudEvents, as the SDK of CloudEvents reads them."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from cloudevents.core.base import BaseCloudEvent
from cloudevents.core.bindings.http import HTTPMessage, from_http_event
from cloudevents.core.formats.json import JSONFormat

from conveyor.queues.push.cloud_event import (
    MAX_ATTRIBUTES,
    MAX_ATTRIBUTES_BYTES,
    MAX_VALUE_BYTES,
    PushContent,
    encode_events,
)
from conveyor.records.message import Message

OCTETS = "application/octet-stream"


def _message(value: bytes | None = b"hello", key: bytes | None = None, *headers: tuple[str, bytes | None]) -> Message:
    return Message("orders", 3, 42, 1_700_000_000_123, key, value, headers)


def _event(content: PushContent) -> BaseCloudEvent:
    return from_http_event(HTTPMessage(headers=dict(content.headers), body=content.body))


@pytest.mark.parametrize("mode", ["binary", "structured"])
def test_attributes_of_a_message(mode: str) -> None:
    event = _event(encode_events(mode, [_message(b"\x00\xff", b"k 1%")], OCTETS))
    assert event.get_id() == "3-42"
    assert event.get_source() == "/topics/orders"
    assert event.get_type() == "conveyor.message"
    assert event.get_specversion() == "1.0"
    assert event.get_time() == datetime(2023, 11, 14, 22, 13, 20, 123_000, UTC)
    assert event.get_datacontenttype() == OCTETS
    assert event.get_extension("partitionkey") == "k 1%"
    assert event.get_data() == b"\x00\xff"


@pytest.mark.parametrize("mode", ["binary", "structured"])
def test_headers_give_attributes(mode: str) -> None:
    message = _message(
        b'{"total": 5}', None,
        ("ce_type", b"order.paid"), ("ce-subject", b"order 7"), ("traceparent", b"00-ab-cd-01"),
        ("content-type", b"application/json"), ("tenant", "M\u00fcller \u20ac\"".encode()), ("tenant", b"last"),
        ("ce_id", b"x"), ("ce_source", b"x"), ("ce_time", b"x"), ("id", b"x"), ("data", b"x"), ("type", b"x"),
        ("Conveyor-Tag", b"x"), ("with space", b"x"), ("a" * 21, b"x"), ("none", None), ("empty", b""),
        ("bytes", b"\xff"), ("lines", b"a\r\nb: c"), ("long", b"x" * (MAX_VALUE_BYTES + 1)),
    )  # fmt: skip
    event = _event(encode_events(mode, [message], OCTETS))
    assert event.get_data() == {"total": 5}
    assert (event.get_type(), event.get_subject()) == ("order.paid", "order 7")
    names = {"traceparent", "tenant"}
    assert {name: event.get_extension(name) for name in names} == {"traceparent": "00-ab-cd-01", "tenant": "last"}
    required = {"id", "source", "specversion", "type", "time", "subject", "datacontenttype"}
    assert set(event.get_attributes()) == required | names
    assert event.get_id() == "3-42"


def test_values_of_headers_are_percent_encoded() -> None:
    content = encode_events("binary", [_message(b"", None, ("tenant", 'M\u00fc \u20ac"%'.encode()))], OCTETS)
    headers = dict(content.headers)
    assert headers["ce-tenant"] == "M%C3%BC%20%E2%82%AC%22%25"
    assert _event(content).get_extension("tenant") == 'M\u00fc \u20ac"%'


def test_number_and_size_of_attributes_are_limited() -> None:
    many = [(f"h{number}", b"x") for number in range(500)]
    assert len(encode_events("binary", [_message(b"", None, *many)], OCTETS).headers) <= MAX_ATTRIBUTES + 6
    large = [(f"h{number}", b"x" * MAX_VALUE_BYTES) for number in range(50)]
    sent = encode_events("binary", [_message(b"", None, *large)], OCTETS).headers
    assert sum(len(value) for name, value in sent if name.startswith("ce-h")) == MAX_ATTRIBUTES_BYTES


@pytest.mark.parametrize(
    ("value", "content_type", "field", "shown"),
    [
        (b' {"a":[1]} ', b"application/json", "data", {"a": [1]}),
        (b'{"a":1}', b"application/vnd.x+json; charset=utf-8", "data", {"a": 1}),
        (b"null", b"application/json", "data", None),
        (b"{bad", b"application/json", "data_base64", "e2JhZA=="),
        (b"NaN", b"application/json", "data_base64", "TmFO"),
        (b"[" * 100_000, b"application/json", "data_base64", None),
        ("\u00e4".encode(), b"text/plain", "data", "\u00e4"),
        (b"\xff", b"text/plain", "data_base64", "/w=="),
        (b"x", b"application/octet-stream", "data_base64", "eA=="),
        (b"", b"text/plain", "data", ""),
    ],
)
def test_data_of_a_structured_event(value: bytes, content_type: bytes, field: str, shown: Any) -> None:
    document = json.loads(encode_events("structured", [_message(value, None, ("content-type", content_type))], "").body)
    assert document["datacontenttype"] == content_type.decode()
    assert document.keys() & {"data", "data_base64"} == {field}
    assert shown is None or document[field] == shown


@pytest.mark.parametrize("content_type", [b"a/b\r\nx: y", b"\xff/x", b"no type", b"a/" + b"b" * 300, b"text/\xc3\xa4"])
def test_content_type_that_is_none_gives_way_to_the_policys(content_type: bytes) -> None:
    content = encode_events("binary", [_message(b"x", None, ("content-type", content_type))], "text/plain")
    assert dict(content.headers)["content-type"] == "text/plain"


@pytest.mark.parametrize("mode", ["binary", "structured"])
def test_tombstone_has_no_data(mode: str) -> None:
    content = encode_events(mode, [_message(None, b"k")], OCTETS)
    event = _event(content)
    assert not event.get_data()
    assert event.get_datacontenttype() is None
    assert content.body == b"" if mode == "binary" else b"data" not in content.body


def test_batch_is_a_list_of_structured_events() -> None:
    messages = [_message(b'{"n": 1}')._replace(offset=offset) for offset in range(3)]
    content = encode_events("batch", messages, "application/json")
    assert dict(content.headers)["content-type"] == "application/cloudevents-batch+json; charset=utf-8"
    documents = json.loads(content.body)
    events = [JSONFormat().read(None, json.dumps(document).encode()) for document in documents]
    assert [event.get_id() for event in events] == ["3-0", "3-1", "3-2"]
    assert [event.get_data() for event in events] == [{"n": 1}] * 3


@pytest.mark.parametrize("timestamp_ms", [-1, 0, (1 << 62) - 1])
def test_times_that_no_calendar_has_are_sent_as_its_ends(timestamp_ms: int) -> None:
    event = _event(encode_events("binary", [_message()._replace(timestamp_ms=timestamp_ms)], OCTETS))
    assert event.get_time() is not None
