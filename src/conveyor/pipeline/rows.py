"""Records as columns: the source's schema, and Arrow batches of it.

Grain: one row per record.

    topic string | partition int | offset long | timestamp timestamp (UTC) | timestampType int | key binary |
    value binary | headers array<struct<key string, value binary>> (null without `includeHeaders`)
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

NO_TIMESTAMP_TYPE, CREATE_TIME, LOG_APPEND_TIME = -1, 0, 1


def spark_schema() -> "StructType":
    """The source's columns. Built by hand: in a task there is no session that could parse a text."""
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
    """Exactly the Arrow schema that Spark expects of the source."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(spark_schema(), timezone="UTC")


def to_batch(messages: list[Any], schema: "pa.Schema", *, include_headers: bool) -> "pa.RecordBatch":
    """One Arrow batch of messages of one partition."""
    import pyarrow as pa

    stamps = [message.timestamp() for message in messages]
    count, headers = len(messages), schema.field("headers").type
    columns = [
        pa.repeat(pa.scalar(messages[0].topic()), count),
        pa.repeat(pa.scalar(messages[0].partition(), pa.int32()), count),
        pa.array([message.offset() for message in messages], pa.int64()),
        pa.array([stamp[1] * 1000 for stamp in stamps], pa.int64()).cast(schema.field("timestamp").type),
        pa.array([_TIMESTAMP_TYPES[stamp[0]] for stamp in stamps], pa.int32()),
        pa.array([message.key() for message in messages], pa.binary()),
        pa.array([message.value() for message in messages], pa.binary()),
        # A header is a (name, value) tuple already; as a dict it would take Arrow nine times as long.
        pa.array([message.headers() for message in messages], headers) if include_headers else pa.nulls(count, headers),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
