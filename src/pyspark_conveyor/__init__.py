"""The PySpark data source `format("conveyor")` and its jobs: clients of the broker.

Spark imports top-level modules called `pyspark_*` in every session, and registers the `DefaultSource` of each. Of
`conveyor` they use only `records`, the format of record batches, and the quantiles of its histograms.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark_conveyor.spark.spark_source import ConveyorDataSource as DefaultSource

__all__ = ["DefaultSource"]


def __getattr__(name: str) -> object:
    """Import the data source, and with it PySpark, only when Spark asks for it."""
    if name != "DefaultSource":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from pyspark_conveyor.spark.spark_source import ConveyorDataSource

    return ConveyorDataSource
