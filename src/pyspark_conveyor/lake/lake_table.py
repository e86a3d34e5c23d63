"""A lake as tables."""

from pathlib import Path
from typing import TYPE_CHECKING

from pyspark_conveyor.lake.lake import bad_records_path, lake_log, read_manifest
from pyspark_conveyor.lake.lake_columns import lake_columns
from pyspark_conveyor.payloads.payload_columns import REASON
from pyspark_conveyor.source.rows import spark_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def read_lake(spark: "SparkSession", path: Path) -> "DataFrame":
    """Return the lake as a DataFrame: the source's columns, `payload` (a struct) if the lake has a schema, and `day`
    (date, UTC, of the record's timestamp).
    """
    # Without a schema, Spark reads a topic called 2024 as a number, and finds no columns in an empty lake.
    manifest = read_manifest(path)
    schema = lake_columns(None if manifest is None else manifest.schema)
    reader = spark.read.schema(schema)
    if manifest is None or manifest.format == "parquet":
        return reader.parquet(str(path)).select(schema.names)
    # Spark's own package cannot read Delta's log.
    files = lake_log(Path(manifest.path), manifest).paths()
    if not files:
        return spark.createDataFrame([], schema)
    found = reader.option("basePath", str(path)).parquet(*(str(path / file) for file in files))
    return found.select(schema.names)


def read_bad_records(spark: "SparkSession", path: Path) -> "DataFrame":
    """Return the records of a lake whose payloads do not match its schema: the source's columns, `reason` (string) and
    `day`. The lake must have a schema.
    """
    from pyspark.sql import types as T  # noqa: N812 - Spark's own habit

    schema = spark_schema().add(REASON, T.StringType()).add("day", T.DateType())
    return spark.read.schema(schema).parquet(str(bad_records_path(path))).select(schema.names)
