"""Filters: what they see of a message, what they refuse, and where their errors point."""

import pytest

from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.queues.filter_expression import MAX_CHARACTERS
from conveyor.queues.filters import MAX_SEARCHED_BYTES, Filter, FilterFailure
from conveyor.queues.message import Message

HEADERS = (
    ("region", b"us"),
    ("region", b"eu"),
    ("conveyor-tag", b"vip"),
    ("conveyor-priority", b"9"),
    ("nothing", None),
    ("n\udcff", b"\xff"),
)
ORDER = Message("orders", 1, 7, 1_700_000_000_123, b"order-5", b'{"total": 12.5, "items": [{"sku": "x"}]}', HEADERS)
BARE = Message("orders", 0, 0, 0, None, None)


@pytest.mark.parametrize(
    "expression",
    [
        "key == 'order-5'",
        "headers['region'] == 'eu'",
        "headers.region == 'eu' && !has(headers.color)",
        "headers.nothing == null && headers.size() == 5",
        "tag == 'vip'",
        "size == 40",
        "timestamp_ms == 1700000000123",
        "timestamp > timestamp('2023-11-14T22:13:20Z') && timestamp.getFullYear() == 2023",
        "topic == 'orders' && partition == 1 && offset == 7",
        "priority == 9",
        "payload.total > 12 && payload.total < 13.0",
        "payload.items.exists(i, i.sku == 'x')",
        "payload.items.filter(i, i.sku == 'x').size() == 1",
        r"key.matches('^order-\\d+$') && !key.matches(r'^\D+$')",
        "payload.items[0].sku.matches('X|x')",
        "key.matches( 'order' )",
        "// taq is no variable\ntag != 'taq' && 'map(exists(all(' != tag",
        "type(payload.total) == double",
        "tag in ['vip', 'gold'] ? true : false",
    ],
)
def test_filter_sees(expression: str) -> None:
    assert Filter(expression).matches(ORDER) is True


def test_filter_sees_empty_text_and_null_where_a_message_has_nothing() -> None:
    assert Filter("key == '' && tag == '' && size == 0 && payload == null && priority == 4").matches(BARE)


@pytest.mark.parametrize("value", [b"text", b"{", b"[" * 100_000, b"1e999", b"\xff"])
def test_payload_that_is_no_json_is_null(value: bytes) -> None:
    assert Filter("payload == null").matches(Message("t", 0, 0, 0, None, value))


@pytest.mark.parametrize(
    ("expression", "caret", "reason"),
    [
        ("tag = 'a'", 5, "write `==`"),
        ("tag ==", 7, "ends too early"),
        ("(tag == 'a'", 12, "`)` is missing"),
        ("tag == 'a", 8, "quote is not closed"),
        ("tag == 'a' 'b'", 12, "`'b'` is not expected"),
        ("'é' == taq", 8, "no variable `taq`; there are key, headers, tag"),
        ("lower(tag) == 'a'", 1, "no function `lower`; there are bytes, contains"),
        ("tag.matches(key)", 5, "in quotes"),
        ("tag.matches('a' + 'b')", 5, "in quotes"),
        ("tag.matches('(')", 13, "missing )"),
        ("payload.a.map(i, i) == []", 11, "`map` is not offered"),
        ("payload.a.all(i, payload.a.exists(j, i == j))", 28, "inside another macro"),
        ("(" * 200, 97, "nests too deeply"),
    ],
)
def test_error_points_into_the_expression(expression: str, caret: int, reason: str) -> None:
    with pytest.raises(RequestError) as refused:
        Filter(expression)
    assert refused.value.kind is ErrorKind.INVALID_FILTER
    first, line, pointer = refused.value.message.split("\n")
    assert reason in first
    assert f"line 1, column {caret}:" in first
    assert f"{line} "[pointer.index("^")] == (expression + " ")[caret - 1]


def test_error_shows_the_line_that_is_wrong() -> None:
    with pytest.raises(RequestError) as refused:
        Filter("tag == 'a'\n  && taq == 'b'\n  || true")
    assert refused.value.message.split("\n")[1:] == ["    && taq == 'b'", "       ^"]
    assert "line 2, column 6" in refused.value.message


@pytest.mark.parametrize("expression", ["tag", "size + 1", "1", "{'a': 1}", "tag < 1", "!tag", "tag ? true : false"])
def test_filter_that_cannot_be_true_or_false_is_refused(expression: str) -> None:
    with pytest.raises(RequestError) as refused:
        Filter(expression)
    assert refused.value.kind is ErrorKind.INVALID_FILTER


@pytest.mark.parametrize("expression", ["", " \n", "a" * (MAX_CHARACTERS + 1)])
def test_filter_has_a_length(expression: str) -> None:
    with pytest.raises(RequestError, match="1 to 4096 characters"):
        Filter(expression)


@pytest.mark.parametrize(
    "expression",
    ["headers.color == 'red'", "payload.a.b == 1", "payload.total", "payload.total == 1 / partition - 1 / 0"],
)
def test_filter_that_fails_on_a_message_says_so(expression: str) -> None:
    with pytest.raises(FilterFailure):
        Filter(expression).matches(ORDER)


def test_time_out_of_range_fails_the_filter_only() -> None:
    with pytest.raises(FilterFailure):
        Filter("timestamp > timestamp('2023-11-14T22:13:20Z')").matches(Message("t", 0, 0, 1 << 61, None, None))


def test_macro_does_not_go_through_large_messages() -> None:
    large = Message("t", 0, 0, 0, None, b"[%s]" % b",".join([b"1"] * (MAX_SEARCHED_BYTES // 2)))
    assert not Filter("payload[0] == 2").matches(large)
    with pytest.raises(FilterFailure, match="too large"):
        Filter("payload.exists(i, i == 2)").matches(large)
