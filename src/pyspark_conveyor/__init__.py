"""Registers `format("conveyor")` with every Spark session: Spark imports top-level modules called `pyspark_*`."""

from conveyor.pipeline.spark.spark_source import ConveyorDataSource as DefaultSource

__all__ = ["DefaultSource"]
