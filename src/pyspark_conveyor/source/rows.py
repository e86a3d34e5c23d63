"""Records as columns: the source's schema, and its Arrow batches.

Grain: one row per record.

    topic string | partition int | offset long | timestamp timestamp (UTC, exact to the millisecond; outside the years
    1 to 9999 the nearest valid time) | timestampType int (0 the producer's, 1 the broker's) | key binary |
    value binary | headers array<struct<key string, value binary>> (null without headers, and without `includeHeaders`)

With `headersAs` map, the headers are a map<string, binary> of the last value of each name.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from pyspark_conveyor.source.record_columns import RecordColumns

if TYPE_CHECKING:
    import numpy.typing as npt
    import pyarrow as pa
    from pyspark.sql.types import StructType

    Numbers = npt.NDArray[np.int64]

_BATCH_ROWS = 20_000
_BATCH_BYTES = 16 << 20

# Years 1 to 9999: Python and a lake's day directories support no others, and one odd record must not fail a job.
_FIRST_MS, _LAST_MS = -62_135_596_800_000, 253_402_300_799_999


def spark_schema(*, headers_as_map: bool = False) -> "StructType":
    """Return the source's columns. Built by hand, because a task has no session that could parse a DDL string."""
    from pyspark.sql import types as T  # noqa: N812 - Spark's own habit

    header = T.StructType([T.StructField("key", T.StringType()), T.StructField("value", T.BinaryType())])
    headers = T.MapType(T.StringType(), T.BinaryType()) if headers_as_map else T.ArrayType(header)
    return T.StructType(
        [
            T.StructField("topic", T.StringType(), nullable=False),
            T.StructField("partition", T.IntegerType(), nullable=False),
            T.StructField("offset", T.LongType(), nullable=False),
            T.StructField("timestamp", T.TimestampType(), nullable=False),
            T.StructField("timestampType", T.IntegerType(), nullable=False),
            T.StructField("key", T.BinaryType()),
            T.StructField("value", T.BinaryType()),
            T.StructField("headers", headers),
        ]
    )


def arrow_schema(*, headers_as_map: bool = False) -> "pa.Schema":
    """Return the Arrow schema that Spark expects of the source."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(spark_schema(headers_as_map=headers_as_map), timezone="UTC")


def to_batches(
    columns: RecordColumns, topic: str, partition: int, bounds: tuple[int, int], schema: "pa.Schema"
) -> Iterator["pa.RecordBatch"]:
    """Yield the records with offsets in [start, end) as Arrow batches of at most 20,000 records and about 16 MiB."""
    first, last = np.searchsorted(columns.offsets, bounds)
    count = len(columns.offsets)
    if first >= last:
        return
    import pyarrow as pa
    import pyarrow.compute as pc

    times_ms = pa.array(np.clip(columns.times_ms, _FIRST_MS, _LAST_MS))
    whole = pa.RecordBatch.from_arrays(
        [
            pa.repeat(pa.scalar(topic), count),
            pa.repeat(pa.scalar(partition, pa.int32()), count),
            pa.array(columns.offsets),
            pc.multiply(times_ms, 1000).cast(schema.field("timestamp").type),
            pa.array(columns.timestamp_types),
            columns.keys,
            columns.values,
            _headers(columns, schema.field("headers").type),
        ],
        schema=schema,
    )
    rows = max(1, min(_BATCH_ROWS, _BATCH_BYTES * count // max(1, whole.nbytes)))
    for start in range(first, last, rows):
        yield whole.slice(start, min(rows, last - start))


def _headers(columns: RecordColumns, kind: "pa.DataType") -> "pa.Array":
    import pyarrow as pa

    counts = columns.headers_counts
    if not len(columns.header_keys):
        return pa.nulls(len(counts), kind)
    keys, values = _texts(columns.header_keys), columns.header_values
    if pa.types.is_map(kind):
        counts, keys, values = _last_of_each_name(counts, keys, values)
        edges = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
        entries = pa.StructArray.from_arrays([keys, values], fields=[kind.key_field, kind.item_field])
    else:
        edges = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
        entries = pa.StructArray.from_arrays([keys, values], fields=list(kind.value_type))
    validity = pa.array(counts > 0).buffers()[1]
    return pa.Array.from_buffers(
        kind, len(counts), [validity, pa.py_buffer(edges)], int((counts == 0).sum()), children=[entries]
    )


def _texts(names: "pa.Array") -> "pa.Array":
    """Return names as strings; bytes that are no UTF-8 become replacement characters."""
    import pyarrow as pa

    try:
        return names.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([name.decode(errors="replace") for name in names.to_pylist()], pa.string())


def _last_of_each_name(
    counts: "Numbers", keys: "pa.Array", values: "pa.Array"
) -> tuple["Numbers", "pa.Array", "pa.Array"]:
    """Leave the last header of each name in each record: a map has no name twice."""
    import pyarrow as pa

    records = np.repeat(np.arange(len(counts)), counts)
    codes = keys.dictionary_encode().indices.to_numpy(zero_copy_only=False).astype(np.int64)
    identities = records * (int(codes.max()) + 1) + codes
    last = np.sort(len(identities) - 1 - np.unique(identities[::-1], return_index=True)[1])
    if len(last) == len(identities):
        return counts, keys, values
    kept = pa.array(last)
    return np.bincount(records[last], minlength=len(counts)).astype(np.int64), keys.take(kept), values.take(kept)
