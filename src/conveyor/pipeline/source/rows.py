"""Records as columns: the source's schema, and its Arrow batches.

Grain: one row per record.

    topic string | partition int | offset long | timestamp timestamp (UTC, exact to the millisecond; outside the years
    1 to 9999 the nearest valid time) | timestampType int (0 the producer's, 1 the broker's) | key binary |
    value binary | headers array<struct<key string, value binary>> (null without headers, and without `includeHeaders`)
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

# Years 1 to 9999: Python and a lake's day directories support no others, and one odd record must not fail a job.
_FIRST_MS, _LAST_MS = -62_135_596_800_000, 253_402_300_799_999


def spark_schema() -> "StructType":
    """Return the source's columns. Built by hand, because a task has no session that could parse a DDL string."""
    from pyspark.sql import types as T  # noqa: N812 - Spark's own habit

    header = T.StructType([T.StructField("key", T.StringType()), T.StructField("value", T.BinaryType())])
    return T.StructType(
        [
            T.StructField("topic", T.StringType(), nullable=False),
            T.StructField("partition", T.IntegerType(), nullable=False),
            T.StructField("offset", T.LongType(), nullable=False),
            T.StructField("timestamp", T.TimestampType(), nullable=False),
            T.StructField("timestampType", T.IntegerType(), nullable=False),
            T.StructField("key", T.BinaryType()),
            T.StructField("value", T.BinaryType()),
            T.StructField("headers", T.ArrayType(header)),
        ]
    )


def arrow_schema() -> "pa.Schema":
    """Return the Arrow schema that Spark expects of the source."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(spark_schema(), timezone="UTC")


def to_batch(messages: list[Any], schema: "pa.Schema", *, include_headers: bool) -> "pa.RecordBatch":
    """Return one Arrow batch of messages of one partition."""
    import pyarrow as pa
    import pyarrow.compute as pc

    stamps = [message.timestamp() for message in messages]
    times_ms = pa.array([min(max(stamp[1], _FIRST_MS), _LAST_MS) for stamp in stamps], pa.int64())
    count, headers = len(messages), schema.field("headers").type
    columns = [
        pa.repeat(pa.scalar(messages[0].topic()), count),
        pa.repeat(pa.scalar(messages[0].partition(), pa.int32()), count),
        pa.array([message.offset() for message in messages], pa.int64()),
        pc.multiply(times_ms, 1000).cast(schema.field("timestamp").type),
        # The client's 0 means no timestamp, 1 the producer's, 2 the broker's.
        pa.array([stamp[0] - 1 for stamp in stamps], pa.int32()),
        pa.array([message.key() for message in messages], pa.binary()),
        pa.array([message.value() for message in messages], pa.binary()),
        # A header is a (name, value) tuple already; dicts would take Arrow nine times as long.
        pa.array([message.headers() for message in messages], headers) if include_headers else pa.nulls(count, headers),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
