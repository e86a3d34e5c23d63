"""One row of the table of invalid requests."""

from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from kio.schema.errors import ErrorCode

Values = dict[str, Any]
"""The fields of a request in all its versions, by kio's names; each version takes the fields that it has."""


class Given(Enum):
    """A placeholder in a row for a value that is known only when the broker runs."""

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
    """A request, the versions in which it is sent, and the only error code of the response; `none`: no error."""

    api_key: int
    versions: tuple[int, ...]
    wrong: str
    values: Values
    code: ErrorCode


def filled(value: Any, world: dict[Given, Any]) -> Any:
    """Return a row's values with the placeholders replaced."""
    if isinstance(value, Given):
        return world[value]
    if isinstance(value, dict):
        return {name: filled(item, world) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(filled(item, world) for item in value)
    return value


def errors_in(answer: Any) -> set[int]:
    """Return every error code in a response, at any depth."""
    if isinstance(answer, tuple):
        return set().union(*map(errors_in, answer)) if answer else set()
    if not hasattr(answer, "__dataclass_fields__"):
        return set()
    names = ("error_code", "partition_error_code")
    found = {int(getattr(answer, name)) for name in names if hasattr(answer, name)}
    return found.union(*(errors_in(getattr(answer, name)) for name in answer.__dataclass_fields__)) - {0}
