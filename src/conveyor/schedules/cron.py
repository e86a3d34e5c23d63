"""The due times of a cron expression: five fields, as in Debian's cron, in a time zone.

    minute 0-59   hour 0-23   day of month 1-31 (L: the last)   month 1-12   day of week 0-7 (MON#1: the first Monday)

A local time that a clock change skips falls due right after the change; one that occurs twice falls due once. A
pattern that begins with `*` in minute or hour follows elapsed time instead. Source: cron(8) of Debian.
"""

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from conveyor.kernel.errors import ErrorKind, RequestError

if TYPE_CHECKING:
    from cronsim import CronSim

MAX_CHARACTERS = 256

_FIELDS = 5
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND_MS = 1000


def check_cron(cron: str, time_zone: str) -> None:
    """Raise RequestError (INVALID_SCHEDULE), also if the expression has no due time within fifty years."""
    if next_firing_ms(cron, time_zone, 0) is None:
        raise RequestError(ErrorKind.INVALID_SCHEDULE, f"cron expression '{cron}' never falls due")


def next_firing_ms(cron: str, time_zone: str, after_ms: int) -> int | None:
    """Return the first due time after `after_ms`; None if there is none. Raises RequestError (INVALID_SCHEDULE)."""
    return _first(_times(cron, time_zone, after_ms // _SECOND_MS, reverse=False))


def last_firing_ms(cron: str, time_zone: str, after_ms: int, until_ms: int) -> int | None:
    """Return the last due time after `after_ms` and up to `until_ms`; None if there is none."""
    due_ms = _first(_times(cron, time_zone, until_ms // _SECOND_MS + 1, reverse=True))
    return due_ms if due_ms is not None and due_ms > after_ms else None


def _times(cron: str, time_zone: str, second: int, *, reverse: bool) -> "CronSim":
    from cronsim import CronSim, CronSimError  # Brokers without schedules never load this package.

    if len(cron) > MAX_CHARACTERS or len(cron.split()) != _FIELDS:
        raise _wrong(cron, f"{len(cron.split())} fields")
    try:
        return CronSim(cron, (_EPOCH + timedelta(seconds=second)).astimezone(_zone(time_zone)), reverse=reverse)
    except CronSimError as error:
        raise _wrong(cron, str(error).lower()) from error


def _first(times: "CronSim") -> int | None:
    for time in times:
        return int(time.timestamp()) * _SECOND_MS
    return None


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise RequestError(
            ErrorKind.INVALID_SCHEDULE, f"there is no time zone '{name[:64]}': give an IANA name, as in Europe/Berlin"
        ) from error


def _wrong(cron: str, reason: str) -> RequestError:
    return RequestError(
        ErrorKind.INVALID_SCHEDULE,
        f"cron expression '{cron[:MAX_CHARACTERS]}' is not valid, {reason}: it has five, minute hour day-of-month"
        " month day-of-week, as in '30 7 * * MON-FRI'",
    )
