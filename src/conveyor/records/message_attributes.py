"""Queue attributes of a message, from headers that any Kafka client can set: due time, expiry, priority, tag.

    conveyor-delay-ms        due this long after the record's timestamp: a whole number of ms, or `1200ms 5s 10m 2h`
    conveyor-deliver-at-ms   due at this time, in ms since the epoch; with a delay as well, the later time applies
    conveyor-ttl-ms          duration as above: expires this long after it is due; without a delay, after the timestamp
    conveyor-priority        0 to 9, 9 first; the default is 4
    conveyor-tag             text to filter by
    conveyor-dedup-id        a second message with this id, inside the topic's window, is dropped

If a name occurs more than once, the last header applies, as with Kafka's `lastHeader`. An invalid value is ignored,
because Kafka's protocol cannot report it to the producer. `read_attributes` returns the names of ignored headers for
the caller to count. Doors that can report an error call `check_attributes` first.

`conveyor-publisher`, which `conveyor.records.publishers` describes, is no attribute: only brokers set it.
"""

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.records.compression import Unpacked, contains
from conveyor.records.record import Header

PREFIX = "conveyor-"
DELAY_MS = "conveyor-delay-ms"
DELIVER_AT_MS = "conveyor-deliver-at-ms"
TTL_MS = "conveyor-ttl-ms"
PRIORITY = "conveyor-priority"
TAG = "conveyor-tag"
DEDUP_ID = "conveyor-dedup-id"
PUBLISHER = "conveyor-publisher"

DEAD_REASON = "conveyor-dead-reason"
DEAD_TOPIC = "conveyor-dead-topic"
DEAD_PARTITION = "conveyor-dead-partition"
DEAD_OFFSET = "conveyor-dead-offset"
DEAD_SUBSCRIPTION = "conveyor-dead-subscription"
DEAD_DELIVERIES = "conveyor-dead-deliveries"
DEAD_FIRST_FAILURE_MS = "conveyor-dead-first-failure-ms"
DEAD_LAST_FAILURE_MS = "conveyor-dead-last-failure-ms"

DEAD_HEADERS = (
    DEAD_REASON, DEAD_TOPIC, DEAD_PARTITION, DEAD_OFFSET, DEAD_SUBSCRIPTION, DEAD_DELIVERIES, DEAD_FIRST_FAILURE_MS,
    DEAD_LAST_FAILURE_MS,
)  # fmt: skip
ONLY_FOR = "conveyor-only-for"
"""The only subscription that receives the message. All others count it as settled."""

DEFAULT_PRIORITY = 4
PRIORITIES = 10

UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000}
"""Units of durations as text."""

LAST_TIME_MS = (1 << 62) - 1
"""The latest timestamp that a record can have."""

_MAX_DIGITS = 19
_DURATION = re.compile(rb"([0-9]{1,%d})(ms|s|m|h)?" % _MAX_DIGITS)
_PRIORITIES = {b"%d" % priority: priority for priority in range(PRIORITIES)}
_READ = frozenset((DELAY_MS, DELIVER_AT_MS, TTL_MS, PRIORITY))
_SHOWN_BYTES = 60
_MARK, _PUBLISHER_MARK = PREFIX.encode(), PUBLISHER.encode()


class MessageAttributes(NamedTuple):
    """The attributes of one message. Times are in ms since the epoch, 0 for none.

    unreadable: the names of headers that were ignored because their values are invalid.
    """

    due_ms: int = 0
    expires_ms: int = 0
    priority: int = DEFAULT_PRIORITY
    unreadable: tuple[str, ...] = ()


PLAIN = MessageAttributes()
"""The attributes of a message without such headers; always this same object."""


def read_attributes(headers: Sequence[Header], timestamp_ms: int) -> MessageAttributes:
    """Return the attributes of a record from its headers. timestamp_ms: the record's timestamp."""
    if not headers:
        return PLAIN
    asked = {name: value for name, value in headers if name in _READ}
    if not asked:
        return PLAIN
    try:
        return _read(asked, timestamp_ms)
    except ValueError:
        return _read_leniently(asked, timestamp_ms)


def may_have_attributes(content: Unpacked) -> bool:
    """Return whether records may have such headers. content: a batch, or its decompressed records.

    The header that most messages of clients with a login have is none of them.
    """
    if not contains(content, _MARK):
        return False
    return not isinstance(content, bytes) or content.count(_MARK) != content.count(_PUBLISHER_MARK)


def last_header(headers: Iterable[Header], name: str) -> bytes | None:
    """Return the last value of a header name; None if the header is missing or its value is null."""
    last = None
    for header_name, value in headers:
        if header_name == name:
            last = value
    return last


def check_attributes(headers: Iterable[Header]) -> None:
    """Check every header of a message before it is published. Raises RequestError (INVALID_REQUEST)."""
    for name, value in headers:
        check = _CHECKS.get(name)
        if check is None:
            continue
        try:
            check(value)
        except ValueError:
            raise RequestError(ErrorKind.INVALID_REQUEST, explain_header(name, value)) from None


def explain_header(name: str, value: bytes | None) -> str:
    """Return an error message for an invalid header: the shortened value, and the valid values."""
    shown = "null" if value is None else repr(value[:_SHOWN_BYTES].decode("utf-8", "replace"))
    return f"{name} is {shown}: it must be {_RIGHT[name]}"


def _read(asked: dict[str, bytes | None], timestamp_ms: int) -> MessageAttributes:
    due_ms = expires_ms = 0
    priority = DEFAULT_PRIORITY
    if DELAY_MS in asked:
        delay_ms = _duration(asked[DELAY_MS])
        due_ms = _time(timestamp_ms + delay_ms) if delay_ms else 0
    if DELIVER_AT_MS in asked:
        due_ms = max(due_ms, _time(_number(asked[DELIVER_AT_MS])))
    if TTL_MS in asked:
        expires_ms = _time((due_ms or timestamp_ms) + _duration(asked[TTL_MS]))
    if PRIORITY in asked:
        priority = _priority(asked[PRIORITY])
    return MessageAttributes(due_ms, expires_ms, priority)


def _read_leniently(asked: dict[str, bytes | None], timestamp_ms: int) -> MessageAttributes:
    """Return the attributes without the invalid headers."""
    sound = dict(asked)
    for name in asked:
        try:
            _read({name: asked[name]}, timestamp_ms)
        except ValueError:
            del sound[name]
    try:
        attributes = _read(sound, timestamp_ms)
    except ValueError:  # The expiry time, counted from the due time, is later than the latest timestamp.
        del sound[TTL_MS]
        attributes = _read(sound, timestamp_ms)
    return attributes._replace(unreadable=tuple(name for name in asked if name not in sound))


def _duration(value: bytes | None) -> int:
    match = _DURATION.fullmatch(value or b"")
    if match is None:
        raise ValueError(value)
    return _time(int(match[1]) * UNITS_MS[(match[2] or b"ms").decode()])


def _number(value: bytes | None) -> int:
    if value is None or not value.isdigit() or len(value) > _MAX_DIGITS:
        raise ValueError(value)
    return _time(int(value))


def _time(time_ms: int) -> int:
    if time_ms > LAST_TIME_MS:
        raise ValueError(time_ms)
    return time_ms


def _priority(value: bytes | None) -> int:
    priority = _PRIORITIES.get(value) if value is not None else None
    if priority is None:
        raise ValueError(value)
    return priority


def _text(value: bytes | None) -> None:
    if not value:
        raise ValueError(value)
    value.decode()


def _some_bytes(value: bytes | None) -> None:
    if not value:
        raise ValueError(value)


def _nothing(value: bytes | None) -> None:
    raise ValueError(value)


_CHECKS = {
    DELAY_MS: _duration,
    DELIVER_AT_MS: _number,
    TTL_MS: _duration,
    PRIORITY: _priority,
    TAG: _text,
    DEDUP_ID: _some_bytes,
    PUBLISHER: _nothing,
}
_ANY_DURATION = "a whole number of milliseconds, or a duration as in 1200ms, 5s, 10m, 2h"
_RIGHT = {
    DELAY_MS: _ANY_DURATION,
    DELIVER_AT_MS: "a time in whole milliseconds since 1970",
    TTL_MS: _ANY_DURATION,
    PRIORITY: f"a whole number from 0 to {PRIORITIES - 1}, {PRIORITIES - 1} the most urgent",
    TAG: "text that is not empty, in UTF-8",
    DEDUP_ID: "an id that is not empty",
    PUBLISHER: "left out, as the broker sets it",
}
