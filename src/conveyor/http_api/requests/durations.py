"""Durations as text: `1200ms`, `5s`, `10m`, `2h`. A number without a unit is an error."""

import re
from typing import Any, ClassVar, Self

from conveyor.records.message_attributes import UNITS_MS

_DURATION = re.compile(r"([0-9]+)(ms|s|m|h)")
_MAX_DIGITS = 20


class Duration(int):
    """Whole milliseconds, parsed from text; see `conveyor.http.endpoints.fields.Field`. A subclass may set `max_ms`."""

    max_ms: ClassVar[int] = 10**10 * UNITS_MS["h"]
    schema: ClassVar[dict[str, Any]] = {
        "type": "string",
        "pattern": f"^[0-9]{{1,{_MAX_DIGITS}}}(ms|s|m|h)$",
        "description": "A duration: 1200ms, 5s, 10m or 2h.",
        "examples": ["5s"],
    }

    @classmethod
    def parse(cls, value: object) -> Self:
        """Parse the value. Raises ValueError, whose message says what is expected."""
        match = _DURATION.fullmatch(value) if isinstance(value, str) else None
        if match is None:
            raise ValueError(f"{value!r} is not a duration: write a whole number and a unit, as in 1200ms, 5s, 10m, 2h")
        is_number = len(match[1]) <= _MAX_DIGITS
        duration = cls(int(match[1]) * UNITS_MS[match[2]] if is_number else cls.max_ms + 1)
        if duration > cls.max_ms:
            raise ValueError(f"{match[0]:.40} is too long: at most {format_duration(cls.max_ms)}")
        return duration


def format_duration(duration_ms: int) -> str:
    """Format a duration in the largest unit that needs no fraction."""
    unit = next(unit for unit, unit_ms in reversed(UNITS_MS.items()) if duration_ms % unit_ms == 0)
    return f"{duration_ms // UNITS_MS[unit]}{unit}"
