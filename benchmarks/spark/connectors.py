"""The two connectors that are compared: Conveyor's data source, and Spark's own for Kafka, which runs in the JVM."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

COLUMNS = ("topic", "partition", "offset", "timestamp", "timestampType", "key", "value")
"""Of both connectors, with the same types. The headers are left out where their cost is not the question."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Connector:
    """A connector in a session, for one broker.

    name: `conveyor` or `kafka`, Spark's name of the format. directory: for what streams write. data_dir: the broker's.
    """

    name: str
    spark: "SparkSession"
    servers: str
    directory: Path
    data_dir: Path

    def read(self, topic: str, *, headers: bool) -> "DataFrame":
        """All records of a topic, as they are committed."""
        return self.spark.read.format(self.name).options(**self._reading(topic), includeHeaders=str(headers)).load()

    def read_files(self, topic: str, *, headers: bool) -> "DataFrame":
        """All records of a topic: Conveyor's from the broker's files, the other's from the broker."""
        if self.name == "kafka":
            return self.read(topic, headers=headers)
        options = {"dataDir": str(self.data_dir), "topic": topic, "includeHeaders": str(headers)}
        return self.spark.read.format(self.name).options(**options).load()

    def stream(self, topic: str, records: int) -> "DataFrame":
        """A stream from a topic's beginning, in micro-batches of so many records."""
        reader = self.spark.readStream.format(self.name).options(**self._reading(topic), includeHeaders="false")
        return reader.options(startingOffsets="earliest", maxOffsetsPerTrigger=str(records)).load()

    def to_parquet(self, topic: str, records: int) -> "StreamingQuery":
        """Stream all that a topic has into zstd Parquet files."""
        target = self.directory / uuid4().hex
        writer = self.stream(topic, records).select(*COLUMNS).writeStream.format("parquet")
        writer = writer.option("path", str(target / "lake")).option("checkpointLocation", str(target / "checkpoint"))
        return _finished(writer.trigger(availableNow=True).start())

    def in_batches(self, topic: str, records: int) -> "StreamingQuery":
        """Stream all that a topic has in micro-batches, and throw it away."""
        writer = self.stream(topic, records).writeStream.format("noop")
        writer = writer.option("checkpointLocation", str(self.directory / uuid4().hex))
        return _finished(writer.trigger(availableNow=True).start())

    def write(self, table: "DataFrame", topic: str) -> None:
        """Append rows of (key, value) or (value) to a topic."""
        address = "kafka.bootstrap.servers" if self.name == "kafka" else "bootstrap.servers"
        table.write.format(self.name).mode("append").option(address, self.servers).option("topic", topic).save()

    def _reading(self, topic: str) -> dict[str, str]:
        if self.name == "kafka":
            isolation = {"kafka.isolation.level": "read_committed"}
            return {"kafka.bootstrap.servers": self.servers, "subscribe": topic} | isolation
        return {"bootstrap.servers": self.servers, "topic": topic}


def discard(table: "DataFrame") -> None:
    table.write.format("noop").mode("overwrite").save()


def _finished(query: "StreamingQuery") -> "StreamingQuery":
    query.awaitTermination()
    return query
