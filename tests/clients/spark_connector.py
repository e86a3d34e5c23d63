"""The program of test_spark_kafka_connector.py: one session that writes, reads and streams; JSON lines out.

It is a process of its own because a process has one JVM, and this one has to start with the connector's jars.
"""

import json
import sys
from base64 import b64encode
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from conveyor.pipeline.spark.session import spark_session
from tests.clients.records import sent

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

SCHEMA = "key binary, value binary, headers array<struct<key: string, value: binary>>"


class Connector:
    """Spark's Kafka source and sink for one broker."""

    def __init__(self, spark: "SparkSession", bootstrap: str, checkpoint: str) -> None:
        self._spark = spark
        self._options = {"kafka.bootstrap.servers": bootstrap, "includeHeaders": "true"}
        self._checkpoint = checkpoint

    def write(self, topic: str, numbers: Iterable[int]) -> None:
        rows = [(each.key, each.value, list(each.headers)) for each in map(sent, numbers)]
        frame = self._spark.createDataFrame(rows, SCHEMA).repartition(2)
        frame.write.format("kafka").options(**self._options, topic=topic).save()

    def read(self, topic: str, **options: str) -> "DataFrame":
        return self._spark.read.format("kafka").options(**self._options, subscribe=topic, **options).load()

    def copy(self, source: str, target: str) -> int:
        """Stream what has not been copied yet. Returns in how many batches."""
        reader = self._spark.readStream.format("kafka").options(**self._options)
        frame = reader.options(subscribe=source, startingOffsets="earliest", maxOffsetsPerTrigger="4000").load()
        writer = frame.select("key", "value", "headers").writeStream.format("kafka").options(**self._options)
        query = writer.option("topic", target).option("checkpointLocation", self._checkpoint)
        running = query.trigger(availableNow=True).start()
        running.awaitTermination()
        return len([each for each in running.recentProgress if each.numInputRows])


def line(row: "Row") -> dict[str, Any]:
    def text(data: bytes | None) -> str | None:
        return None if data is None else b64encode(data).decode()

    headers = [{"name": each.key, "value": text(each.value)} for each in row.headers or ()]
    place = {"partition": row.partition, "offset": row.offset, "timestamp": int(row.timestamp.timestamp() * 1000)}
    return {"key": text(row.key), "value": text(row.value), "headers": headers, **place}


def say(step: str, frame: "DataFrame") -> None:
    for row in frame.collect():
        print(json.dumps({"step": step, **line(row)}))


def main(bootstrap: str, topic: str, count: str, jars: str, checkpoint: str) -> None:
    spark = spark_session("connector", "local[2]", spark__jars=jars)
    connector = Connector(spark, bootstrap, checkpoint)
    half = int(count) // 2
    connector.write(topic, range(half))
    say("batch", connector.read(topic))
    print(json.dumps({"step": "batches", "count": connector.copy(topic, f"{topic}-copy")}))
    cut = connector.read(topic).agg({"timestamp": "max"}).collect()[0][0]
    connector.write(topic, range(half, 2 * half))
    since = str(int(cut.timestamp() * 1000) + 1)
    say("since", connector.read(topic, startingTimestamp=since))
    print(json.dumps({"step": "batches", "count": connector.copy(topic, f"{topic}-copy")}))
    say("copy", connector.read(f"{topic}-copy"))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
