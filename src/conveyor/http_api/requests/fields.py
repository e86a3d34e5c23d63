"""How fields of requests are read whose types JSON does not have, and how openapi.json shows them."""

from typing import Any, ClassVar, Protocol, Self

import msgspec


class Field(Protocol):
    """A type of field: made from a value of JSON, or from a query's text."""

    schema: ClassVar[dict[str, Any]]

    @classmethod
    def parse(cls, value: object) -> Self:
        """Raises ValueError, which says what would be right."""


def decode_field(kind: type[Field], value: object) -> object:
    """msgspec's `dec_hook`."""
    return kind.parse(value)


def field_schema(kind: type[Field]) -> dict[str, Any]:
    """msgspec's `schema_hook`."""
    return kind.schema


def decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    """Reads a request's body."""
    return msgspec.json.Decoder(kind, dec_hook=decode_field)
