"""Answers requests, or items of requests, that are refused, in the shape of each API's responses.

An item of a request and its result have the same place: `DIVISIONS` has both. A result has the fields of the item that
name it, the error, and nothing else.
"""

from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, get_args, get_origin

from kio.index import load_response_schema

from conveyor.kafka_api.wire.codec import Body
from conveyor.kafka_api.wire.division import DIVISIONS, Path
from conveyor.kafka_api.wire.skim import without_none
from conveyor.kernel.errors import RequestError

_CODES = ("error_code", "partition_error_code")
_NOT_DIVIDED: Mapping[int, tuple[list[Path], list[Path]]] = {
    31: ([("filters",)], [("filter_results",)]),
    51: ([("deletions",), ("upsertions",)], [("results",)]),
}
"""The places of items and of their results in APIs whose requests are not divided."""
_BLANK = {str: "", bytes: b"", bool: False, datetime: datetime.fromtimestamp(0, UTC), timedelta: 0}


def refused_request(api_key: int, version: int, request: Any, error: RequestError) -> Body:
    """Return the response to a request that is refused as a whole."""
    return _Results(api_key, version, request).of(request, error)


def refused_item(api_key: int, version: int, request: Any, path: Path, item: Any, error: RequestError) -> Body:
    """Return the result of an item at the end of a path."""
    return _Results(api_key, version, request).of(item, error, depth=len(path))


def nothing(api_key: int, version: int, request: Any) -> Body:
    """Return the response to a request of which nothing is left."""
    return _Results(api_key, version, request).of(None, None)


def results_path(api_key: int, version: int, path: Path) -> Path:
    """Return the arrays that lead to the results of the items at the end of a path."""
    return _places(api_key, version)[: len(path)]


class _Results:
    """Makes the results of one request's items. depth: the arrays above an item."""

    def __init__(self, api_key: int, version: int, request: Any) -> None:
        self._schema = load_response_schema(api_key, version)
        self._places = _places(api_key, version)
        division = DIVISIONS.get(api_key)
        declared = _NOT_DIVIDED[api_key][0] if api_key in _NOT_DIVIDED else division.items if division else []
        self._arrays = [path for path in declared if hasattr(request, path[0]) and len(path) >= len(self._places)]

    def of(self, item: Any, error: RequestError | None, depth: int = 0) -> dict[str, Any]:
        schema = self._schema
        for name in self._places[:depth]:
            schema = _item_schema(schema, name)
        return self._result(schema, item, error, depth)

    def _result(self, schema: Any, item: Any, error: RequestError | None, depth: int) -> dict[str, Any]:
        has_code = any(each.name in _CODES for each in fields(schema))
        values: dict[str, Any] = {}
        for number, each in enumerate(field for field in fields(schema) if field.name not in _CODES):
            if each.name == "error_message":
                values[each.name] = None if error is None else error.message
            elif not has_code and self._places[depth : depth + 1] == (each.name,) and error is not None:
                inner = _item_schema(schema, each.name)
                values[each.name] = [self._result(inner, below, error, depth + 1) for below in self._below(item, depth)]
            elif each.default is MISSING and each.name != "throttle_time":
                values[each.name] = _value(each, item, is_name=depth > 0 and number == 0)
        return values | dict.fromkeys(_CODES, 0 if error is None else error.kafka_code)

    def _below(self, item: Any, depth: int) -> list[Any]:
        """Return the items below an item whose results are below its result."""
        found: list[Any] = []
        for path in self._arrays:
            outer = len(path) - len(self._places)  # Arrays that the response does not have.
            level = [item]
            for name in path[outer + depth : outer + depth + 1] if depth else path[: outer + 1]:
                level = [below for above in level for below in getattr(above, name) or ()]
            found += level
        return found


@cache
def _places(api_key: int, version: int) -> Path:
    division = DIVISIONS.get(api_key)
    declared = _NOT_DIVIDED[api_key][1] if api_key in _NOT_DIVIDED else division.results if division else []
    names = {each.name for each in fields(load_response_schema(api_key, version))}
    return next((path for path in declared if path[0] in names), ())


def _item_schema(schema: Any, array: str) -> Any:
    declared = next(each for each in fields(schema) if each.name == array)
    return without_none(get_args(without_none(declared.type))[0])


def _value(wanted: "Field[Any]", item: Any, *, is_name: bool) -> Any:
    """Return a required field of a result: that of the item with its name, or the item's name, or nothing."""
    kind = without_none(wanted.type)
    if get_origin(kind) is tuple:
        return _same_array(get_args(kind)[0], getattr(item, wanted.name, None))
    if hasattr(item, wanted.name):
        return getattr(item, wanted.name)
    if is_name:
        return getattr(item, fields(item)[0].name) if is_dataclass(item) else item
    if kind is not wanted.type:
        return None
    return next((blank for of, blank in _BLANK.items() if isinstance(kind, type) and issubclass(kind, of)), -1)


def _same_array(wanted: Any, present: Any) -> tuple[Any, ...]:
    """Return an array of the item as one of its result, if both have the same fields, and no arrays in these."""
    if not is_dataclass(wanted) or not present or not is_dataclass(present[0]):
        return ()
    names = [each.name for each in fields(wanted)]
    has_arrays = any(get_origin(without_none(each.type)) is tuple for each in fields(wanted))
    if has_arrays or names != [each.name for each in fields(present[0])]:
        return ()
    return tuple({name: getattr(each, name) for name in names} for each in present)
