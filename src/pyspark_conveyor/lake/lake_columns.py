"""The columns of a lake."""

from typing import TYPE_CHECKING

from pyspark_conveyor.payloads.payload_columns import PAYLOAD
from pyspark_conveyor.payloads.payload_schema import PayloadSchema
from pyspark_conveyor.source.rows import spark_schema

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


def lake_columns(schema: PayloadSchema | None) -> "StructType":
    """Return the source's columns, `payload` (a struct) with a schema, and `day` (date)."""
    from pyspark.sql import types as T  # noqa: N812 - Spark's own habit

    columns = spark_schema()
    if schema is not None:
        columns = columns.add(PAYLOAD, schema.spark_type())
    return columns.add("day", T.DateType())
