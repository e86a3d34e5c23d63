"""Adds the valid names to msgspec's validation errors."""

import re
from typing import Any

from msgspec import ValidationError, inspect

_IN_WORDS = {
    "matching regex '^[a-zA-Z0-9._-]+$'": "of letters, digits, '.', '_' and '-'",
    "matching regex '^[^:]+:'": "such as name:value",
    "matching regex '^[0-9]{1,6}$'": "of digits, six at most",
}

_MAX_PATH = 250
"""Characters at the end of an error that may contain the path. What is before them may be a text of the client."""
_WHERE = re.compile(r" - at ((?:`key` in )?`\$[^`]*`)$")


def explain(kind: Any, error: ValidationError) -> tuple[str, str]:
    """Return the reason and the path of the value: `$.ordering`, or empty for the whole document."""
    text = str(error)
    found = _WHERE.search(text, max(0, len(text) - _MAX_PATH))
    what, where = (text, "") if found is None else (text[: found.start()], found[1])
    for pattern, words in _IN_WORDS.items():
        what = what.replace(pattern, words)
    if what.startswith(("Invalid enum value", "Object contains unknown field")):
        names = [name for place in _places(kind, where) for name in _known(place)]
        what += f": use one of {', '.join(names)}" if names else ": this request takes none"
    return what, where


def _places(kind: Any, where: str) -> list[inspect.Type]:
    """Return the possible types of a value at this path."""
    places = _alternatives(inspect.type_info(kind))
    for field in re.findall(r"\.(\w+)|\[", where):
        places = [
            alternative for place in places for inner in _inside(place, field) for alternative in _alternatives(inner)
        ]
    return places


def _alternatives(kind: inspect.Type) -> list[inspect.Type]:
    if isinstance(kind, inspect.UnionType):
        return [leaf for alternative in kind.types for leaf in _alternatives(alternative)]
    return _alternatives(kind.type) if isinstance(kind, inspect.Metadata) else [kind]


def _inside(kind: inspect.Type, field: str) -> list[inspect.Type]:
    """Return the type of a struct's field, or of the values of a list or dict if `field` is empty."""
    if isinstance(kind, inspect.StructType):
        return [candidate.type for candidate in kind.fields if candidate.encode_name == field]
    if isinstance(kind, inspect.ListType):
        return [] if field else [kind.item_type]
    return [kind.value_type] if isinstance(kind, inspect.DictType) and not field else []


def _known(kind: inspect.Type) -> list[str]:
    if isinstance(kind, inspect.StructType):
        return [field.encode_name for field in kind.fields]
    return [str(value) for value in kind.values] if isinstance(kind, inspect.LiteralType) else []
