"""Where a batch read starts and ends: offsets, names and times, half-open, for each partition.

The reader is asked as Spark's tasks ask it, all ranges in this process.
"""

import json

import pytest

from conveyor.testing import Broker
from pyspark_conveyor.pipeline_errors import DataLossError, PipelineError
from pyspark_conveyor.spark.spark_source import ConveyorDataSource
from tests.pipeline.topics import BASE_TIME_MS, create_topic, numbered, produce


@pytest.fixture(scope="module")
def filled(broker: Broker) -> None:
    """Even numbers to 98 in partition 0, odd ones to 99 in partition 1, a second apart."""
    create_topic(broker, "bounds", partitions=2)
    produce(broker, "bounds", numbered(range(100), partitions=2))


def numbers_read(broker: Broker, **options: object) -> list[int]:
    """All values that a batch read brings, sorted."""
    given = {"bootstrap.servers": broker.bootstrap_servers, "topic": "bounds"}
    reader = ConveyorDataSource(given | {name: str(value) for name, value in options.items()}).reader(None)
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    return sorted(int(value) for batch in batches for value in batch.column("value").to_pylist())


def at(**offsets: int) -> str:
    return json.dumps({"bounds": {name.removeprefix("p"): offset for name, offset in offsets.items()}})


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({}, range(100)),
        ({"startingOffsets": "earliest", "endingOffsets": "latest"}, range(100)),
        ({"startingOffsets": "latest"}, []),
        ({"startingOffsets": at(p0=49, p1=48)}, [97, 98, 99]),
        ({"startingOffsets": at(p0=-1, p1=-2)}, range(1, 100, 2)),
        ({"startingOffsets": at(p0=50)}, range(1, 100, 2)),
        ({"endingOffsets": at(p0=2, p1=1)}, [0, 1, 2]),
        ({"endingOffsets": at(p0=0)}, range(1, 100, 2)),
        ({"startingOffsets": at(p0=10, p1=10), "endingOffsets": at(p0=11, p1=10)}, [20]),
        ({"startingOffsets": at(p0=10, p1=10), "endingOffsets": at(p0=5, p1=5)}, []),
        ({"startingTimestamp": BASE_TIME_MS + 97_000}, [97, 98, 99]),
        ({"startingTimestamp": BASE_TIME_MS + 96_001}, [97, 98, 99]),
        ({"endingTimestamp": BASE_TIME_MS + 3_000}, [0, 1, 2]),
        ({"startingTimestamp": BASE_TIME_MS + 5_000, "endingTimestamp": BASE_TIME_MS + 8_000}, [5, 6, 7]),
        ({"startingTimestamp": BASE_TIME_MS + 100_000}, []),
        ({"endingTimestamp": BASE_TIME_MS + 100_000}, range(100)),
        ({"startingTimestamp": 0, "startingOffsets": "latest"}, range(100)),
    ],
)
def test_bounds_choose_exactly_these_records(
    broker: Broker, filled: None, options: dict[str, object], wanted: range | list[int]
) -> None:
    assert numbers_read(broker, **options) == list(wanted)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"startingOffsets": at(p0=51)}, DataLossError, "has offsets 0 to 50, but 51 to 50 were requested"),
        ({"endingOffsets": at(p1=60)}, DataLossError, "has offsets 0 to 50, but 0 to 60 were requested"),
        ({"startingOffsets": at(p7=0)}, PipelineError, "partition 7 of 'bounds', which does not exist or is not read"),
        (
            {"endingOffsets": '{"other": {"0": 1}}'},
            PipelineError,
            "partition 0 of 'other', which does not exist",
        ),
    ],
)
def test_bounds_outside_the_topic_are_an_error(
    broker: Broker, filled: None, options: dict[str, object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        numbers_read(broker, **options)


def test_records_that_are_not_there_are_left_out_on_request(broker: Broker, filled: None) -> None:
    assert numbers_read(broker, endingOffsets=at(p0=60, p1=60), failOnDataLoss="false") == list(range(100))
