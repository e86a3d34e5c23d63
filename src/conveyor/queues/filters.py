"""Which messages a subscription wants, as an expression in CEL (the Common Expression Language, cel.dev).

    key           string, "" without a key; bytes that are no UTF-8 are replaced by U+FFFD, here and below
    headers       map of string to string (null where the header is null); the last header of a name
    tag           string, "" without one
    size          int, bytes of the value
    timestamp     timestamp of the record
    timestamp_ms  int, the same in ms since the epoch
    topic         string
    partition     int
    offset        int
    priority      int, 0 to 9
    payload       the value as JSON; null if it is none

The payload is parsed only for an expression that names it. What an expression may be: see `filter_expression`.
"""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import msgspec

from conveyor.kernel.errors import ConveyorError, ErrorKind, RequestError
from conveyor.log.records import Header
from conveyor.queues.attributes import read_attributes
from conveyor.queues.filter_expression import CheckedExpression, check_expression
from conveyor.queues.message import Message

MAX_SEARCHED_BYTES = 65_536
"""A macro (`exists`, ...) goes through messages up to this size; its cost may rise with the square of it."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FAILURES = (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError)
"""What evaluation raises: the message has not what the expression asks for."""

_SAMPLE = Message("topic", 0, 0, 0, None, None)


class FilterFailure(ConveyorError):  # noqa: N818 - named for what it is
    """A filter says neither yes nor no to a message; the text says why."""


class Filter:
    """One checked expression. Raises RequestError (INVALID_FILTER) when it is made."""

    __slots__ = ("_checked", "_variables", "expression")

    def __init__(self, expression: str) -> None:
        self.expression = expression
        self._checked = check_expression(expression, _VARIABLES)
        self._variables = tuple((name, _VARIABLES[name]) for name in sorted(self._checked.variables))
        _try_out(self._checked, self._context(_SAMPLE))

    def matches(self, message: Message) -> bool:
        """Whether the message is wanted. Raises FilterFailure."""
        if self._checked.has_macro and _searched_bytes(message) > MAX_SEARCHED_BYTES:
            raise FilterFailure(f"the message is above {MAX_SEARCHED_BYTES} bytes: too large for a filter with a macro")
        try:
            answer = self._checked.program.execute(self._context(message))
        except _FAILURES as error:
            raise FilterFailure(f"{type(error).__name__}: {_first_sentence(error)}") from error
        if not isinstance(answer, bool):
            raise FilterFailure(f"the filter gives {_kind(answer)}, not true or false")
        return answer

    def _context(self, message: Message) -> dict[str, object]:
        context: dict[str, object] = {name: read(message) for name, read in self._variables}
        context.update(self._checked.functions)
        return context


def _try_out(checked: CheckedExpression, context: dict[str, object]) -> None:
    """On a message without a payload and headers, whose other fields have the types that they always have."""
    try:
        answer = checked.program.execute(context)
    except TypeError as error:
        if not checked.variables & {"headers", "payload"}:
            raise RequestError(
                ErrorKind.INVALID_FILTER, f"the filter fails on every message: {_first_sentence(error)}"
            ) from error
        return
    except _FAILURES:
        return
    if not isinstance(answer, bool) and "payload" not in checked.variables:
        raise RequestError(ErrorKind.INVALID_FILTER, f"the filter gives {_kind(answer)}: it has to be true or false")


def _text(content: bytes | None) -> str:
    return "" if content is None else content.decode("utf-8", "replace")


def _headers(message: Message) -> dict[str, str | None]:
    return {_name(header): None if header[1] is None else _text(header[1]) for header in message.headers}


def _name(header: Header) -> str:
    name = header[0]
    return name if name.isascii() else name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _payload(message: Message) -> object:
    try:
        return msgspec.json.decode(message.value or b"")
    except (msgspec.MsgspecError, RecursionError):
        return None


def _searched_bytes(message: Message) -> int:
    headers = sum(len(name) + len(value or b"") for name, value in message.headers)
    return len(message.key or b"") + len(message.value or b"") + headers


def _kind(answer: object) -> str:
    return "nothing" if answer is None else f"a value of type {type(answer).__name__}"


def _first_sentence(error: BaseException) -> str:
    return str(error).split(". ")[0]


_VARIABLES: dict[str, Callable[[Message], object]] = {
    "key": lambda message: _text(message.key),
    "headers": _headers,
    "tag": lambda message: message.tag or "",
    "size": lambda message: len(message.value or b""),
    "timestamp": lambda message: _EPOCH + timedelta(milliseconds=message.timestamp_ms),
    "timestamp_ms": lambda message: message.timestamp_ms,
    "topic": lambda message: message.topic,
    "partition": lambda message: message.partition,
    "offset": lambda message: message.offset,
    "priority": lambda message: read_attributes(message.headers, message.timestamp_ms).priority,
    "payload": _payload,
}
