"""The Retry-After header of an answer: seconds, or a date by HTTP. Source: RFC 9110, section 10.2.3 and 5.6.7."""

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

MAX_RETRY_AFTER_MS = 3_600_000

_SECONDS = re.compile(r"[0-9]{1,10}")
_MAX_CHARACTERS = 64


def retry_after_ms(values: Sequence[str], now_ms: int) -> int | None:
    """Return the time until a target wants the next request, at most an hour; None if it does not say that.

    values: those of the headers; the longest counts. now_ms: wall-clock time.
    """
    times_ms = [time_ms for value in values if (time_ms := _wait_ms(value.strip(), now_ms)) is not None]
    return min(max(0, *times_ms), MAX_RETRY_AFTER_MS) if times_ms else None


def _wait_ms(value: str, now_ms: int) -> int | None:
    if len(value) > _MAX_CHARACTERS or not value.isascii():
        return None
    if _SECONDS.fullmatch(value):
        return 1_000 * int(value)
    try:
        date = parsedate_to_datetime(value)
        if date.tzinfo is None:
            date = date.replace(tzinfo=UTC)
        return round((date - datetime.fromtimestamp(now_ms / 1_000, UTC)).total_seconds() * 1_000)
    except (ValueError, OverflowError):
        return None
