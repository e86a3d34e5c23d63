"""The program of test_local_cluster.py: reads, streams, writes and archives on a master; JSON lines out.

It is a process of its own because a process has one JVM.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from conveyor.testing import Broker
from pyspark_conveyor.spark.session import spark_session
from pyspark_conveyor.spark.stream_runs import run_stream
from tests.pipeline.lakes import archive, places
from tests.pipeline.topics import create_topic, numbered, numbers_of, produce, read

COUNT = 1_000


def main(master: str, directory: str) -> None:
    spark = spark_session("test", master, spark__sql__shuffle__partitions="2")
    with Broker() as broker:
        options = {"bootstrap.servers": broker.bootstrap_servers}
        create_topic(broker, "source", partitions=2)
        create_topic(broker, "target", partitions=2)
        produce(broker, "source", numbered(range(COUNT), partitions=2))
        say("batch", sorted(numbers_of(read(spark, broker, "source"))))
        stream = spark.readStream.format("conveyor").options(**options, topic="source", startingOffsets="earliest")
        rows = stream.load().select("value", "partition")
        writer = rows.writeStream.format("conveyor").options(**options, topic="target", delivery="exactly-once")
        run_stream(writer.option("checkpointLocation", f"{directory}/checkpoint").trigger(availableNow=True))
        say("stream", sorted(numbers_of(read(spark, broker, "target"))))
        archive(broker, Path(directory) / "lake", "source", "target")
        say("lake", sorted({offset for _, _, offset in places(Path(directory) / "lake")}))
        where = spark.sparkContext.parallelize(range(2), 2).map(lambda _: str(__import__("conveyor").__file__))
        say("code", sorted(set(where.collect())))
    spark.stop()


def say(step: str, found: Sequence[object]) -> None:
    print(json.dumps({"step": step, "found": found}))


if __name__ == "__main__":
    main(*sys.argv[1:])
