"""Parses positions in a log as users write them: earliest, latest, an offset, a time, or how long ago."""

import re
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum, auto

from conveyor.cli.terminal.kafka_client import ClientError

LAST_OFFSET = (1 << 63) - 1
METAVAR = "earliest|latest|TIME|OFFSET"
EXPLAINED = "earliest, latest, an offset, a time such as 2026-11-21T08:00, or how long ago, such as -15m"

_AGO = re.compile(r"-(\d{1,12})(ms|s|m|h|d|w)", re.ASCII)
_UNIT_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}


class PositionKind(Enum):
    """The meaning of a position's value."""

    EARLIEST = auto()
    LATEST = auto()
    OFFSET = auto()
    TIME = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPosition:
    """`value` is an offset, or a time in milliseconds since 1970; earliest and latest have none."""

    kind: PositionKind
    value: int = 0


EARLIEST = LogPosition(kind=PositionKind.EARLIEST)
LATEST = LogPosition(kind=PositionKind.LATEST)


def parse_position(option: str, text: str, now_ms: int | None = None) -> LogPosition:
    """Parse a position. A time before 1970 is 1970. Raises ClientError, which names the option."""
    keyword = {"earliest": EARLIEST, "latest": LATEST}.get(text)
    if keyword is not None:
        return keyword
    if text.isascii() and text.isdecimal():
        if int(text) > LAST_OFFSET:
            raise ClientError(f"{option} {text}: the largest possible offset is {LAST_OFFSET}")
        return LogPosition(kind=PositionKind.OFFSET, value=int(text))
    ago = _AGO.fullmatch(text)
    if ago is not None:
        now_ms = int(time.time() * 1000) if now_ms is None else now_ms
        return _at(now_ms - int(ago[1]) * _UNIT_MS[ago[2]])
    try:
        return _at(int(datetime.fromisoformat(text).astimezone().timestamp() * 1000))
    except (ValueError, OverflowError) as error:
        raise ClientError(f"{option} {text}: expected {EXPLAINED}") from error


def _at(time_ms: int) -> LogPosition:
    return LogPosition(kind=PositionKind.TIME, value=max(0, time_ms))


def iso_time(time_ms: int) -> str:
    """Format a timestamp in UTC, as `parse_position` accepts it; as a number if it is beyond the calendar."""
    try:
        moment = datetime.fromtimestamp(time_ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return str(time_ms)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
