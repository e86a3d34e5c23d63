"""The two connectors that read and write topics for jobs: Conveyor's data source, and Spark's own for Kafka, which
runs in Java.

Jobs are written for the columns of the data source (`source.rows`), which both return in the same order, and for the
options of the data source (`source.source_options`, `sink.sink_options`), which are translated here. Spark's own is an
extra of Spark, whose jars come from Maven Central or from a directory.
"""

from collections.abc import Mapping
from enum import Enum
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark_conveyor.pipeline_errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.readwriter import DataFrameWriter
    from pyspark.sql.streaming.readwriter import DataStreamWriter

AT_LEAST_ONCE_ONLY = (
    "Spark's own connector writes at least once only: choose delivery at-least-once, or write with connector conveyor"
)
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


_LIBRDKAFKAS = tuple(
    f"kafka.{name}"
    for name in "ssl.ca.location ssl.certificate.location ssl.key.location sasl.username sasl.password".split()
)


class Connector(Enum):
    """The connectors that read and write topics. The value is Spark's name of the format."""

    CONVEYOR = "conveyor"
    KAFKA = "kafka"


def connector_settings(connector: Connector, jars: Path | None = None) -> dict[str, str]:
    """Return the settings of the session that a connector needs.

    jars: a directory with the jars of Spark's connector and of what it needs; by default Spark's own installation if it
    has them, otherwise Maven Central. Raises PipelineError if the directory does not have them.
    """
    if connector is Connector.CONVEYOR:
        if jars is not None:
            raise PipelineError("a directory of jars is for connector kafka: choose it, or leave out the directory")
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


def batch_writer(rows: "DataFrame", connector: Connector, options: Mapping[str, str]) -> "DataFrameWriter":
    """Return what writes a table to topics. options: those of the data source as a target.

    Raises PipelineError for what Spark's connector cannot do: exactly-once delivery, timestamps, an option.
    """
    return rows.write.format(connector.value).mode("append").options(**_sink_options(rows, connector, options))


def stream_writer(rows: "DataFrame", connector: Connector, options: Mapping[str, str]) -> "DataStreamWriter":
    """Return what writes a stream to topics; see `batch_writer`."""
    return rows.writeStream.format(connector.value).options(**_sink_options(rows, connector, options))


def _in_order(rows: "DataFrame") -> "DataFrame":
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own habit

    if tuple(rows.columns) == COLUMNS:
        return rows
    if "headers" not in rows.columns:  # Spark's connector leaves the column out, the data source leaves it empty.
        rows = rows.withColumn("headers", F.lit(None).cast("array<struct<key:string,value:binary>>"))
    return rows.select(*COLUMNS)


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
        _check_names(name)
        translated[_RENAMED.get(name, name)] = value
    return translated


def _check_names(name: str) -> None:
    """Raise PipelineError for an option of librdkafka that Java's client would ignore."""
    if name in _LIBRDKAFKAS:
        raise PipelineError(
            f"option '{name}' is librdkafka's: connector kafka takes the names of Java's client, and no"
            " --client-config; use connector conveyor"
        )


def sink_options_for_kafka(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options of Spark's connector as a target for those of the data source. Raises PipelineError."""
    if options.get("delivery") == "exactly-once":
        raise PipelineError(AT_LEAST_ONCE_ONLY)
    translated = {}
    for name, value in options.items():
        if name not in ("bootstrap.servers", "topic", "delivery") and not name.startswith("kafka."):
            raise PipelineError(f"option '{name}' is not one of connector kafka: use connector conveyor")
        _check_names(name)
        if name != "delivery":
            translated["kafka.bootstrap.servers" if name == "bootstrap.servers" else name] = value
    return translated


def _sink_options(rows: "DataFrame", connector: Connector, options: Mapping[str, str]) -> dict[str, str]:
    if connector is Connector.CONVEYOR:
        return dict(options)
    if "timestamp" in rows.columns:
        raise PipelineError(
            "Spark's own connector writes no timestamps: leave out the column timestamp, or write with connector"
            " conveyor"
        )
    return sink_options_for_kafka(options)


def _spark_jars() -> Path:
    spec = find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).with_name("jars")
