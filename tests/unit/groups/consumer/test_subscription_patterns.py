"""The text with which all topics begin that a pattern can match."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conveyor.groups.consumer.subscription_patterns import TopicPattern, check_pattern, literal_prefix
from conveyor.kernel.errors import RequestError


@pytest.mark.parametrize(
    ("pattern", "prefix"),
    [
        ("orders-.*", "orders-"),
        ("^orders-.*$", "orders-"),
        (r"eu\.orders\..+", "eu.orders."),
        ("orders", "orders"),
        (".*", ""),
        ("", ""),
        ("ab*", "a"),
        ("ab?c", "a"),
        ("ab{0,3}", "a"),
        ("ab+", "a"),
        (r"a\.*b", "a"),
        ("a|b", ""),
        ("ab(c|d)", ""),
        ("(ab)c", ""),
        ("(?i)ab", ""),
        ("[a]b", ""),
        (r"\d+", ""),
        (r"a\d", "a"),
        (r"a\Qb\E", "a"),
    ],
)
def test_prefix_ends_with_the_plain_text(pattern: str, prefix: str) -> None:
    assert literal_prefix(pattern) == prefix


@given(st.text(r"ab.\*+?{}()|^$[]1,-QEi", max_size=8), st.text("ab.-1", max_size=5))
def test_all_that_a_pattern_matches_begins_with_its_prefix(pattern: str, name: str) -> None:
    try:
        check_pattern(pattern)
    except RequestError:
        return
    if TopicPattern(pattern).matches(name.encode()):
        assert name.startswith(literal_prefix(pattern))
