"""Filters: their variables, their refusals, and the positions in their errors."""

import pytest

from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.queues.subscription.filter_expression import MAX_CHARACTERS, MAX_COST_NS
from conveyor.queues.subscription.filters import Filter, FilterFailure
from conveyor.records.message import Message
from conveyor.records.record import header_name

HEADERS = (
    ("region", b"us"),
    ("region", b"eu"),
    ("conveyor-tag", b"vip"),
    ("conveyor-priority", b"9"),
    ("nothing", None),
    (header_name(b"n\xff"), b"\xff"),
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


@pytest.mark.parametrize("value", [b"text", b"{", b"[" * 10_000, b"1e999", b"\xff"])
def test_payload_that_is_no_json_is_null(value: bytes) -> None:
    assert Filter("payload == null").matches(Message("t", 0, 0, 0, None, value))


@pytest.mark.parametrize(
    ("expression", "caret", "reason"),
    [
        ("tag = 'a'", 5, "write `==`"),
        ("tag ==", 7, "ends too early"),
        ("(tag == 'a'", 12, "`)` is missing"),
        ("tag == 'a", 8, "string is not closed"),
        ("tag == 'a' 'b'", 12, "`'b'` is not expected"),
        ("'é' == taq", 8, "no variable `taq`; there are key, headers, tag"),
        ("lower(tag) == 'a'", 1, "no function `lower`; there are bytes, contains"),
        ("tag.matches(key)", 5, "in quotes"),
        ("tag.matches('a' + 'b')", 5, "in quotes"),
        ("tag.matches('(')", 13, "missing )"),
        ("payload.a.map(i, i) == []", 11, "`map` is not supported"),
        ("payload.a.all(i, payload.a.exists(j, i == j))", 28, "nested in another macro"),
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


def object_of(**fields: bytes) -> Message:
    value = b"{%b}" % b",".join(b'"%b":%b' % (name.encode(), content) for name, content in fields.items())
    return Message("t", 0, 0, 0, None, value)


TEXT = b'"%b"' % (b"a" * 900_000)
NUMBERS = b"[%b1]" % (b"1," * 400_000)
SMALL_NUMBERS = b"[%b1]" % (b"1," * 10_000)
NAMES = b"[%b1]" % (b'"a",' * 10_000)


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        (f"size({'+'.join(['payload.s'] * 380)}) == 0", object_of(s=TEXT)),
        ("payload.m.exists(x, payload.s.contains('aab'))", object_of(s=TEXT[:22_000] + b'"', m=SMALL_NUMBERS)),
        (f"size({'+'.join(['payload.l'] * 300)}) == 0", object_of(l=NUMBERS)),
        (" || ".join(["payload.n in payload.l"] * 150), object_of(l=NUMBERS, n=b"2")),
        ("payload.l.filter(x, x != 'b').size() == 1", object_of(l=NAMES)),
        ("payload.l.all(x, payload.l[0] == x)", object_of(l=SMALL_NUMBERS)),
        ("payload.s.matches('[ab]*a[ab]{900}c')", object_of(s=TEXT)),
        ("payload == null", object_of(l=NUMBERS)),
        ("payload == null", Message("t", 0, 0, 0, None, b"[" * 900_000)),
        ("headers.size() == 1", Message("t", 0, 0, 0, None, None, tuple((f"h{n}", None) for n in range(100_000)))),
        ("key.contains('aab')", Message("t", 0, 0, 0, b"a" * 10_000_000, None)),
    ],
    ids=["join", "search", "lists", "in", "filter", "copies", "pattern", "elements", "depth", "headers", "key"],
)
def test_message_that_would_cost_too_much_is_refused_before_it_is_evaluated(expression: str, message: Message) -> None:
    tried = Filter(expression)
    with pytest.raises(FilterFailure, match="too large for this filter"):
        tried.matches(message)
    assert 0 < tried.spent_ns <= MAX_COST_NS


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("payload.total > 10", object_of(total=b"12", s=TEXT)),
        ("payload.total > 10 && !has(payload.color)", object_of(total=b"12", l=NUMBERS)),
        ("payload.items.exists(i, i.sku == 'x')", object_of(items=b'[%b{"sku":"x"}]' % (b'{"sku":"a"},' * 1000))),
        ("payload.s.contains('aaa')", object_of(s=TEXT)),
        ("key.matches('^a+$') && key.contains('aa')", Message("t", 0, 0, 0, b"a" * 1000, None)),
    ],
    ids=["a field beside a long text", "a field beside many numbers", "macro", "text", "key"],
)
def test_message_of_an_ordinary_size_is_evaluated(expression: str, message: Message) -> None:
    assert Filter(expression).matches(message) is True


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        (" || ".join(rf"key.matches(r'\pL{{{number}}}')" for number in range(1, 99)), "instructions"),
        (r"key.matches(r'(\pN{30}){30}')", "too large"),
        ("[1, 2].exists(x, x == 1, true)", "takes a variable and a condition"),
        ("payload" + ".a" * 50 + " == 1", "nests too deeply"),
        ("key.matches(b'a')", "text, not bytes"),
    ],
)
def test_expression_whose_cost_has_no_bound_is_refused(expression: str, reason: str) -> None:
    with pytest.raises(RequestError, match=reason) as refused:
        Filter(expression)
    assert refused.value.kind is ErrorKind.INVALID_FILTER


def test_failure_that_quotes_the_message_is_cut() -> None:
    with pytest.raises(FilterFailure) as failure:
        Filter("duration(payload.s) > duration('1s')").matches(object_of(s=TEXT[:200_000] + b'"'))
    assert len(str(failure.value)) < 300


def test_pattern_over_what_is_no_text_fails_without_a_line_of_the_package(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(FilterFailure):
        Filter("payload.n.matches('a')").matches(object_of(n=b"1"))
    assert not caplog.records


@pytest.mark.parametrize(
    "value", [b'{"a":1,"b":[2,{"a":3}],"a":4}', b' {"b" : {"a":5} , "a" : 4 }', b'{"class":1,"a":4}']
)
def test_fields_are_found_as_in_the_whole_payload(value: bytes) -> None:
    message = Message("t", 0, 0, 0, None, value)
    assert Filter("payload.a == 4").matches(message)
    assert Filter("payload['a'] == 4").matches(message)


def test_macros_variable_may_hide_another() -> None:
    assert Filter("[[1]].exists(payload, payload[0] == 1)").matches(BARE)
