"""The attributes in a message's headers, and invalid headers."""

import pytest

from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.records.message_attributes import (
    DEDUP_ID,
    DELAY_MS,
    DELIVER_AT_MS,
    LAST_TIME_MS,
    PLAIN,
    PRIORITY,
    TAG,
    TTL_MS,
    MessageAttributes,
    check_attributes,
    explain_header,
    last_header,
    read_attributes,
)

THEN_MS = 1_700_000_000_000


@pytest.mark.parametrize("headers", [(), (("trace", b"1"),), ((TAG, b"a"), (DEDUP_ID, b"b"))])
def test_message_that_asks_for_nothing_is_plain(headers: tuple[tuple[str, bytes | None], ...]) -> None:
    assert read_attributes(headers, THEN_MS) is PLAIN


def test_delay_counts_from_the_timestamp() -> None:
    assert read_attributes([(DELAY_MS, b"1500")], THEN_MS).due_ms == THEN_MS + 1500


def test_delay_of_nothing_is_no_delay() -> None:
    assert read_attributes([(DELAY_MS, b"0")], THEN_MS) == PLAIN


@pytest.mark.parametrize(
    ("value", "duration_ms"),
    [(b"1200ms", 1_200), (b"7s", 7_000), (b"30s", 30_000), (b"10m", 600_000), (b"2h", 7_200_000)],
)
def test_delay_and_time_to_live_may_be_durations(value: bytes, duration_ms: int) -> None:
    assert read_attributes([(DELAY_MS, value)], THEN_MS).due_ms == THEN_MS + duration_ms
    assert read_attributes([(TTL_MS, value)], THEN_MS).expires_ms == THEN_MS + duration_ms


@pytest.mark.parametrize(
    ("deliver_at_ms", "due_ms"), [(THEN_MS + 10, THEN_MS + 1000), (THEN_MS + 5000, THEN_MS + 5000)]
)
def test_later_of_delay_and_time_holds(deliver_at_ms: int, due_ms: int) -> None:
    assert read_attributes([(DELAY_MS, b"1000"), (DELIVER_AT_MS, b"%d" % deliver_at_ms)], THEN_MS).due_ms == due_ms


def test_time_to_live_counts_from_the_timestamp_or_from_when_it_is_due() -> None:
    assert read_attributes([(TTL_MS, b"100")], THEN_MS).expires_ms == THEN_MS + 100
    assert read_attributes([(TTL_MS, b"100"), (DELAY_MS, b"1s")], THEN_MS).expires_ms == THEN_MS + 1100


def test_last_header_of_a_name_holds() -> None:
    assert read_attributes([(PRIORITY, b"1"), (PRIORITY, b"9")], THEN_MS).priority == 9
    assert last_header([("a", b"1"), ("b", b"2"), ("a", None)], "a") is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (DELAY_MS, None),
        (DELAY_MS, b""),
        (DELAY_MS, b"-1"),
        (DELAY_MS, b"1.5"),
        (DELAY_MS, b" 1"),
        (DELAY_MS, b"1_000"),
        (DELAY_MS, b"s"),
        (DELAY_MS, b"1.5h"),
        (DELAY_MS, b"5d"),
        (DELAY_MS, b"5 s"),
        (DELAY_MS, b"9" * 19 + b"h"),
        (DELAY_MS, b"9" * 19),
        (DELIVER_AT_MS, b"1s"),
        (DELIVER_AT_MS, "٣".encode()),
        (TTL_MS, b"soon"),
        (TTL_MS, b"%d" % LAST_TIME_MS),
        (PRIORITY, b"10"),
        (PRIORITY, b"01"),
    ],
)
def test_value_that_makes_no_sense_is_ignored_and_told(name: str, value: bytes | None) -> None:
    assert read_attributes([(name, value)], THEN_MS) == MessageAttributes(unreadable=(name,))


def test_sound_headers_hold_beside_a_malformed_one() -> None:
    headers = [(DELAY_MS, b"soon"), (TTL_MS, b"50"), (PRIORITY, b"7"), (DELIVER_AT_MS, None)]
    attributes = read_attributes(headers, THEN_MS)
    assert attributes == MessageAttributes(expires_ms=THEN_MS + 50, priority=7, unreadable=(DELAY_MS, DELIVER_AT_MS))


def test_time_to_live_that_only_a_delay_makes_too_long_is_ignored() -> None:
    headers = [(DELIVER_AT_MS, b"%d" % LAST_TIME_MS), (TTL_MS, b"1")]
    assert read_attributes(headers, THEN_MS) == MessageAttributes(due_ms=LAST_TIME_MS, unreadable=(TTL_MS,))


@pytest.mark.parametrize(
    ("name", "value", "right"),
    [
        (DELAY_MS, b"soon", "as in 1200ms, 5s, 10m, 2h"),
        (DELIVER_AT_MS, b"1h", "since 1970"),
        (TTL_MS, b"-5", "whole number of milliseconds"),
        (PRIORITY, b"11", "from 0 to 9"),
        (TAG, b"\xff", "UTF-8"),
        (DEDUP_ID, b"", "not empty"),
        (DEDUP_ID, None, "null"),
    ],
)
def test_check_says_what_is_right(name: str, value: bytes | None, right: str) -> None:
    with pytest.raises(RequestError, match=right) as refused:
        check_attributes([("other", b"\xff"), (name, value)])
    assert refused.value.kind is ErrorKind.INVALID_REQUEST


def test_header_that_makes_no_sense_is_shown_in_part() -> None:
    shown = explain_header(PRIORITY, b"very\n" * 100)
    assert shown.startswith(r"conveyor-priority is 'very\nvery\n")
    assert len(shown) < 200


def test_check_takes_what_is_right() -> None:
    check_attributes([(DELAY_MS, b"10s"), (DELIVER_AT_MS, b"0"), (TTL_MS, b"90m"), (PRIORITY, b"0"), (TAG, b"a")])
