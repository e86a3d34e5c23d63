"""Positions in a log as users write them."""

import pytest

from conveyor.cli.terminal.kafka_client import ClientError
from conveyor.cli.terminal.position import (
    EARLIEST,
    LAST_OFFSET,
    LATEST,
    LogPosition,
    PositionKind,
    iso_time,
    parse_position,
)

NOW_MS = 1_000_000_000_000


def at(time_ms: int) -> LogPosition:
    return LogPosition(kind=PositionKind.TIME, value=time_ms)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("earliest", EARLIEST),
        ("latest", LATEST),
        ("0", LogPosition(kind=PositionKind.OFFSET)),
        ("20261121", LogPosition(kind=PositionKind.OFFSET, value=20261121)),
        (str(LAST_OFFSET), LogPosition(kind=PositionKind.OFFSET, value=LAST_OFFSET)),
        ("-0s", at(NOW_MS)),
        ("-250ms", at(NOW_MS - 250)),
        ("-15m", at(NOW_MS - 15 * 60_000)),
        ("-2h", at(NOW_MS - 2 * 3_600_000)),
        ("-1d", at(NOW_MS - 86_400_000)),
        ("-999999999999w", at(0)),
        ("2026-11-21T08:00Z", at(1_795_248_000_000)),
        ("2026-11-21T09:00+01:00", at(1_795_248_000_000)),
        ("2026-11-21 08:00:00.250+00:00", at(1_795_248_000_250)),
        ("1950-01-01T00:00Z", at(0)),
    ],
)
def test_position_is_parsed(text: str, meant: LogPosition) -> None:
    assert parse_position("--from", text, NOW_MS) == meant


def test_time_without_a_zone_is_local() -> None:
    winter = parse_position("--to", "2026-01-21T08:00").value
    assert parse_position("--to", "2026-01-22").value - winter == 16 * 3_600_000


@pytest.mark.parametrize("text", ["", "monday", "²", "-15", "-15y", "15m", "-1", "2026-13-01", "9" * 30, "0001-01-01"])
def test_error_names_the_option_of_an_invalid_position(text: str) -> None:
    with pytest.raises(ClientError, match=rf"^--from {text}: "):
        parse_position("--from", text)


def test_printed_time_parses_to_the_same_value() -> None:
    assert iso_time(1_795_248_000_250) == "2026-11-21T08:00:00.250Z"
    assert parse_position("--to", iso_time(1_795_248_000_250)) == at(1_795_248_000_250)


def test_time_beyond_the_calendar_is_a_number() -> None:
    assert iso_time(1 << 62) == str(1 << 62)
