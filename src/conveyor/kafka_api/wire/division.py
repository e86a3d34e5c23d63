"""Lists the requests that can be divided into smaller ones, and whose responses can be joined.

A divided request has the effects and the answers of several requests of the same API, which are handled one after the
other. What an API promises for a request as a whole then holds for each piece: AddPartitionsToTxn adds all or none of
the partitions of a piece, and CreateTopics takes a name that is repeated in a later piece for one that exists.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache
from itertools import chain, groupby
from operator import attrgetter, itemgetter
from typing import Any

from conveyor.broker.slices import SLICE_ITEMS

Path = tuple[str, ...]
"""The names of nested arrays."""

_FEW = 10
"""Items of a piece whose items take up to a millisecond: each is answered with all settings or partitions, or deletes
250 offsets.
"""
_GROUPS = 100
"""Items of a piece whose items may be groups."""
_ONE = 1
"""Items of a piece whose items take up to 10 ms: each is answered with all members."""
_ERRORS = ("error_code", "error_message")


@dataclass(frozen=True, slots=True)
class Division:
    """Describes how requests of one API are divided.

    items: the path to the array that is divided, if need be one for each of some versions. results: in responses.
    size: the most items of a piece. names_once: what is named repeatedly is answered once, because its answer or its
    work can be long; two items name the same if they differ in nothing but the array inside and the ignored fields. The
    last item's ignored fields count.
    """

    items: Sequence[Path]
    results: Sequence[Path]
    size: int = SLICE_ITEMS
    names_once: bool = False
    ignored: Path = ()

    def pieces(self, request: Any) -> Iterator[Any]:
        """Yield the pieces of a request: the request itself if it has nothing to divide."""
        path = _existing(self.items, request)
        if path is None:
            yield request
        else:
            yield from (piece for piece, _ in self._divided(request, path))

    def joined(self, responses: Sequence[Any]) -> Any:
        """Return one response. An error of a piece as a whole is one of the response."""
        path = _existing(self.results, responses[0])
        return responses[0] if path is None else _joined(responses, path)

    def _divided(self, entity: Any, path: Path) -> Iterator[tuple[Any, int]]:
        """Yield pieces of an entity with the numbers of their items. An array that is null asks for all there are, and
        is a piece of its own.
        """
        name, *inner = path
        chosen: list[Any] = []
        count = 0
        items = getattr(entity, name) or ()
        for item in self._merged(items, tuple(inner)) if self.names_once else items:
            for part, size in self._divided(item, tuple(inner)) if inner else ((item, 1),):
                if count and count + size > self.size:
                    yield replace(entity, **{name: tuple(chosen)}), count
                    chosen, count = [], 0
                chosen.append(part)
                count += size
        asks_for_all = getattr(entity, name) is None
        yield (
            (replace(entity, **{name: tuple(chosen)}), count) if chosen else (entity, self.size if asks_for_all else 1)
        )

    def _merged(self, items: Sequence[Any], inner: Path) -> Iterable[Any]:
        """Return one item for all that name the same, with all that their arrays contain. It happens in one turn of the
        event loop for all items, so most of it is done by C functions.
        """
        names = _names(items, (*inner[:1], *self.ignored))
        last = dict(zip(names, items, strict=True))
        if len(last) == len(items) or not inner:
            return last.values()
        same: dict[Any, list[Any]] = {name: [] for name in last}
        for name, item in zip(names, items, strict=True):
            same[name].append(getattr(item, inner[0]))
        return (
            replace(last[name], **{inner[0]: None if None in arrays else tuple(chain(*arrays))})
            if len(arrays) > 1
            else last[name]
            for name, arrays in same.items()
        )


def _existing(paths: Sequence[Path], entity: Any) -> Path | None:
    return next((path for path in paths if hasattr(entity, path[0])), None)


def _joined(entities: Sequence[Any], path: Path) -> Any:
    """Join the arrays of entities. Entries of the same name that follow each other become one, if they have arrays.

    The rest is that of the first entity with an error, if one has: clients take what is missing for nonexistent.
    """
    name, *inner = path
    entries = tuple(chain.from_iterable(map(attrgetter(name), entities)))
    if inner and entries:
        schema: Any = type(entries[0])
        by_name = map(list, map(itemgetter(1), groupby(entries, attrgetter(_name_field(schema)))))
        entries = tuple(_joined(same, tuple(inner)) if len(same) > 1 else same[0] for same in by_name)
    failed = (entity for entity in entities if entity.error_code) if hasattr(entities[0], "error_code") else ()
    return replace(next(iter(failed), entities[0]), **{name: entries})


def _names(items: Sequence[Any], other_fields: Path) -> Sequence[Any]:
    """Return what each item names: the item itself if it is a number or a string."""
    if not items or not is_dataclass(items[0]):
        return items
    columns: list[Iterable[Any]] = []
    for field in fields(items[0]):
        if field.name in other_fields:
            continue
        values: Iterable[Any] = map(attrgetter(field.name), items)
        if field.metadata.get("kafka_type") == "uuid":  # As `key_of_id`, without its calls.
            values = (topic_id if topic_id is None else topic_id.int.to_bytes(16, "big") for topic_id in values)
        columns.append(values)
    return list(columns[0]) if len(columns) == 1 else list(zip(*columns, strict=True))


@cache
def _name_field(schema: Any) -> str:
    """Return the field that names an entry: the first one that is not about errors."""
    return next(field.name for field in fields(schema) if field.name not in _ERRORS)


_PARTITIONS, _INDEXES = ("topics", "partitions"), ("topics", "partition_indexes")

DIVISIONS: dict[int, Division] = {
    2: Division([_PARTITIONS], [_PARTITIONS]),
    3: Division([("topics",)], [("topics",)], _FEW, names_once=True),
    8: Division([_PARTITIONS], [_PARTITIONS]),
    9: Division(
        [("groups", *_INDEXES), _INDEXES],
        [("groups", *_PARTITIONS), _PARTITIONS],
        _GROUPS,
        names_once=True,
        ignored=("member_id", "member_epoch"),
    ),
    10: Division([("coordinator_keys",)], [("coordinators",)], names_once=True),
    13: Division([("members",)], [("members",)]),
    15: Division([("groups",)], [("groups",)], _ONE, names_once=True),
    19: Division([("topics",)], [("topics",)], _FEW),
    20: Division([("topics",), ("topic_names",)], [("responses",)]),
    21: Division([_PARTITIONS], [_PARTITIONS], names_once=True, ignored=("offset",)),
    23: Division([_PARTITIONS], [_PARTITIONS], names_once=True),
    24: Division(
        [("v3_and_below_topics", "partitions")], [("results_by_topic_v3_and_below", "results_by_partition")]
    ),
    27: Division([("markers", *_INDEXES)], [("markers", *_PARTITIONS)]),
    28: Division([_PARTITIONS], [_PARTITIONS]),
    30: Division([("creations",)], [("results",)]),
    32: Division([("resources",)], [("results",)], _FEW, names_once=True),
    33: Division([("resources",)], [("responses",)]),
    34: Division([("dirs", *_PARTITIONS)], [("results", "partitions")]),
    35: Division([_PARTITIONS], [("results", *_PARTITIONS)]),
    37: Division([("topics",)], [("results",)]),
    42: Division([("groups_names",)], [("results",)], _FEW, names_once=True),
    43: Division(
        [("topic_partitions", "partitions")], [("replica_election_results", "partition_result")], names_once=True
    ),
    44: Division([("resources",)], [("responses",)]),
    45: Division([_PARTITIONS], [("responses", "partitions")]),
    46: Division([_INDEXES], [_PARTITIONS]),
    47: Division([_PARTITIONS], [_PARTITIONS]),
    49: Division([("entries",)], [("entries",)]),
    55: Division([_PARTITIONS], [_PARTITIONS]),
    61: Division([_INDEXES], [_PARTITIONS], _FEW, names_once=True),
    65: Division([("transactional_ids",)], [("transaction_states",)], _FEW, names_once=True),
    69: Division([("group_ids",)], [("groups",)], _ONE, names_once=True),
}  # fmt: skip
"""By API key. The requests of the other APIs name few things, or are about one thing with many items."""
