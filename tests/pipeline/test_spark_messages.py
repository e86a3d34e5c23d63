"""What users of Spark see of an error: its message, in one line, without the traceback of the worker that raised it."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException

from conveyor.testing import Broker
from pyspark_conveyor.spark.stream_runs import run_stream
from tests.pipeline.topics import create_topic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def line_of(error: BaseException) -> str:
    text = str(error)
    assert "Traceback" not in text
    [line] = [line for line in text.splitlines() if "pyspark_conveyor" in line]
    return line


def test_errors_of_reads_have_no_traceback(spark: "SparkSession", broker: Broker) -> None:
    reader = spark.read.format("conveyor").option("topic", "nothing")
    with pytest.raises(PySparkException) as raised:
        reader.load().count()
    assert "option 'bootstrap.servers' is missing" in line_of(raised.value)
    with pytest.raises(PySparkException) as raised:
        reader.option("bootstrap.servers", broker.bootstrap_servers).load().count()
    assert line_of(raised.value).endswith("unknown topic 'nothing': see 'conveyor topic list'")


def test_errors_of_streams_have_no_traceback(spark: "SparkSession", broker: Broker, tmp_path: Path) -> None:
    stream = spark.readStream.format("conveyor").option("bootstrap.servers", broker.bootstrap_servers)
    writer = stream.option("topic", "nothing").load().writeStream.format("noop")
    with pytest.raises(PySparkException) as raised:
        run_stream(writer.option("checkpointLocation", str(tmp_path)))
    assert line_of(raised.value).endswith("unknown topic 'nothing': see 'conveyor topic list'")


def test_errors_of_tasks_have_no_traceback(spark: "SparkSession", broker: Broker, topic: str) -> None:
    create_topic(broker, topic)
    rows = spark.createDataFrame([(bytearray(2_000_000),)], "value binary")
    writer = rows.write.format("conveyor").option("bootstrap.servers", broker.bootstrap_servers).option("topic", topic)
    with pytest.raises(PySparkException) as raised:
        writer.mode("append").save()
    assert "Message size too large" in line_of(raised.value)


def test_errors_of_other_code_keep_their_traceback(spark: "SparkSession", broker: Broker) -> None:
    """In the same Python processes, after an error of the data source."""
    with pytest.raises(PySparkException):
        spark.read.format("conveyor").option("topic", "nothing").load().count()
    with pytest.raises(PySparkException, match="Traceback"):
        spark.sparkContext.range(2).map(lambda number: 1 // number).collect()
