"""Which jars and options Spark's own connector for Kafka gets."""

from pathlib import Path

import pyspark
import pytest

from conveyor.pipeline.pipeline_errors import PipelineError
from conveyor.pipeline.spark.connectors import Connector, connector_settings, translated_for_kafka


def test_conveyor_needs_no_settings() -> None:
    assert connector_settings(Connector.CONVEYOR) == {}


def test_spark_fetches_its_connector_in_its_own_version() -> None:
    package = f"org.apache.spark:spark-sql-kafka-0-10_2.13:{pyspark.__version__}"
    assert connector_settings(Connector.KAFKA) == {"spark.jars.packages": package}


def test_a_directory_of_jars_takes_the_place_of_maven_central(tmp_path: Path) -> None:
    names = ("kafka-clients-3.9.1.jar", "spark-sql-kafka-0-10_2.13-4.2.0.jar")
    for name in (*names, "README"):
        (tmp_path / name).touch()
    expected = ",".join(str(tmp_path / name) for name in names)
    assert connector_settings(Connector.KAFKA, tmp_path) == {"spark.jars": expected}


def test_a_directory_without_the_connector_is_refused(tmp_path: Path) -> None:
    (tmp_path / "kafka-clients-3.9.1.jar").touch()
    with pytest.raises(PipelineError, match="has no spark-sql-kafka-0-10"):
        connector_settings(Connector.KAFKA, tmp_path)


def test_options_are_translated_with_the_defaults_of_the_data_source() -> None:
    options = {"bootstrap.servers": "host:9092", "topic": "a,b", "maxOffsetsPerTrigger": "5", "kafka.client.id": "me"}
    assert translated_for_kafka(options) == {
        "kafka.bootstrap.servers": "host:9092",
        "subscribe": "a,b",
        "maxOffsetsPerTrigger": "5",
        "kafka.client.id": "me",
        "includeHeaders": "true",
        "kafka.isolation.level": "read_committed",
        "startingOffsetsByTimestampStrategy": "latest",
    }


def test_a_default_can_be_set() -> None:
    assert translated_for_kafka({"isolationLevel": "read_uncommitted"})["kafka.isolation.level"] == "read_uncommitted"


@pytest.mark.parametrize("name", ["headersAs", "group", "dataDir", "mispelt"])
def test_an_option_that_the_connector_lacks_is_refused(name: str) -> None:
    with pytest.raises(PipelineError, match=f"option '{name}' is not one of connector kafka"):
        translated_for_kafka({name: "x"})
