"""One row of the table of requests that a broker has to refuse, and how a row is written down."""

from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from kio.schema.errors import ErrorCode

Values = dict[str, Any]
"""A request by kio's field names, of all its versions: each takes the fields that it has."""


class Given(Enum):
    """What is known only when the broker runs; it takes the place of a value in a row."""

    TOPIC_ID = auto()
    UNKNOWN_ID = auto()
    CLASSIC_MEMBER = auto()
    STATIC_MEMBER = auto()
    UNSYNCED_MEMBER = auto()
    WAITED_FOR_MEMBER = auto()
    CONSUMER_EPOCH = auto()
    WRONG_EPOCH = auto()
    SESSION = auto()


@dataclass(frozen=True, slots=True)
class Row:
    """A request, the versions in which it is sent, and the one error code in the answer; `none`: it is no error."""

    api_key: int
    versions: tuple[int, ...]
    wrong: str
    values: Values
    code: ErrorCode


def filled(value: Any, world: dict[Given, Any]) -> Any:
    """A row's values with what is known now."""
    if isinstance(value, Given):
        return world[value]
    if isinstance(value, dict):
        return {name: filled(each, world) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(filled(each, world) for each in value)
    return value


def errors_in(answer: Any) -> set[int]:
    """Every error code in a response, however deep."""
    if isinstance(answer, tuple):
        return set().union(*map(errors_in, answer)) if answer else set()
    if not hasattr(answer, "__dataclass_fields__"):
        return set()
    found = {int(answer.error_code)} if hasattr(answer, "error_code") else set()
    return found.union(*(errors_in(getattr(answer, name)) for name in answer.__dataclass_fields__)) - {0}
