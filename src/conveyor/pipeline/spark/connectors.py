"""The two connectors that read topics for jobs: Conveyor's data source, and Spark's own for Kafka, which runs in Java.

Jobs are written for the columns of the data source (`source.rows`), in whose order both are returned. Spark's own is an
extra of Spark, whose jars come from Maven Central or from a directory.
"""

from collections.abc import Mapping
from enum import Enum
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from conveyor.pipeline.pipeline_errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COLUMNS = ("topic", "partition", "offset", "timestamp", "timestampType", "key", "value", "headers")
_ARTIFACT = "spark-sql-kafka-0-10_2.13"
_AS_THEY_ARE = (
    "startingOffsets startingTimestamp endingOffsets endingTimestamp maxOffsetsPerTrigger minPartitions"
    " maxRecordsPerPartition failOnDataLoss includeHeaders"
).split()
_RENAMED = {
    "bootstrap.servers": "kafka.bootstrap.servers",
    "topic": "subscribe",
    "topicPattern": "subscribePattern",
    "isolationLevel": "kafka.isolation.level",
}


class Connector(Enum):
    """Who reads topics. The value is Spark's name of the format."""

    CONVEYOR = "conveyor"
    KAFKA = "kafka"


def connector_settings(connector: Connector, jars: Path | None = None) -> dict[str, str]:
    """Return the settings of the session that a connector needs.

    jars: a directory with the jars of Spark's connector and of what it needs; by default Spark's own installation if it
    has them, otherwise Maven Central. Raises PipelineError if the directory does not have them.
    """
    if connector is Connector.CONVEYOR:
        return {}
    if jars is not None:
        found = sorted(str(jar) for jar in jars.glob("*.jar"))
        if not any(_ARTIFACT in jar for jar in found):
            raise PipelineError(f"{jars} has no {_ARTIFACT}-*.jar: name the directory with Spark's connector for Kafka")
        return {"spark.jars": ",".join(found)}
    if any(_spark_jars().glob(f"{_ARTIFACT}-*.jar")):
        return {}
    import pyspark

    return {"spark.jars.packages": f"org.apache.spark:{_ARTIFACT}:{pyspark.__version__}"}


def read_topics(spark: "SparkSession", connector: Connector, options: Mapping[str, str]) -> "DataFrame":
    """Return topics as a table with the columns of the data source. options: those of the data source.

    Raises PipelineError if Spark's connector does not have an option.
    """
    return _in_order(spark.read.format(connector.value).options(**_options(connector, options)).load())


def stream_topics(spark: "SparkSession", connector: Connector, options: Mapping[str, str]) -> "DataFrame":
    """Return topics as a stream; see `read_topics`. A checkpoint belongs to one connector."""
    return _in_order(spark.readStream.format(connector.value).options(**_options(connector, options)).load())


def _in_order(rows: "DataFrame") -> "DataFrame":
    return rows if tuple(rows.columns) == COLUMNS else rows.select(*COLUMNS)


def _options(connector: Connector, options: Mapping[str, str]) -> dict[str, str]:
    return dict(options) if connector is Connector.CONVEYOR else translated_for_kafka(options)


def translated_for_kafka(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options of Spark's connector for those of the data source, with the data source's defaults."""
    translated = {
        "includeHeaders": "true",
        "kafka.isolation.level": "read_committed",
        # Without a record at or after a time, the data source begins at the end.
        "startingOffsetsByTimestampStrategy": "latest",
    }
    for name, value in options.items():
        if name not in _RENAMED and name not in _AS_THEY_ARE and not name.startswith("kafka."):
            raise PipelineError(f"option '{name}' is not one of connector kafka: use connector conveyor")
        translated[_RENAMED.get(name, name)] = value
    return translated


def _spark_jars() -> Path:
    spec = find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).with_name("jars")
