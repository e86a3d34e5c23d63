"""A topic as a stream: a checkpoint goes on with exactly the records that came since."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from conveyor.testing import Broker
from pyspark_conveyor.spark.stream_runs import run_stream
from tests.pipeline.topics import (
    BASE_TIME_MS,
    HasAddress,
    add_partitions,
    connection_options,
    create_topic,
    delete_records,
    delete_topic,
    numbered,
    numbers_of,
    produce,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


class Stream:
    """Topics that are read, as far as they reach, into files; the checkpoint stays from one run to the next."""

    def __init__(self, spark: "SparkSession", broker: HasAddress, topic: str, directory: Path) -> None:
        self.spark = spark
        self._reading = connection_options(broker.bootstrap_servers) | {"topic": topic}
        self.table, self.checkpoint = directory / "table", directory / "checkpoint"

    def run(self, **options: object) -> list[int]:
        """Read what is there, and return the records of each micro-batch."""
        given = self._reading | {name: str(value) for name, value in options.items()}
        query = run_stream(
            self.spark.readStream.format("conveyor")
            .options(**given)
            .load()
            .writeStream.format("parquet")
            .option("path", str(self.table))
            .option("checkpointLocation", str(self.checkpoint))
            .trigger(availableNow=True)
        )
        return [each["numInputRows"] for each in query.recentProgress if each["numInputRows"]]

    def numbers(self) -> list[int]:
        return sorted(numbers_of(self.spark.read.parquet(str(self.table))))


@pytest.fixture
def stream(spark: "SparkSession", broker: Broker, topic: str, tmp_path: Path) -> Stream:
    create_topic(broker, topic, partitions=2)
    return Stream(spark, broker, topic, tmp_path)


def test_a_checkpoint_goes_on_with_exactly_the_new_records(stream: Stream, broker: Broker, topic: str) -> None:
    check_checkpoint(stream, broker, topic)


def check_checkpoint(stream: Stream, broker: HasAddress, topic: str) -> None:
    """A checkpoint goes on with exactly the new records."""
    produce(broker, topic, numbered(range(100), partitions=2))
    assert sum(stream.run(startingOffsets="earliest")) == 100
    produce(broker, topic, numbered(range(100, 150), partitions=2))
    assert sum(stream.run(startingOffsets="earliest")) == 50
    assert stream.run(startingOffsets="earliest") == []
    assert stream.numbers() == list(range(150))


def test_a_stream_starts_with_what_comes_after_it_by_default(stream: Stream, broker: Broker, topic: str) -> None:
    produce(broker, topic, numbered(range(10), partitions=2))
    assert stream.run() == []
    produce(broker, topic, numbered(range(10, 15), partitions=2))
    assert sum(stream.run()) == 5
    assert stream.numbers() == list(range(10, 15))


@pytest.mark.parametrize(
    ("option", "value"),
    [("startingTimestamp", BASE_TIME_MS + 7_000), ("startingOffsets", {"0": 4, "1": 3})],
    ids=["time", "offsets"],
)
def test_a_stream_starts_where_it_is_told_to(
    stream: Stream, broker: Broker, topic: str, option: str, value: object
) -> None:
    produce(broker, topic, numbered(range(10), partitions=2))
    stream.run(**{option: json.dumps({topic: value}) if isinstance(value, dict) else value})
    assert stream.numbers() == [7, 8, 9]


def test_a_rate_limit_cuts_a_backlog_into_batches(stream: Stream, broker: Broker, topic: str) -> None:
    produce(broker, topic, numbered(range(100), partitions=2))
    batches = stream.run(startingOffsets="earliest", maxOffsetsPerTrigger=40)
    assert batches == [40, 40, 20]
    assert stream.numbers() == list(range(100))


def test_a_batch_that_was_cut_off_is_read_again_as_it_was(stream: Stream, broker: Broker, topic: str) -> None:
    produce(broker, topic, numbered(range(100), partitions=2))
    stream.run(startingOffsets="earliest")
    for directory, name in ((stream.checkpoint / "commits", "0"), (stream.table / "_spark_metadata", "0")):
        (directory / name).unlink()
        (directory / f".{name}.crc").unlink()
    produce(broker, topic, numbered(range(100, 110), partitions=2))
    assert stream.run(startingOffsets="earliest") == [100, 10]
    assert stream.numbers() == list(range(110))


def test_a_topic_that_was_made_anew_is_an_error(stream: Stream, broker: Broker, topic: str) -> None:
    from pyspark.errors import StreamingQueryException

    produce(broker, topic, numbered(range(10), partitions=2))
    stream.run(startingOffsets="earliest")
    delete_topic(broker, topic)
    create_topic(broker, topic, partitions=2)
    with pytest.raises(StreamingQueryException, match="was recreated, and records of the old one may be lost"):
        stream.run(startingOffsets="earliest")


def test_records_that_were_deleted_unread_are_an_error_or_left_out(stream: Stream, broker: Broker, topic: str) -> None:
    from pyspark.errors import StreamingQueryException

    produce(broker, topic, numbered(range(10), partitions=2))
    stream.run(startingOffsets="earliest")
    produce(broker, topic, numbered(range(10, 20), partitions=2))
    delete_records(broker, topic, before=7, partitions=2)
    with pytest.raises(StreamingQueryException, match="has offsets 7 to 10, but 5 to 10 were requested"):
        stream.run()
    stream.run(failOnDataLoss="false")
    assert stream.numbers() == [*range(10), *range(14, 20)]


def test_a_partition_that_is_added_later_is_read_from_its_start(stream: Stream, broker: Broker, topic: str) -> None:
    produce(broker, topic, numbered(range(10), partitions=2))
    stream.run(startingOffsets="earliest")
    add_partitions(broker, topic, 3)
    produce(broker, topic, numbered(range(10, 19), partitions=3))
    assert sum(stream.run()) == 9
    assert stream.numbers() == list(range(19))


def test_a_wrong_option_ends_the_stream_with_its_name(stream: Stream) -> None:
    from pyspark.errors import StreamingQueryException

    with pytest.raises(StreamingQueryException, match="option 'maxOffsetsPerTrigger' is 'many'"):
        stream.run(maxOffsetsPerTrigger="many")


def test_a_running_stream_brings_records_as_they_come(stream: Stream, broker: Broker, topic: str) -> None:
    produce(broker, topic, numbered(range(5), partitions=2))
    seen: list[int] = []
    writer = (
        stream.spark.readStream.format("conveyor")
        .option("bootstrap.servers", broker.bootstrap_servers)
        .option("topic", topic)
        .option("startingOffsets", "earliest")
        .load()
        .writeStream.foreachBatch(lambda table, _: seen.extend(numbers_of(table)))
        .option("checkpointLocation", str(stream.checkpoint))
    )

    def watch(query: "StreamingQuery") -> None:
        try:
            query.processAllAvailable()
            assert sorted(seen) == list(range(5))
            produce(broker, topic, numbered(range(5, 9), partitions=2))
            query.processAllAvailable()
            assert sorted(seen) == list(range(9))
        finally:
            query.stop()

    run_stream(writer, watch)
