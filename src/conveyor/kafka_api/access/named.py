"""Finds the resources that a request names, or that an answer lists, by the fields that a need declares."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from functools import cache
from typing import Any, NamedTuple, get_args, get_origin
from uuid import UUID

from conveyor.kafka_api.wire.division import Path
from conveyor.kafka_api.wire.skim import without_none

Parents = tuple[Any, ...]
"""The entities that an item is in, from the outermost one on, without the request."""


class Place(NamedTuple):
    """The place of the items in a request that name resources.

    path: the nested arrays that lead to the items; empty if the request itself names one. fields: of an item, each of
    which may name a resource; empty if the item is the name.
    """

    path: Path
    fields: tuple[str, ...]


@cache
def place(schema: Any, declared: tuple[str, ...]) -> Place | None:
    """Return the place that declared fields mean in this version of a request; None if it has none of them."""
    found = [resolved for dotted in declared if (resolved := _resolved(schema, dotted)) is not None]
    if not found:
        return None
    path = found[0][0]
    assert all(other == path for other, _ in found), f"{schema.__module__} names resources in several arrays"
    return Place(path, tuple(name for _, name in found if name is not None))


def items(entity: Any, path: Path, parents: Parents = ()) -> Iterator[tuple[Any, Parents]]:
    """Yield the items at the end of a path, each with the entities that it is in."""
    if not path:
        yield entity, parents
        return
    name, *inner = path
    for item in getattr(entity, name) or ():
        yield from items(item, tuple(inner), (*parents, item)) if inner else ((item, parents),)


def without(entity: Any, path: Path, is_refused: Callable[[Any], bool]) -> Any:
    """Return an entity without the refused items at the end of a path."""
    name, *inner = path
    present = getattr(entity, name)
    if present is None:
        return entity
    if inner:
        kept = tuple(without(item, tuple(inner), is_refused) for item in present)
    else:
        kept = tuple(item for item in present if not is_refused(item))
    return replace(entity, **{name: kept})


def names(item: Any, place_fields: Sequence[str], names_by_id: Mapping[Any, str]) -> Iterator[str]:
    """Yield the names of the resources that an item names. Ids of topics that do not exist name none."""
    values = (getattr(item, name) for name in place_fields) if place_fields else (item,)
    for value in values:
        name = names_by_id.get(value) if isinstance(value, UUID) else value
        if name is not None:
            yield name


def _resolved(schema: Any, dotted: str) -> tuple[Path, str | None] | None:
    path: list[str] = []
    kind = schema
    for name in dotted.split("."):
        declared = next((each for each in fields(kind) if each.name == name), None) if is_dataclass(kind) else None
        if declared is None:
            return None
        kind = without_none(declared.type)
        if get_origin(kind) is tuple:
            path.append(name)
            kind = without_none(get_args(kind)[0])
    return tuple(path), None if path and path[-1] == name else name
