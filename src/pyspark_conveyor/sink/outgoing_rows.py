"""Rows as records: which columns a written table may have, and what the producer is given.

    topic string | key binary or string | value binary or string (required) | partition int | timestamp timestamp
    headers array<struct<key string, value binary>> or map<string, binary>

All but `value` may be missing or null. `offset` and `timestampType` are passed over, so that a topic's own table can be
written to another topic.
"""

from collections.abc import Iterator
from itertools import islice, repeat
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark_conveyor.pipeline_errors import PipelineError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

_PASSED_OVER = ("offset", "timestampType")
_COLUMNS = ("topic", "key", "value", "partition", "timestamp", "headers")
NO_PARTITION = -1
PRESENT = 0
"""The timestamp by which the client means the present."""

Headers = list[tuple[str, bytes | None]]


class OutgoingRow(NamedTuple):
    """One record to produce. timestamp_ms: PRESENT if the row has none."""

    topic: str | None
    key: bytes | str | None
    value: bytes | str | None
    partition: int
    timestamp_ms: int
    headers: Headers | None


def check_columns(schema: "StructType", topic: str | None) -> None:
    """Raise PipelineError for a table that cannot be written. topic: the target of all rows, if there is one."""
    kinds = {field.name: field.dataType.simpleString() for field in schema.fields}
    unknown = [name for name in kinds if name not in (*_COLUMNS, *_PASSED_OVER)]
    if unknown:
        raise PipelineError(f"column '{unknown[0]}' cannot be written, only {', '.join(_COLUMNS)}: drop the others")
    if "value" not in kinds:
        raise PipelineError("column 'value' is missing: select what is to be written AS value")
    if topic is None and "topic" not in kinds:
        raise PipelineError("option 'topic' is missing: set .option('topic', ...), or add a column 'topic'")
    allowed = {
        "topic": ("string",),
        "key": ("binary", "string"),
        "value": ("binary", "string"),
        "partition": ("int", "smallint", "tinyint", "bigint"),
        "timestamp": ("timestamp", "timestamp_ntz"),
    }
    for name, wanted in allowed.items():
        if name in kinds and kinds[name] not in wanted:
            raise PipelineError(f"column '{name}' is {kinds[name]}: it must be {' or '.join(wanted)}; use CAST")
    if "headers" in kinds and not _are_headers(kinds["headers"]):
        raise PipelineError(
            f"column 'headers' is {kinds['headers']}: it must be array<struct<key:string,value:binary>>"
            " or map<string,binary>"
        )


def outgoing_rows(batch: "pa.RecordBatch") -> Iterator[OutgoingRow]:
    """Yield the rows of an Arrow batch."""
    import pyarrow as pa

    count = batch.num_rows

    def column(name: str, missing: object) -> Any:
        place = batch.schema.get_field_index(name)
        return repeat(missing, count) if place < 0 else batch.column(place).to_pylist()

    times = batch.schema.get_field_index("timestamp")
    headers = batch.schema.get_field_index("headers")
    stamps = repeat(PRESENT, count)
    if times >= 0:
        zone = batch.schema.field(times).type.tz
        in_ms = batch.column(times).cast(pa.timestamp("ms", zone), safe=False).cast(pa.int64())
        stamps = iter(in_ms.fill_null(PRESENT).to_pylist())
    partitions = (NO_PARTITION if each is None else each for each in column("partition", NO_PARTITION))
    yield from map(
        OutgoingRow,
        column("topic", None),
        column("key", None),
        column("value", None),
        partitions,
        stamps,
        repeat(None, count) if headers < 0 else _headers(batch.column(headers)),
    )


def _are_headers(kind: str) -> bool:
    return kind in (
        "array<struct<key:string,value:binary>>",
        "array<struct<key:string,value:string>>",
        "map<string,binary>",
        "map<string,string>",
    )


def _headers(column: "pa.Array") -> Iterator[Headers | None]:
    """Yield the headers of each row, from whole columns of names and values. Raises PipelineError: one has no name."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_map(column.type):
        entries = [list(row) if row else None for row in column.to_pylist()]
        yield from entries
        return
    sizes = pc.list_value_length(column).fill_null(0).to_pylist()
    inner = column.flatten()
    names = inner.field("key")
    if names.null_count or inner.null_count:
        raise PipelineError("column 'headers' has a header without a key: leave it out, or give it a key")
    pairs = zip(names.to_pylist(), inner.field("value").to_pylist(), strict=True)
    for size in sizes:
        yield list(islice(pairs, size)) if size else None
