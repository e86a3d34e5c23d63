"""The progress of a stream as a consumer group: where lag is looked for."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, TopicPartition

from conveyor.testing import Broker
from pyspark_conveyor.spark.stream_runs import run_stream
from tests.pipeline.topics import create_topic, numbered, produce

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def run(spark: "SparkSession", broker: Broker, topic: str, group: str, directory: Path) -> None:
    run_stream(
        spark.readStream.format("conveyor")
        .option("bootstrap.servers", broker.bootstrap_servers)
        .option("topic", topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", "30")
        .option("group", group)
        .load()
        .writeStream.format("noop")
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(availableNow=True)
    )


def committed(broker: Broker, topic: str, group: str) -> list[int]:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": group})
    offsets = [place.offset for place in consumer.committed([TopicPartition(topic, number) for number in range(2)], 10)]
    consumer.close()
    return offsets


def test_the_end_of_each_committed_batch_is_the_groups_offset(
    spark: "SparkSession", broker: Broker, topic: str, tmp_path: Path
) -> None:
    create_topic(broker, topic, partitions=2)
    produce(broker, topic, numbered(range(99), partitions=2))
    run(spark, broker, topic, f"{topic}-group", tmp_path)
    assert committed(broker, topic, f"{topic}-group") == [50, 49]
    produce(broker, topic, numbered(range(10), partitions=2))
    run(spark, broker, topic, f"{topic}-group", tmp_path)
    assert committed(broker, topic, f"{topic}-group") == [55, 54]


def test_a_group_with_members_is_refused(spark: "SparkSession", broker: Broker, topic: str, tmp_path: Path) -> None:
    create_topic(broker, topic, partitions=2)
    produce(broker, topic, numbered(range(10), partitions=2))
    settings = {"bootstrap.servers": broker.bootstrap_servers, "group.id": topic, "auto.offset.reset": "earliest"}
    consumer = Consumer(settings)
    consumer.subscribe([topic])
    assert consumer.poll(30) is not None
    with pytest.raises(Exception, match=f"group '{topic}' refuses the stream's progress"):
        run(spark, broker, topic, topic, tmp_path)
    consumer.close()
