"""Filters: expressions in CEL (the Common Expression Language, cel.dev) that select a subscription's messages.

    key           string, "" without a key; invalid UTF-8 is replaced by U+FFFD, here and below
    headers       map of string to string (null where the header is null); the last header of a name
    tag           string, "" without one
    size          int, bytes of the value
    timestamp     timestamp of the record
    timestamp_ms  int, the same in ms since the epoch
    topic         string
    partition     int
    offset        int
    priority      int, 0 to 9
    payload       the value as JSON; null if it is not JSON

Only an expression that names the payload causes it to be parsed, and only the named fields are parsed. A payload whose
named fields cannot be read is null. The rules for expressions are in `filter_expression`, the cost rules in
`filter_price`.
"""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from conveyor.kernel.errors import ConveyorError, ErrorKind, RequestError
from conveyor.queues.subscription.filter_expression import MAX_COST_NS, CheckedExpression, check_expression
from conveyor.queues.subscription.filter_payload import PayloadReader, RawPayload
from conveyor.queues.subscription.filter_price import MESSAGE, Amount
from conveyor.records.message import Message
from conveyor.records.message_attributes import read_attributes
from conveyor.records.record import shown_name

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FAILURES = (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError)
"""Exceptions of an evaluation: the message lacks something that the expression uses."""

_TEXT_BYTE_NS = 20
"""The cost of decoding one byte of invalid UTF-8."""
_HEADER_NS = 8_000
_MAX_REASON_CHARACTERS = 200

_SAMPLE = Message("topic", 0, 0, 0, None, None)


class FilterFailure(ConveyorError):  # noqa: N818 - named for what it is
    """A filter did not return a boolean for a message. The text states the reason."""


class Filter:
    """One checked expression. The constructor raises RequestError (INVALID_FILTER).

    spent_ns: the summed cost bounds of all `matches` calls, by which the caller limits the work of one loop tick.
    """

    __slots__ = ("_checked", "_payload", "_reads_headers", "_reads_key", "_variables", "spent_ns")

    def __init__(self, expression: str) -> None:
        self.spent_ns = 0.0
        self._checked = check_expression(expression, _SCOPE)
        variables = self._checked.variables
        self._reads_key = "key" in variables
        self._reads_headers = bool(variables & {"headers", "tag", "priority"})
        self._payload = PayloadReader(self._checked.payload_fields) if "payload" in variables else None
        self._variables = tuple((name, _VARIABLES[name]) for name in sorted(variables - {"payload"}))
        _try_out(self._checked, self._context(_SAMPLE, None))

    def matches(self, message: Message) -> bool:
        """Return whether the message passes.

        Raises FilterFailure, without an evaluation if that would cost more than MAX_COST_NS.
        """
        payload = self._check_cost(message)
        try:
            answer = self._checked.program.execute(self._context(message, payload))
        except _FAILURES as error:
            raise FilterFailure(f"{type(error).__name__}: {_first_sentence(error)}") from error
        if not isinstance(answer, bool):
            raise FilterFailure(f"the filter returned {_kind(answer)} instead of true or false")
        return answer

    def _check_cost(self, message: Message) -> RawPayload | None:
        """Check the cost of this message. Returns the payload's fields, not decoded yet."""
        weight, rounds = 0, 1
        if self._reads_key:
            weight += len(message.key or b"") * _TEXT_BYTE_NS
        if self._reads_headers:
            weight += _weight_of_headers(message)
            rounds += len(message.headers)
        payload = None
        if self._payload is not None and message.value:
            weight += self._payload.scan_ns(message.value)
            if weight <= MAX_COST_NS:
                payload = self._payload.scan(message.value)
                weight += payload.weight_ns
                rounds += payload.elements
        cost_ns = self._checked.cost.at(weight, rounds) + weight
        self.spent_ns += min(cost_ns, MAX_COST_NS)
        if cost_ns > MAX_COST_NS:
            raise FilterFailure(
                f"the message is too large for this filter: the evaluation may take {cost_ns / 1e6:.0f} ms"
            )
        return payload

    def _context(self, message: Message, payload: RawPayload | None) -> dict[str, object]:
        context: dict[str, object] = {name: read(message) for name, read in self._variables}
        if self._payload is not None:
            context["payload"] = None if payload is None else payload.decode()
        context.update(self._checked.functions)
        return context


def _try_out(checked: CheckedExpression, context: dict[str, object]) -> None:
    """Evaluate on a message without payload and headers; its other fields have their fixed types."""
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
        raise RequestError(
            ErrorKind.INVALID_FILTER, f"the filter returns {_kind(answer)}: it must return true or false"
        )


def _text(content: bytes | None) -> str:
    return "" if content is None else content.decode("utf-8", "replace")


def _headers(message: Message) -> dict[str, str | None]:
    return {shown_name(name): None if value is None else _text(value) for name, value in message.headers}


def _weight_of_headers(message: Message) -> int:
    sizes = sum(len(name) + len(value or b"") for name, value in message.headers)
    return sizes * _TEXT_BYTE_NS + len(message.headers) * _HEADER_NS


def _kind(answer: object) -> str:
    return "nothing" if answer is None else f"a value of type {type(answer).__name__}"


def _first_sentence(error: BaseException) -> str:
    return str(error)[:_MAX_REASON_CHARACTERS].split(". ")[0]


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
}
"""By variable, the function that reads it; PayloadReader reads the payload."""

_SCOPE = {
    **dict.fromkeys(("key", "headers", "tag"), MESSAGE),
    **dict.fromkeys(("size", "timestamp", "timestamp_ms"), Amount(fixed=32)),
    "topic": Amount(fixed=256),
    **dict.fromkeys(("partition", "offset", "priority"), Amount(fixed=32)),
    "payload": MESSAGE,
}
"""The size of each variable's value."""
