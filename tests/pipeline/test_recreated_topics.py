"""Topics that are deleted and created again while they are read, and checkpoints of other sources.

The readers are asked as Spark asks them, in this process.
"""

from typing import Any

import pytest
from confluent_kafka import OFFSET_INVALID, Consumer, TopicPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable

from conveyor.testing import Broker
from pyspark_conveyor.pipeline_errors import DataLossError, PipelineError
from pyspark_conveyor.source.stream_reader import StreamReader
from pyspark_conveyor.spark.spark_source import ConveyorDataSource
from tests.pipeline.topics import create_topic, delete_topic, numbered, produce

ALL = ReadAllAvailable()


def stream(broker: Broker, topic: str, **options: str) -> StreamReader:
    given = {"bootstrap.servers": broker.bootstrap_servers, "topic": topic, "startingOffsets": "earliest", **options}
    reader = ConveyorDataSource(given).streamReader(None)
    assert isinstance(reader, StreamReader)
    return reader


def fill(broker: Broker, topic: str, count: int) -> None:
    create_topic(broker, topic)
    produce(broker, topic, numbered(range(count)))


def recreate(broker: Broker, topic: str, count: int) -> None:
    delete_topic(broker, topic)
    fill(broker, topic, count)


def count_read(reader: StreamReader, start: Any, end: Any) -> int:
    return sum(batch.num_rows for part in reader.partitions(start, end) for batch in reader.read(part))


@pytest.mark.parametrize("lossy", ["true", "false"])
def test_a_task_does_not_read_the_records_of_another_topic(broker: Broker, topic: str, lossy: str) -> None:
    fill(broker, topic, 10)
    reader = stream(broker, topic, failOnDataLoss=lossy)
    start = reader.initialOffset()
    planned = reader.partitions(start, reader.latestOffset(start, ALL))
    recreate(broker, topic, 20)
    with pytest.raises(DataLossError, match=f"topic '{topic}' was recreated before its records were read"):
        [list(reader.read(part)) for part in planned]


def test_a_topic_that_was_recreated_after_a_run_began_is_read_by_the_next_run(broker: Broker, topic: str) -> None:
    fill(broker, topic, 10)
    reader = stream(broker, topic, failOnDataLoss="false")
    start = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    recreate(broker, topic, 4)
    end = reader.latestOffset(start, ALL)
    assert count_read(reader, start, end) == 0
    produce(broker, topic, numbered(range(4)))
    following = stream(broker, topic, failOnDataLoss="false")
    assert count_read(following, end, following.latestOffset(end, ALL)) == 8


def test_progress_is_committed_for_the_topics_that_are_left(broker: Broker, topic: str) -> None:
    for name in (f"{topic}-a", f"{topic}-b", f"{topic}-c"):
        fill(broker, name, 5)
    given = {"bootstrap.servers": broker.bootstrap_servers, "topicPattern": f"{topic}-.*", "group": topic}
    reader = ConveyorDataSource(given | {"failOnDataLoss": "false"}).streamReader(None)
    start = reader.initialOffset()
    delete_topic(broker, f"{topic}-a")
    recreate(broker, f"{topic}-b", 2)
    end = reader.latestOffset(start, ALL)
    assert {name: end.get(f"{topic}-{name}") for name in "abc"} == {"a": None, "b": {"0": 2}, "c": {"0": 5}}
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": topic})
    places = [TopicPartition(f"{topic}-{name}", 0) for name in "bc"]
    assert [place.offset for place in consumer.committed(places, 10)] == [OFFSET_INVALID, 5]
    consumer.close()


@pytest.mark.parametrize("stored", [{"batch": 3, "messages": []}, {"t": {"zero": 1}}, {"t": {"0": None}}])
def test_the_checkpoint_of_another_source_is_refused(broker: Broker, stored: Any) -> None:
    with pytest.raises(PipelineError, match="the checkpoint does not hold the offsets of topics"):
        stream(broker, "any").latestOffset(stored, ALL)


def test_the_checkpoint_of_another_topic_is_refused(broker: Broker, topic: str) -> None:
    fill(broker, topic, 1)
    with pytest.raises(DataLossError, match="topic 'other' of the checkpoint was deleted, or is not read any more"):
        stream(broker, topic).latestOffset({"other": {"0": 5}}, ALL)
