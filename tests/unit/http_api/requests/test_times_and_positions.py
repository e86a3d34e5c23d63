"""Times and offsets in requests."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conveyor.http_api.requests.times_and_positions import BrowseStart, SubscriptionStart, Timestamp, format_start
from conveyor.queues.subscription.policy import StartPosition

NEW_YEAR_MS = 1_767_225_600_000


@pytest.mark.parametrize(
    "value",
    [NEW_YEAR_MS, str(NEW_YEAR_MS), "2026-01-01T00:00:00Z", "2026-01-01t00:00:00.000z", "2026-01-01T02:00:00+02:00"],
)
def test_timestamp_is_milliseconds_or_rfc_3339(value: object) -> None:
    assert Timestamp.parse(value) == NEW_YEAR_MS


@pytest.mark.parametrize(
    "value", [-1, 1 << 62, "tomorrow", "", "2026-01-01", "2026-01-01T00:00:00", "1960-01-01T00:00:00Z", 1.5, True, None]
)
def test_invalid_timestamp_is_refused_with_an_example(value: object) -> None:
    with pytest.raises(ValueError, match=r"is not a time: write a time as in 2026-01-31T12:00:00Z \(RFC 3339\), or"):
        Timestamp.parse(value)


def test_start_is_a_word_or_a_time() -> None:
    assert SubscriptionStart.parse("earliest").start == StartPosition(kind="earliest")
    assert SubscriptionStart.parse("latest").start == StartPosition(kind="latest")
    assert SubscriptionStart.parse(NEW_YEAR_MS).start == StartPosition(kind="timestamp", timestamp_ms=NEW_YEAR_MS)


@pytest.mark.parametrize("value", ["Earliest", -1, [], {}, None])
def test_invalid_start_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="is not a start: write earliest, latest, a time as in"):
        SubscriptionStart.parse(value)


def test_number_is_an_offset() -> None:
    assert BrowseStart.parse("17").place == 17
    assert BrowseStart.parse("earliest").place == StartPosition(kind="earliest")
    assert BrowseStart.parse("2026-01-01T00:00:00Z").place == StartPosition(kind="timestamp", timestamp_ms=NEW_YEAR_MS)


@pytest.mark.parametrize("value", ["-1", "first", str(1 << 63), "5s"])
def test_invalid_position_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="is not a position: write earliest, latest, a time as in"):
        BrowseStart.parse(value)


@given(st.integers(0, (1 << 62) - 1))
def test_formatted_start_parses_to_the_same_value(timestamp_ms: int) -> None:
    start = StartPosition(kind="timestamp", timestamp_ms=timestamp_ms)
    assert SubscriptionStart.parse(format_start(start)).start == start


def test_start_is_formatted_by_rfc_3339() -> None:
    assert format_start(StartPosition(kind="timestamp", timestamp_ms=NEW_YEAR_MS + 5)) == "2026-01-01T00:00:00.005Z"
    assert format_start(StartPosition(kind="latest")) == "latest"
