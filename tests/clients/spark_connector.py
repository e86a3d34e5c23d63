"""The program of test_spark_kafka_connector.py: one session that writes, reads and streams; JSON lines out.

It is a process of its own because a process has one JVM, and this one has to start with the connector's jars.
"""

import json
import os
import re
import sys
from base64 import b64encode
from collections.abc import Iterable
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark_conveyor.brokers.brokers import Brokers
from pyspark_conveyor.jobs.archive import archive
from pyspark_conveyor.lake.lake_table import read_lake
from pyspark_conveyor.pipeline_errors import PipelineError
from pyspark_conveyor.spark.connectors import Connector, read_topics
from pyspark_conveyor.spark.session import spark_session
from tests.clients.records import sent
from tests.clients.spark_jobs import Jobs

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

PAGE = Path(__file__).parents[2] / "docs" / "jobs" / "connectors.md"
SCHEMA = "key binary, value binary, headers array<struct<key: string, value: binary>>"


class SparkConnector:
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


def compare_connectors(spark: "SparkSession", bootstrap: str, topic: str) -> None:
    """Read a topic with Conveyor's data source and with Spark's own, as jobs do."""
    options = {"bootstrap.servers": bootstrap, "topic": topic}
    ours, theirs = (read_topics(spark, each, options) for each in (Connector.CONVEYOR, Connector.KAFKA))
    different = ours.exceptAll(theirs).count() + theirs.exceptAll(ours).count()
    types = [[field.dataType.simpleString() for field in table.schema.fields] for table in (ours, theirs)]
    print(json.dumps({"step": "both", "count": ours.count(), "different": different, "same": types[0] == types[1]}))


def archive_with_both(spark: "SparkSession", sender: SparkConnector, bootstrap: str, topic: str, lake: Path) -> None:
    """Archive a topic with Spark's connector, go on with Conveyor's data source, and try to go back."""

    brokers = Brokers(bootstrap_servers=bootstrap)

    def run(connector: Connector) -> int:
        done = archive(lambda: spark, brokers, [topic], lake, 4_000, lambda _, __: None, connector=connector)
        return done.records

    written = [run(Connector.KAFKA), run(Connector.KAFKA)]
    sender.write(topic, range(10))
    written.append(run(Connector.CONVEYOR))
    refusal = ""
    try:
        run(Connector.KAFKA)
    except PipelineError as error:
        refusal = str(error)
    in_lake = read_lake(spark, lake).count()
    print(json.dumps({"step": "archive", "written": written, "in_lake": in_lake, "refusal": refusal}))


def run_example(bootstrap: str, topic: str, jars: str) -> None:
    """Run the program of docs/jobs/connectors.md, in the session that is there."""
    example = re.search(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert example is not None
    program = example.group(1).replace("127.0.0.1:9092", bootstrap).replace('"orders"', repr(topic))
    with redirect_stdout(StringIO()) as printed:
        exec(program.replace("/opt/spark-kafka", str(Path(jars.partition(",")[0]).parent)), {})
    print(json.dumps({"step": "page", "printed": printed.getvalue()}))


def main(bootstrap: str, topic: str, count: str, jars: str, checkpoint: str, http: str) -> None:
    os.environ["JDK_JAVA_OPTIONS"] = "-XX:TieredStopAtLevel=1"  # As in tests/pipeline: short runs are faster without.
    spark = spark_session("connector", "local[2]", spark__jars=jars)
    connector = SparkConnector(spark, bootstrap, checkpoint)
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
    run_example(bootstrap, topic, jars)
    compare_connectors(spark, bootstrap, topic)
    archive_with_both(spark, connector, bootstrap, topic, Path(checkpoint).with_name("lake"))
    directory = Path(checkpoint).with_name("jobs")
    directory.mkdir()
    jobs = Jobs(bootstrap_servers=bootstrap, http=http, jars=Path(jars.partition(",")[0]).parent, directory=directory)
    jobs.fill()
    for step in jobs.steps():
        print(json.dumps(step))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
