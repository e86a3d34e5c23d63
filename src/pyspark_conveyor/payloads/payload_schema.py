"""The schema of a topic's payloads, and how it may change."""

import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from pyspark_conveyor.pipeline_errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

Decoder = Callable[[bytes], dict[str, Any]]
"""Decodes a payload. Raises BadPayloadError."""


class BadPayloadError(Exception):
    """A payload does not match the schema; the message says why."""


class PayloadSchema(msgspec.Struct, frozen=True, kw_only=True):
    """A schema as a lake stores it.

    columns: Spark's type of the payload, as JSON.
    definitions: Avro: the schemas as JSON, newest first; Protobuf: one base64 descriptor set; JSON: none.
    message: Protobuf: the full name of the message.
    """

    format: Literal["json", "avro", "protobuf"]
    columns: str
    definitions: tuple[str, ...] = ()
    message: str = ""

    def spark_type(self) -> "StructType":
        from pyspark.sql.types import StructType

        return StructType.fromJson(json.loads(self.columns))


def changed(old: PayloadSchema, new: PayloadSchema, *, may_evolve: bool) -> PayloadSchema:
    """Return the schema of a lake that has `old` and is given `new`. Raises PipelineError for a refused change.

    A schema may only gain fields, and only with `may_evolve`. Older Avro schemas are kept: a record can be read only
    with the schema that wrote it.
    """
    if old.format != new.format or old.message != new.message:
        before, after = (f"{each.format} {each.message}".strip() for each in (old, new))
        raise PipelineError(f"the lake's payloads are {before}, not {after}: archive into an empty directory instead")
    conflicts = list(_conflicts(old.spark_type(), new.spark_type(), ""))
    if conflicts:
        raise PipelineError(
            f"the schema does not fit the lake's: {'; '.join(conflicts)}; archive into an empty directory instead"
        )
    additions = list(_additions(old.spark_type(), new.spark_type(), ""))
    if additions and not may_evolve:
        raise PipelineError(f"the schema has new fields ({', '.join(additions)}): --evolve adds them to the lake")
    if not additions:
        return old
    earlier = old.definitions if old.format == "avro" else ()
    return msgspec.structs.replace(new, definitions=tuple(dict.fromkeys([*new.definitions, *earlier])))


def _conflicts(old: Any, new: Any, name: str) -> Iterator[str]:
    """Yield what was removed or has another type, with the full names of fields."""
    from pyspark.sql import types as T  # noqa: N812 - Spark's own habit

    if isinstance(old, T.StructType) and isinstance(new, T.StructType):
        found = {field.name: field.dataType for field in new}
        for field in old:
            inner = f"{name}.{field.name}".removeprefix(".")
            if field.name in found:
                yield from _conflicts(field.dataType, found[field.name], inner)
            else:
                yield f"field {inner} is missing"
    elif isinstance(old, T.ArrayType) and isinstance(new, T.ArrayType):
        yield from _conflicts(old.elementType, new.elementType, f"{name}[]")
    elif isinstance(old, T.MapType) and isinstance(new, T.MapType):
        yield from _conflicts(old.valueType, new.valueType, f"{name}{{}}")
    elif old != new:
        yield f"field {name} was {old.simpleString()} and is {new.simpleString()}"


def _additions(old: Any, new: Any, name: str) -> Iterator[str]:
    """Yield the full names of new fields; both types have no conflicts."""
    from pyspark.sql import types as T  # noqa: N812 - Spark's own habit

    if isinstance(old, T.StructType):
        known = {field.name: field.dataType for field in old}
        for field in new:
            inner = f"{name}.{field.name}".removeprefix(".")
            if field.name in known:
                yield from _additions(known[field.name], field.dataType, inner)
            else:
                yield inner
    elif isinstance(old, T.ArrayType):
        yield from _additions(old.elementType, new.elementType, f"{name}[]")
    elif isinstance(old, T.MapType):
        yield from _additions(old.valueType, new.valueType, f"{name}{{}}")
