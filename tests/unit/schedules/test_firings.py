"""The due firings of a schedule, decided without a clock, a log or a store."""

from typing import Any

import msgspec
import pytest

from conveyor.schedules.definition import Schedule
from conveyor.schedules.firings import Firings

MINUTE_MS, HOUR_MS = 60_000, 3_600_000
START_MS = 1_700_000_040_000
"""A whole minute."""

SCHEDULE = Schedule(name="s", topic="t", cron="* * * * *")


def firings(fired_ms: int = START_MS) -> Firings:
    return Firings(SCHEDULE, fired_ms, is_sure=True)


def test_a_firing_is_due_at_its_time_and_not_before() -> None:
    assert firings().due_ms(START_MS + MINUTE_MS - 1) is None
    assert firings().next_ms(START_MS + 1) == START_MS + MINUTE_MS
    assert firings().due_ms(START_MS + MINUTE_MS) == START_MS + MINUTE_MS


def test_only_the_last_of_several_that_were_missed_is_due() -> None:
    due = firings()
    assert due.due_ms(START_MS + 10 * MINUTE_MS + 1) == START_MS + 10 * MINUTE_MS
    due.done(START_MS + 10 * MINUTE_MS)
    assert due.due_ms(START_MS + 10 * MINUTE_MS + 1) is None


def test_a_firing_that_failed_is_due_again() -> None:
    due, first_ms = firings(), START_MS + MINUTE_MS
    due.failed()
    assert (due.due_ms(first_ms), due.is_sure, due.failures) == (first_ms, False, 1)
    due.failed()
    assert due.failures == 2
    due.done(first_ms)
    assert (due.is_sure, due.failures) == (True, 0)


@pytest.mark.parametrize(("back_ms", "is_due"), [(HOUR_MS, False), (3 * HOUR_MS, False), (4 * HOUR_MS, True)])
def test_no_firing_is_repeated_by_a_clock_that_is_set_back_by_little(back_ms: int, is_due: bool) -> None:
    due, now_ms = firings(), START_MS - back_ms
    assert due.due_ms(now_ms) is None
    assert (due.next_ms(now_ms) == now_ms + MINUTE_MS) is is_due
    assert (due.due_ms(now_ms + MINUTE_MS) is not None) is is_due


@pytest.mark.parametrize(
    ("before", "changes", "is_made_good"),
    [
        ({}, {"payload": b"other"}, True),
        ({}, {"paused": True}, True),
        ({"paused": True}, {"paused": False}, False),
        ({}, {"topic": "other"}, False),
        ({}, {"cron": "*/2 * * * *"}, False),
        ({}, {"time_zone": "Europe/Berlin"}, False),
    ],
)
def test_what_was_missed_before_a_change(before: dict[str, Any], changes: dict[str, Any], is_made_good: bool) -> None:
    schedule = msgspec.structs.replace(SCHEDULE, **before)
    now_ms = START_MS + 10 * MINUTE_MS
    changed = Firings(schedule, START_MS, is_sure=True).changed(msgspec.structs.replace(schedule, **changes), now_ms)
    assert changed.fired_ms == (START_MS if is_made_good else now_ms)
    assert not changed.is_sure


def test_a_paused_schedule_never_falls_due() -> None:
    assert msgspec.structs.replace(SCHEDULE, paused=True).next_ms(START_MS) is None


def test_each_firing_has_an_id_of_its_own() -> None:
    assert SCHEDULE.dedup_id(START_MS) == b"schedule:s:1700000040000"
