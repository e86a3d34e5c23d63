"""Types of fields for times and positions: `deliver_at`, `start` of a subscription, `from` of browsing."""

from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, Self

from conveyor.queues.subscription.policy import StartPosition
from conveyor.records.message_attributes import LAST_TIME_MS

_TIME = "a time as in 2026-01-31T12:00:00Z (RFC 3339)"
_EXAMPLE = "2026-01-31T12:00:00Z"
_EPOCH = datetime.fromtimestamp(0, UTC)
_MS = timedelta(milliseconds=1)


class Timestamp(int):
    """Milliseconds since 1970, written as a number or by RFC 3339. See `conveyor.http.endpoints.fields.Field`."""

    schema: ClassVar[dict[str, Any]] = {
        "anyOf": [
            {"type": "integer", "minimum": 0, "maximum": LAST_TIME_MS},
            {"type": "string", "format": "date-time"},
        ],
        "description": "Milliseconds since 1970, or a time by RFC 3339.",
        "examples": [_EXAMPLE],
    }

    @classmethod
    def parse(cls, value: object) -> Self:
        """Parse the value. Raises ValueError, whose message says what is expected."""
        number = _number(value)
        timestamp_ms = _rfc_3339_ms(value) if number is None else number
        if timestamp_ms is None or not 0 <= timestamp_ms <= LAST_TIME_MS:
            raise ValueError(f"{value!r} is not a time: write {_TIME}, or milliseconds since 1970")
        return cls(timestamp_ms)


class SubscriptionStart:
    """The start position of a subscription. See `conveyor.http.endpoints.fields.Field`."""

    __slots__ = ("start",)
    schema: ClassVar[dict[str, Any]] = {
        "anyOf": [{"type": "string", "enum": ["earliest", "latest"]}, *Timestamp.schema["anyOf"]],
        "description": "earliest, latest, or the first message not older than a time: RFC 3339, or ms since 1970.",
        "examples": ["earliest"],
    }

    def __init__(self, start: StartPosition) -> None:
        self.start = start

    @classmethod
    def parse(cls, value: object) -> Self:
        """Parse the value. Raises ValueError, whose message says what is expected."""
        if value in ("earliest", "latest"):
            return cls(StartPosition(kind=str(value)))
        try:
            return cls(StartPosition(kind="timestamp", timestamp_ms=Timestamp.parse(value)))
        except ValueError:
            raise ValueError(f"{value!r} is not a start: write earliest, latest, {_TIME}, or ms since 1970") from None


class BrowseStart:
    """The start of browsing: a `StartPosition` or an offset. See `conveyor.http.endpoints.fields.Field`."""

    __slots__ = ("place",)
    schema: ClassVar[dict[str, Any]] = {
        "anyOf": [
            {"type": "string", "enum": ["earliest", "latest"]},
            {"type": "string", "format": "date-time"},
            {"type": "integer", "minimum": 0, "maximum": (1 << 63) - 1},
        ],
        "description": "earliest, latest, a time by RFC 3339, or an offset.",
        "examples": ["earliest"],
    }

    def __init__(self, place: StartPosition | int) -> None:
        self.place = place

    @classmethod
    def parse(cls, value: object) -> Self:
        """Parse the value. Raises ValueError, whose message says what is expected."""
        if value in ("earliest", "latest"):
            return cls(StartPosition(kind=str(value)))
        offset, timestamp_ms = _number(value), _rfc_3339_ms(value)
        if timestamp_ms is not None and timestamp_ms >= 0:
            return cls(StartPosition(kind="timestamp", timestamp_ms=timestamp_ms))
        if offset is None or not 0 <= offset < 1 << 63:
            raise ValueError(f"{value!r} is not a position: write earliest, latest, {_TIME}, or an offset")
        return cls(offset)


def format_start(start: StartPosition) -> str:
    """Format a start position as `SubscriptionStart` parses it."""
    if start.kind != "timestamp":
        return start.kind
    try:
        time = _EPOCH + start.timestamp_ms * _MS
    except OverflowError:
        return str(start.timestamp_ms)
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _number(value: object) -> int | None:
    """Return an integer, also from text, because every value in a query is text; None for other values."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 19:
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _rfc_3339_ms(value: object) -> int | None:
    if not isinstance(value, str):
        return None
    try:
        time = datetime.fromisoformat(value.upper())
    except ValueError:
        return None
    return None if time.tzinfo is None else (time - _EPOCH) // _MS
