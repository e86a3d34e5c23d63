"""Records that are deleted before, or while, they are read: an error, or on request the rest."""

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from conveyor.testing import Broker
from pyspark_conveyor.pipeline_errors import DataLossError
from pyspark_conveyor.source.batch_reader import BatchReader
from pyspark_conveyor.source.offset_ranges import OffsetRange
from pyspark_conveyor.source.source_options import SourceOptions
from tests.pipeline.topics import Sent, create_topic, delete_records, numbered, numbers_of, produce, read

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_the_beginning_is_the_first_record_that_is_left(spark: "SparkSession", broker: Broker, topic: str) -> None:
    create_topic(broker, topic)
    produce(broker, topic, numbered(range(100)))
    delete_records(broker, topic, before=40)
    assert numbers_of(read(spark, broker, topic)) == list(range(40, 100))


def test_a_start_that_was_deleted_is_an_error_or_left_out(spark: "SparkSession", broker: Broker, topic: str) -> None:
    from pyspark.errors import AnalysisException

    create_topic(broker, topic)
    produce(broker, topic, numbered(range(100)))
    delete_records(broker, topic, before=40)
    start = f'{{"{topic}": {{"0": 30}}}}'
    with pytest.raises(AnalysisException, match="has offsets 40 to 100, but 30 to 100 were requested"):
        read(spark, broker, topic, startingOffsets=start).collect()
    rest = read(spark, broker, topic, startingOffsets=start, failOnDataLoss="false")
    assert numbers_of(rest) == list(range(40, 100))


def test_a_range_that_was_deleted_after_planning_goes_on_behind_the_gap(broker: Broker, topic: str) -> None:
    create_topic(broker, topic)
    produce(broker, topic, numbered(range(100)))
    delete_records(broker, topic, before=40)
    options = SourceOptions(bootstrap_servers=broker.bootstrap_servers, topics=(topic,))
    planned = OffsetRange(topic, 0, 10, 90)
    with pytest.raises(DataLossError, match="offset 10 of partition 0"):
        list(BatchReader(options).read(planned))
    batches = BatchReader(replace(options, fail_on_data_loss=False)).read(planned)
    assert [int(value) for batch in batches for value in batch.column("value").to_pylist()] == list(range(40, 90))


def test_batches_of_large_records_stay_small(broker: Broker, topic: str) -> None:
    large = bytes(900_000)
    create_topic(broker, topic)
    produce(broker, topic, [Sent(value=large)] * 60)
    options = SourceOptions(bootstrap_servers=broker.bootstrap_servers, topics=(topic,))
    batches = list(BatchReader(options).read(OffsetRange(topic, 0, 0, 60)))
    assert sum(batch.num_rows for batch in batches) == 60
    assert max(batch.num_rows for batch in batches) <= 20
