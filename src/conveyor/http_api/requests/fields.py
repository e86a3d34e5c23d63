"""Types of request fields that JSON does not have: how to parse them, and their schemas for openapi.json."""

from typing import Any, ClassVar, Protocol, Self

import msgspec


class Field(Protocol):
    """A type of field, parsed from a JSON value or from the text of a query parameter."""

    schema: ClassVar[dict[str, Any]]

    @classmethod
    def parse(cls, value: object) -> Self:
        """Raises ValueError, whose text says what is expected."""


def decode_field(kind: type[Field], value: object) -> object:
    """msgspec's `dec_hook`."""
    return kind.parse(value)


def field_schema(kind: type[Field]) -> dict[str, Any]:
    """msgspec's `schema_hook`."""
    return kind.schema


def decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    """Reads a request's body."""
    return msgspec.json.Decoder(kind, dec_hook=decode_field)
