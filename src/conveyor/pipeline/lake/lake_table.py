"""A lake as a table."""

from pathlib import Path
from typing import TYPE_CHECKING

from conveyor.pipeline.source.rows import spark_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def read_lake(spark: "SparkSession", path: Path) -> "DataFrame":
    """Return the lake as a DataFrame: the source's columns, and `day` (date, UTC, of the record's timestamp)."""
    from pyspark.sql import types as T  # noqa: N812 - Spark's own habit

    # Without a schema, Spark reads a topic called 2024 as a number, and finds no columns in an empty lake.
    schema = spark_schema().add("day", T.DateType())
    return spark.read.schema(schema).parquet(str(path)).select(schema.names)
