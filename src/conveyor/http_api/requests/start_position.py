"""Points in time and in a topic: `deliver_at`, `start` of a subscription, `from` of a look at messages."""

from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, Self

from conveyor.queues.subscription.policy import Start
from conveyor.records.message_attributes import LAST_TIME_MS

_TIME = "a time as in 2026-01-31T12:00:00Z (RFC 3339)"
_EXAMPLE = "2026-01-31T12:00:00Z"
_EPOCH = datetime.fromtimestamp(0, UTC)
_MS = timedelta(milliseconds=1)


class Moment(int):
    """Milliseconds since the epoch; written as such, or by RFC 3339. See `conveyor.http_api.requests.fields.Field`."""

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
        """Raises ValueError, which says what would be right."""
        number = _number(value)
        moment_ms = _rfc_3339_ms(value) if number is None else number
        if moment_ms is None or not 0 <= moment_ms <= LAST_TIME_MS:
            raise ValueError(f"{value!r} is no time: write {_TIME}, or milliseconds since 1970")
        return cls(moment_ms)


class Beginning:
    """Where a subscription starts. See `conveyor.http_api.requests.fields.Field`."""

    __slots__ = ("start",)
    schema: ClassVar[dict[str, Any]] = {
        "anyOf": [{"type": "string", "enum": ["earliest", "latest"]}, *Moment.schema["anyOf"]],
        "description": "earliest, latest, or the first message not older than a time: RFC 3339, or ms since 1970.",
        "examples": ["earliest"],
    }

    def __init__(self, start: Start) -> None:
        self.start = start

    @classmethod
    def parse(cls, value: object) -> Self:
        """Raises ValueError, which says what would be right."""
        if value in ("earliest", "latest"):
            return cls(Start(kind=str(value)))
        try:
            return cls(Start(kind="timestamp", timestamp_ms=Moment.parse(value)))
        except ValueError:
            raise ValueError(f"{value!r} is no start: write earliest, latest, {_TIME}, or ms since 1970") from None


class Position:
    """Where a look at messages begins: a `Start`, or an offset. See `conveyor.http_api.requests.fields.Field`."""

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

    def __init__(self, place: Start | int) -> None:
        self.place = place

    @classmethod
    def parse(cls, value: object) -> Self:
        """Raises ValueError, which says what would be right."""
        if value in ("earliest", "latest"):
            return cls(Start(kind=str(value)))
        offset, moment_ms = _number(value), _rfc_3339_ms(value)
        if moment_ms is not None and moment_ms >= 0:
            return cls(Start(kind="timestamp", timestamp_ms=moment_ms))
        if offset is None or not 0 <= offset < 1 << 63:
            raise ValueError(f"{value!r} is no position: write earliest, latest, {_TIME}, or an offset")
        return cls(offset)


def format_start(start: Start) -> str:
    """As `Beginning` takes it."""
    if start.kind != "timestamp":
        return start.kind
    try:
        moment = _EPOCH + start.timestamp_ms * _MS
    except OverflowError:
        return str(start.timestamp_ms)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _number(value: object) -> int | None:
    """In a query everything is text."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 19:
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _rfc_3339_ms(value: object) -> int | None:
    if not isinstance(value, str):
        return None
    try:
        moment = datetime.fromisoformat(value.upper())
    except ValueError:
        return None
    return None if moment.tzinfo is None else (moment - _EPOCH) // _MS
