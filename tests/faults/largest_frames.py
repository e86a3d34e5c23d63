"""The largest frames of every API: as many items as a request may have, as small as their schemas permit."""

from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from io import BytesIO
from math import ceil
from struct import pack
from typing import Any, get_args, get_origin

from kio.index import load_request_schema
from kio.serial._serialize import get_writer

from conveyor.kafka_api.wire.codec import ITEM_WEIGHTS
from conveyor.kafka_api.wire.packing import array_length
from conveyor.kafka_api.wire.skim import without_none

Path = tuple[str, ...]
"""The names of nested arrays."""

Values = Callable[[str, int], Any]
"""Returns the value of a field in an item with a number; None for the smallest."""

_ZEROS: dict[str, Any] = {"string": "", "bytes": b"", "records": b"", "bool": False, "uuid": None}
_DURATIONS = {"timedelta_i32": 4, "timedelta_i64": 8}


def item_type(annotation: Any) -> Any:
    """Return the type of an array's items; None for a field that is no array."""
    bare = without_none(annotation)
    return without_none(get_args(bare)[0]) if get_origin(bare) is tuple else None


def smallest(_field: str, _number: int) -> None:
    """All numbers are 0, and all names are empty."""


def array_paths(schema: Any, before: Path = ()) -> Iterator[Path]:
    """Yield the paths to all arrays of a request."""
    for field in fields(schema):
        item = item_type(field.type)
        if item is not None and "tag" not in field.metadata:
            yield (*before, field.name)
            if is_dataclass(item):
                yield from array_paths(item, (*before, field.name))


def frame(api_key: int, version: int, path: Path, items: int, values: Values = smallest) -> bytes:
    """Return a request of so many items, without its length. All but those on the path are at its end. Items that count
    as several are fewer.
    """
    weight = ITEM_WEIGHTS.get(api_key, {}).get(path[0], 1)
    schema = load_request_schema(api_key, version)
    out = BytesIO(pack(">hhih", api_key, version, 7, -1) + b"\0" * schema.__header_schema__.__flexible__)
    out.seek(0, 2)
    _write(out, schema, path, ceil((items - len(path) + 1) / weight), values, 0)
    return out.getvalue()


def _write(out: BytesIO, schema: Any, path: Path, count: int, values: Values, number: int) -> None:
    flexible = bool(schema.__flexible__)
    for field in fields(schema):
        item = item_type(field.type)
        if "tag" in field.metadata:
            continue
        if item is not None:
            _write_array(out, field, flexible, path, count, values)
        elif is_dataclass(without_none(field.type)):
            out.write(b"\xff")
        else:
            _write_value(out, field, flexible, values(field.name, number))
    if flexible:
        out.write(b"\0")


def _write_array(out: BytesIO, field: Any, flexible: bool, path: Path, count: int, values: Values) -> None:
    own = 0 if path[:1] != (field.name,) else count if len(path) == 1 else 1
    out.write(array_length(own, flexible))
    if values is smallest:
        one = BytesIO()
        _write_item(one, field, flexible, path, count, values, 0)
        out.write(one.getvalue() * own)
    else:
        for number in range(own):
            _write_item(out, field, flexible, path, count, values, number)


def _write_item(out: BytesIO, field: Any, flexible: bool, path: Path, count: int, values: Values, number: int) -> None:
    item = item_type(field.type)
    if is_dataclass(item):
        _write(out, item, path[1:], count, values, number)
    else:
        _write_value(out, field, flexible, values(field.name, number))


def _write_value(out: BytesIO, field: Any, flexible: bool, value: Any) -> None:
    kind = field.metadata["kafka_type"]
    is_null = value is None and without_none(field.type) is not field.type and kind not in ("records", "uuid")
    if is_null and item_type(field.type) is None:
        out.write(b"\0" if flexible else b"\xff" * (2 if kind == "string" else 4))
    elif value is None and kind in _DURATIONS:
        out.write(bytes(_DURATIONS[kind]))
    else:
        get_writer(kind, flexible, optional=False)(out, _ZEROS.get(kind, 0) if value is None else value)
