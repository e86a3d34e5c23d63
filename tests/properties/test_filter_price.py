"""A filter's price is a bound: for no expression and no message does evaluation take longer than the price says.

Prices are nanoseconds of a machine that this one may not be. What is compared is therefore the ratio of time to price:
that of a generated expression and message to that of plain ones, with room for noise.
"""

import os
import time
from collections.abc import Callable

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from conveyor.kernel.errors import RequestError
from conveyor.queues.subscription.filters import Filter, FilterFailure
from conveyor.records.message import Message

EXAMPLES = int(os.environ.get("FILTER_PRICE_EXAMPLES", "150"))
ROOM = 4
"""Times the worst ratio of plain filters: their own prices are not above the truth by as much as others'."""
TOO_SHORT_NS = 1_000_000
"""What is over before is lost in the noise."""

FIELDS = ("s", "t", "l", "m", "o", "n", "z")
ROOTS = st.sampled_from([*(f"payload.{name}" for name in FIELDS), "payload", "key", "headers", "tag", "size", "x"])
LITERALS = st.sampled_from(["1", "2.5", "'a'", "'aab'", "true", "[1, 2]", "{'a': 1}", "b'a'", "null", "'3s'"])


def calls(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Everything that takes other expressions."""
    binary = st.sampled_from(["+", "+", "==", "!=", "<", "in", "&&", "||", "-", "*"])
    functions = st.sampled_from(["size", "string", "bytes", "int", "double", "timestamp", "duration", "dyn", "type"])
    methods = st.sampled_from(["contains", "startsWith", "endsWith"])
    patterns = st.sampled_from(["'a'", "'[ab]*a[ab]{90}c'", "'^a+$'"])
    chains = st.tuples(inner, st.integers(2, 12), st.sampled_from(["+", "==1||1==", " in payload.l||1=="]))
    return st.one_of(
        st.tuples(inner, binary, inner).map(lambda each: f"({each[0]} {each[1]} {each[2]})"),
        st.tuples(functions, inner).map(lambda each: f"{each[0]}({each[1]})"),
        st.tuples(inner, methods, inner).map(lambda each: f"{each[0]}.{each[1]}({each[2]})"),
        st.tuples(inner, patterns).map(lambda each: f"{each[0]}.matches({each[1]})"),
        st.tuples(inner, inner, inner).map(lambda each: f"({each[0]} ? {each[1]} : {each[2]})"),
        st.tuples(inner, st.sampled_from(["[0]", ".a", "['a']"])).map("".join),
        st.lists(inner, min_size=1, max_size=3).map(lambda each: f"[{', '.join(each)}]"),
        chains.map(lambda each: f"({each[2].join([each[0]] * each[1])})"),
    )


CONDITIONS = st.recursive(ROOTS | LITERALS, calls, max_leaves=6)
PARTS = st.recursive(ROOTS.filter(lambda root: root != "x") | LITERALS, calls, max_leaves=6)
LOOPS = st.tuples(PARTS, st.sampled_from(["exists", "all", "exists_one", "filter"]), CONDITIONS).map(
    lambda each: f"{each[0]}.{each[1]}(x, {each[2]})"
)
WAYS: dict[str, Callable[[str], str]] = {
    "truth": lambda part: f"({part}) == true",
    "size": lambda part: f"size({part}) == 0",
    "itself": lambda part: f"({part}) == ({part})",
}
EXPRESSIONS = st.tuples(st.sampled_from(sorted(WAYS)), PARTS | LOOPS).map(lambda each: WAYS[each[0]](each[1]))
CONTENTS = st.sampled_from(
    [
        b"1",
        b"1.5",
        b"null",
        b'"a"',
        b'"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab"',
        b"[]",
        b"[[[]]]",
        b'{"a":1}',
        b'{"a":"b"}',
        b"{}",
    ]
)


def payload(counts: dict[str, int], content: bytes) -> bytes:
    """Texts `s` and `t`, a list `l`, an object `m`, a list of lists `o`, a plain field `n`."""
    fields = {
        b"s": b'"%b"' % (b"ab" * counts["s"] + b"c"),
        b"t": b'"%b"' % (b"1h" * counts["t"]),
        b"l": b"[%b]" % b",".join([content] * counts["l"]),
        b"m": b"{%b}" % b",".join(b'"%d":%b' % (number, content) for number in range(counts["m"])),
        b"o": b"[%b]" % b",".join([b"[%b,1]" % content] * counts["o"]),
        b"n": b'"3s"' if counts["n"] else b"2",
    }
    return b"{%b}" % b",".join(b'"%b":%b' % field for field in fields.items())


MESSAGES = st.builds(
    lambda counts, content, key, headers: Message(
        "t", 0, 0, 0, b"a" * key, payload(counts, content), tuple((f"h{number}", b"a" * 9) for number in range(headers))
    ),
    st.fixed_dictionaries({name: st.sampled_from([0, 1, 30, 300, 3_000, 30_000]) for name in FIELDS}),
    CONTENTS,
    st.sampled_from([0, 10, 10_000]),
    st.sampled_from([0, 1, 100]),
)


def ratio(tried: Filter, message: Message) -> float | None:
    """CPU time by price: the best of three, as noise only adds. None if the filter refuses the message."""
    best = float("inf")
    for _ in range(3):
        before, began = tried.spent_ns, time.thread_time_ns()
        try:
            tried.matches(message)
        except FilterFailure as failure:
            if "too large for this filter" in str(failure):
                return None
        took = time.thread_time_ns() - began
        if took < TOO_SHORT_NS:
            return 0.0
        best = min(best, took / (tried.spent_ns - before))
    return best


def plain_ratio() -> float:
    """What plain filters come to on this machine."""
    counts = dict.fromkeys(FIELDS, 0)
    plain = (
        ("payload.l == [1]", payload({**counts, "l": 60_000}, b"1")),
        ("payload.l == ['a']", payload({**counts, "l": 8_000}, b'"a"')),
        ("payload.m == {}", payload({**counts, "m": 4_000}, b"1")),
    )
    found = [ratio(Filter(expression), Message("t", 0, 0, 0, None, value)) for expression, value in plain]
    return max(each for each in found if each)


@settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))
@given(expression=EXPRESSIONS, message=MESSAGES)
def test_price_is_a_bound(expression: str, message: Message) -> None:
    try:
        tried = Filter(expression)
    except RequestError:
        assume(False)
    found = ratio(tried, message)
    if found:
        allowed = ROOM * plain_ratio()
        assert found <= allowed, f"{expression}: time is {found:.2f} times the price; {allowed:.2f} is allowed"
