"""Options that are wrong or missing are named, with what to write instead."""

from typing import TYPE_CHECKING

import pytest

from conveyor.testing import Broker
from pyspark_conveyor.brokers.raw_client import RawClient
from pyspark_conveyor.pipeline_errors import PipelineError
from pyspark_conveyor.source.source_options import EARLIEST, LATEST, parse_options
from tests.pipeline.topics import create_topic, read

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NEEDED = {"bootstrap.servers": "127.0.0.1:9092", "topic": "t"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bootstrap.servers": ""}, "option 'bootstrap.servers' is missing"),
        ({"topic": ""}, "option 'topic' is missing"),
        ({"topic": " , "}, "it takes names, with commas between them"),
        ({"startingOffsets": "newest"}, "option 'startingOffsets' is 'newest': it takes earliest, latest, or JSON"),
        ({"startingOffsets": "[1]"}, "option 'startingOffsets' is"),
        ({"startingOffsets": '{"t": {"0": -3}}'}, "option 'startingOffsets' is"),
        ({"endingOffsets": "earliest"}, "option 'endingOffsets' is 'earliest': it takes latest, or JSON"),
        ({"endingOffsets": '{"t": {"0": -2}}'}, "option 'endingOffsets' is"),
        ({"endingOffsets": '{"t": {"zero": 1}}'}, "option 'endingOffsets' is"),
        ({"endingOffsets": '{"t": {"0": "1"}}'}, "option 'endingOffsets' is"),
        ({"startingTimestamp": "today"}, "option 'startingTimestamp' is 'today': it takes a whole number"),
        ({"startingTimestamp": "9" * 20}, "it takes a whole number"),
        ({"endingTimestamp": "-1"}, "option 'endingTimestamp' is '-1': it takes a whole number"),
        ({"maxRecordsPerPartition": "0"}, "option 'maxRecordsPerPartition' is 0: it takes a number from 1"),
        ({"failOnDataLoss": "no"}, "option 'failOnDataLoss' is 'no': it takes true or false"),
        ({"includeHeader": "true"}, "unknown option 'includeheader': there are bootstrap.servers, topic"),
        ({"maxOffsetsPerTrigger": "10"}, "option 'maxOffsetsPerTrigger' is for readStream only"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, str], message: str) -> None:
    with pytest.raises(PipelineError) as raised:
        parse_options(NEEDED | options, streaming=False)
    assert message in str(raised.value)


def test_an_address_without_a_number_is_named() -> None:
    with pytest.raises(PipelineError, match=r"'localhost:kafka' is no address of brokers: write HOST:PORT"):
        RawClient("localhost:kafka", {})


@pytest.mark.parametrize("name", ["endingOffsets", "endingTimestamp"])
def test_a_stream_has_no_end(name: str) -> None:
    with pytest.raises(PipelineError, match=f"option '{name}' is for read only"):
        parse_options(NEEDED | {name: "1"}, streaming=True)


def test_names_of_sparks_kafka_source_work_too() -> None:
    given = {"kafka.bootstrap.servers": "a:1", "subscribe": "t, u", "KAFKA.client.id": "me"}
    options = parse_options(given, streaming=False)
    assert (options.bootstrap_servers, options.topics) == ("a:1", ("t", "u"))
    assert options.client["client.id"] == "me"


@pytest.mark.parametrize(("streaming", "start"), [(False, EARLIEST), (True, LATEST)])
def test_a_batch_starts_at_the_beginning_and_a_stream_at_the_end(streaming: bool, start: int) -> None:
    options = parse_options(NEEDED, streaming=streaming)
    assert (options.starting_offsets, options.ending_offsets) == (start, LATEST)


def test_an_unknown_topic_is_named(spark: "SparkSession", broker: Broker, topic: str) -> None:
    from pyspark.errors import AnalysisException

    with pytest.raises(AnalysisException, match=f"unknown topic '{topic}': see 'conveyor topic list'"):
        read(spark, broker, topic).collect()


def test_an_option_that_the_client_does_not_know_is_named(spark: "SparkSession", broker: Broker, topic: str) -> None:
    from pyspark.errors import AnalysisException

    create_topic(broker, topic)
    with pytest.raises(AnalysisException, match=r"option 'kafka\.no\.such\.thing' with the value '1' is not supported"):
        read(spark, broker, topic, **{"kafka.no.such.thing": 1}).collect()


def test_sparks_report_holds_the_message(spark: "SparkSession", broker: Broker, topic: str) -> None:
    from pyspark.errors import AnalysisException

    with pytest.raises(AnalysisException, match="PipelineError: option 'startingOffsets' is 'x'"):
        read(spark, broker, topic, startingOffsets="x").collect()
