"""A lake as tables."""

from pathlib import Path
from typing import TYPE_CHECKING

from conveyor.pipeline.lake.lake import bad_records_path, read_manifest
from conveyor.pipeline.payloads.payload_columns import PAYLOAD, REASON
from conveyor.pipeline.source.rows import spark_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def read_lake(spark: "SparkSession", path: Path) -> "DataFrame":
    """Return the lake as a DataFrame: the source's columns, `payload` (a struct) if the lake has a schema, and `day`
    (date, UTC, of the record's timestamp).
    """
    from pyspark.sql import types as T  # noqa: N812 - Spark's own habit

    # Without a schema, Spark reads a topic called 2024 as a number, and finds no columns in an empty lake.
    schema = spark_schema()
    manifest = read_manifest(path)
    if manifest is not None and manifest.schema is not None:
        schema = schema.add(PAYLOAD, manifest.schema.spark_type())
    schema = schema.add("day", T.DateType())
    return spark.read.schema(schema).parquet(str(path)).select(schema.names)


def read_bad_records(spark: "SparkSession", path: Path) -> "DataFrame":
    """Return the records of a lake whose payloads do not match its schema: the source's columns, `reason` (string) and
    `day`. The lake must have a schema.
    """
    from pyspark.sql import types as T  # noqa: N812 - Spark's own habit

    schema = spark_schema().add(REASON, T.StringType()).add("day", T.DateType())
    return spark.read.schema(schema).parquet(str(bad_records_path(path))).select(schema.names)
