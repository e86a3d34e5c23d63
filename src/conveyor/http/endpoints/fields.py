"""Types of request fields that JSON lacks: their parsers, and their schemas for openapi.json."""

from typing import Any, ClassVar, Protocol, Self

import msgspec

_MAX_CHARACTERS = 64
"""Of the text of a field. Errors quote it."""


class Field(Protocol):
    """A type of field that is parsed from a JSON value or from the text of a query parameter."""

    schema: ClassVar[dict[str, Any]]

    @classmethod
    def parse(cls, value: object) -> Self:
        """Parse the value. Raises ValueError, whose message says what is expected."""


def decode_field(kind: type[Field], value: object) -> object:
    """Parse a field, for msgspec's `dec_hook`: a short text or a number. Raises ValueError."""
    if not isinstance(value, str | int | float) or (isinstance(value, str) and len(value) > _MAX_CHARACTERS):
        expected = kind.schema["description"]
        raise ValueError(f"Expected a text of at most {_MAX_CHARACTERS} characters, or a number. {expected}")
    return kind.parse(value)


def field_schema(kind: type[Field]) -> dict[str, Any]:
    """Return the schema of a field; for msgspec's `schema_hook`."""
    return kind.schema


def decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    """Return a decoder for request bodies."""
    return msgspec.json.Decoder(kind, dec_hook=decode_field)
