"""A plan of the members of a request or an answer, made from its type once. The query protocol follows it both ways.

A member has a name in AWS JSON (`wire_name`), and one in the query protocol (`query_name`), which differs for lists and
maps.
"""

from dataclasses import dataclass
from typing import Any

from msgspec import Struct, inspect


@dataclass(frozen=True, slots=True)
class TextMember:
    """A text."""


@dataclass(frozen=True, slots=True)
class NumberMember:
    """An integer, or a boolean of an answer."""


@dataclass(frozen=True, slots=True)
class BlobMember:
    """Bytes, which both protocols write in base64."""


@dataclass(frozen=True, slots=True)
class ListMember:
    """A list, written as `AttributeName.1`, or as repeated elements."""

    item: "MemberKind"


@dataclass(frozen=True, slots=True)
class MapMember:
    """A map, written as `Attribute.1.Name` and `Attribute.1.Value`. key_name: `Name` or `Key`."""

    key_name: str
    value: "MemberKind"


@dataclass(frozen=True, slots=True)
class StructMember:
    """A structure."""

    members: "tuple[SqsMember, ...]"


MemberKind = TextMember | NumberMember | BlobMember | ListMember | MapMember | StructMember


@dataclass(frozen=True, slots=True)
class SqsMember:
    """One member of a structure. attribute: its name in Python."""

    attribute: str
    wire_name: str
    query_name: str
    kind: MemberKind


def plan_of(kind: type[Struct]) -> StructMember:
    """Return the plan of a structure."""
    described = inspect.type_info(kind)
    assert isinstance(described, inspect.StructType)
    return _structure(described)


def _structure(described: inspect.StructType) -> StructMember:
    return StructMember(tuple(map(_member, described.fields)))


def _member(described: inspect.Field) -> SqsMember:
    kind, extra = _without_metadata(described.type)
    return SqsMember(
        described.name, described.encode_name, extra.get("name", described.encode_name), _kind(kind, extra)
    )


def _without_metadata(kind: inspect.Type) -> tuple[inspect.Type, dict[str, Any]]:
    """Return a member's type without None, and the names that it carries."""
    if isinstance(kind, inspect.UnionType):
        (kind,) = (choice for choice in kind.types if not isinstance(choice, inspect.NoneType))
    return (kind.type, kind.extra or {}) if isinstance(kind, inspect.Metadata) else (kind, {})


def _kind(kind: inspect.Type, extra: dict[str, Any]) -> MemberKind:
    if isinstance(kind, inspect.StructType):
        return _structure(kind)
    if isinstance(kind, inspect.ListType):
        return ListMember(_kind(kind.item_type, {}))
    if isinstance(kind, inspect.DictType):
        return MapMember(extra["key"], _kind(kind.value_type, {}))
    if isinstance(kind, inspect.BytesType):
        return BlobMember()
    return TextMember() if isinstance(kind, inspect.StrType) else NumberMember()
