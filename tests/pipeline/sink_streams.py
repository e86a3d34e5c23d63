"""A stream from one topic to another, in batches of fifty records, that can be run again."""

from pathlib import Path
from typing import TYPE_CHECKING

from pyspark_conveyor.spark.stream_runs import run_stream
from tests.pipeline.topics import connection_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class SinkStream:
    """Reads what is there and ends; the checkpoint stays from one run to the next."""

    def __init__(self, spark: "SparkSession", bootstrap: str, source: str, target: str, checkpoint: Path | str) -> None:
        self._spark = spark
        self._connection, self._source, self._target = connection_options(bootstrap), source, target
        self.checkpoint = Path(checkpoint)

    def run(self, sink: str = "conveyor", delivery: str = "exactly-once", **options: str) -> None:
        stream = (
            self._spark.readStream.format("conveyor")
            .options(**self._connection)
            .option("topic", self._source)
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", "50")
            .load()
        )
        run_stream(
            stream.select("key", "value", "timestamp")
            .writeStream.format(sink)
            .options(**self._connection)
            .option("topic", self._target)
            .option("delivery", delivery)
            .options(**options)
            .option("checkpointLocation", str(self.checkpoint))
            .trigger(availableNow=True)
        )
