"""The due times of cron expressions."""

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.schedules.cron import check_cron, last_firing_ms, next_firing_ms

BERLIN = "Europe/Berlin"


def ms(text: str, zone: str = BERLIN) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp()) * 1000


def test_next_firing_is_after_the_time_itself() -> None:
    assert next_firing_ms("30 7 * * *", BERLIN, ms("2024-05-01T07:30")) == ms("2024-05-02T07:30")
    assert next_firing_ms("30 7 * * *", BERLIN, ms("2024-05-01T07:30") - 1) == ms("2024-05-01T07:30")


def test_firing_goes_by_the_time_zone() -> None:
    assert next_firing_ms("0 9 * * *", "America/New_York", ms("2024-05-01T00:00", "UTC")) == ms(
        "2024-05-01T13:00", "UTC"
    )


def test_weekdays_are_named_and_counted() -> None:
    assert next_firing_ms("0 0 * * MON#1", BERLIN, ms("2024-05-01T00:00")) == ms("2024-05-06T00:00")
    assert next_firing_ms("0 0 L * *", BERLIN, ms("2024-02-01T00:00")) == ms("2024-02-29T00:00")


def test_time_that_the_clocks_skip_falls_due_right_after() -> None:
    assert next_firing_ms("30 2 * * *", BERLIN, ms("2024-03-31T00:00")) == ms("2024-03-31T03:00")


def test_time_that_comes_twice_falls_due_once() -> None:
    first = next_firing_ms("30 2 * * *", BERLIN, ms("2024-10-27T00:00"))
    assert first is not None
    assert next_firing_ms("30 2 * * *", BERLIN, first) == ms("2024-10-28T02:30")


def test_last_firing_is_the_last_of_many_and_may_be_now() -> None:
    start, end = ms("2024-05-01T00:00"), ms("2024-05-01T10:15")
    assert last_firing_ms("*/5 * * * *", BERLIN, start, end) == end
    assert last_firing_ms("*/5 * * * *", BERLIN, start, end - 1) == end - 300_000
    assert last_firing_ms("*/5 * * * *", BERLIN, start, end + 999) == end


def test_last_firing_is_none_where_nothing_fell_due() -> None:
    noon = ms("2024-05-01T12:00")
    assert last_firing_ms("0 12 * * *", BERLIN, noon, noon + 3_600_000) is None


@pytest.mark.parametrize("cron", ["* * * *", "* * * * * *", "60 * * * *", "@daily", "", "x * * * *", "0 0 31 2 *"])
def test_bad_expression_is_told_what_is_right(cron: str) -> None:
    with pytest.raises(RequestError, match="minute hour day-of-month") as refused:
        check_cron(cron, "UTC")
    assert refused.value.kind is ErrorKind.INVALID_SCHEDULE


@pytest.mark.parametrize("zone", ["", "Europe", "Mars/Olympus", "../etc/passwd", "a\0b"])
def test_unknown_time_zone_is_told_what_is_right(zone: str) -> None:
    with pytest.raises(RequestError, match="give an IANA name") as refused:
        check_cron("* * * * *", zone)
    assert refused.value.kind is ErrorKind.INVALID_SCHEDULE
