"""Types for points in time and in a topic: `deliver_at`, `start` of a subscription, `from` of browsing."""

from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, Self

from conveyor.queues.subscription.policy import StartPosition
from conveyor.records.message_attributes import LAST_TIME_MS

_TIME = "a time as in 2026-01-31T12:00:00Z (RFC 3339)"
_EXAMPLE = "2026-01-31T12:00:00Z"
_EPOCH = datetime.fromtimestamp(0, UTC)
_MS = timedelta(milliseconds=1)


class Timestamp(int):
    """Milliseconds since 1970, written as a number or by RFC 3339. See `conveyor.http_api.requests.fields.Field`."""

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
        """Raises ValueError, whose text says what is expected."""
        number = _number(value)
        moment_ms = _rfc_3339_ms(value) if number is None else number
        if moment_ms is None or not 0 <= moment_ms <= LAST_TIME_MS:
            raise ValueError(f"{value!r} is not a time: write {_TIME}, or milliseconds since 1970")
        return cls(moment_ms)


class SubscriptionStart:
    """Where a subscription starts. See `conveyor.http_api.requests.fields.Field`."""

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
        """Raises ValueError, whose text says what is expected."""
        if value in ("earliest", "latest"):
            return cls(StartPosition(kind=str(value)))
        try:
            return cls(StartPosition(kind="timestamp", timestamp_ms=Timestamp.parse(value)))
        except ValueError:
            raise ValueError(f"{value!r} is not a start: write earliest, latest, {_TIME}, or ms since 1970") from None


class BrowseStart:
    """Where browsing begins: a `StartPosition`, or an offset. See `conveyor.http_api.requests.fields.Field`."""

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
        """Raises ValueError, whose text says what is expected."""
        if value in ("earliest", "latest"):
            return cls(StartPosition(kind=str(value)))
        offset, moment_ms = _number(value), _rfc_3339_ms(value)
        if moment_ms is not None and moment_ms >= 0:
            return cls(StartPosition(kind="timestamp", timestamp_ms=moment_ms))
        if offset is None or not 0 <= offset < 1 << 63:
            raise ValueError(f"{value!r} is not a position: write earliest, latest, {_TIME}, or an offset")
        return cls(offset)


def format_start(start: StartPosition) -> str:
    """A start position in the form that `SubscriptionStart` parses."""
    if start.kind != "timestamp":
        return start.kind
    try:
        moment = _EPOCH + start.timestamp_ms * _MS
    except OverflowError:
        return str(start.timestamp_ms)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _number(value: object) -> int | None:
    """A query parameter's value: a number if its text is one, since every value in a query is text."""
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
