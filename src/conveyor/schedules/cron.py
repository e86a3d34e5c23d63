"""When a cron expression falls due: five fields, as in Debian's cron, in the time of a time zone.

    minute 0-59   hour 0-23   day of month 1-31 (L: the last)   month 1-12   day of week 0-7 (MON#1: the first Monday)

A time that a change of the clocks leaves out falls due right after it; one that comes twice falls due once; a pattern
that begins with `*` in minute or hour goes by elapsed time instead. Source: cron(8) of Debian.
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
    """Raises RequestError (INVALID_SCHEDULE), also if there is no such time in fifty years."""
    if next_firing_ms(cron, time_zone, 0) is None:
        raise RequestError(ErrorKind.INVALID_SCHEDULE, f"cron expression '{cron}' never falls due")


def next_firing_ms(cron: str, time_zone: str, after_ms: int) -> int | None:
    """The first time that falls due after one; None if there is none. Raises RequestError (INVALID_SCHEDULE)."""
    return _first(_times(cron, time_zone, after_ms // _SECOND_MS, reverse=False))


def last_firing_ms(cron: str, time_zone: str, after_ms: int, until_ms: int) -> int | None:
    """The last time that falls due after one and up to another; None if there is none."""
    due_ms = _first(_times(cron, time_zone, until_ms // _SECOND_MS + 1, reverse=True))
    return due_ms if due_ms is not None and due_ms > after_ms else None


def _times(cron: str, time_zone: str, second: int, *, reverse: bool) -> "CronSim":
    from cronsim import CronSim, CronSimError  # Only who has a schedule pays for it.

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
