"""Which jars and options Spark's own connector for Kafka gets."""

from collections.abc import Callable
from pathlib import Path

import pyspark
import pytest
from msgspec.structs import replace

from pyspark_conveyor.declared.pipeline_spec import Delivery, PipelineSpec, SinkSpec, SourceSpec, check_spec
from pyspark_conveyor.jobs.replay_job import ReplayPlan, ReplaySelection, ReplayTarget
from pyspark_conveyor.pipeline_errors import PipelineError
from pyspark_conveyor.sink.sink_options import DeliveryGuarantee
from pyspark_conveyor.spark.connectors import (
    Connector,
    connector_settings,
    sink_options_for_kafka,
    translated_for_kafka,
)


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


@pytest.mark.parametrize("translate", [translated_for_kafka, sink_options_for_kafka])
def test_passwords_by_librdkafkas_names_are_refused(translate: Callable[[dict[str, str]], object]) -> None:
    """Java's client would ignore them, and connect without."""
    with pytest.raises(PipelineError, match=r"option 'kafka\.sasl\.password' is librdkafka's"):
        translate({"bootstrap.servers": "host:9092", "topic": "a", "kafka.sasl.password": "secret"})


def test_a_default_can_be_set() -> None:
    assert translated_for_kafka({"isolationLevel": "read_uncommitted"})["kafka.isolation.level"] == "read_uncommitted"


@pytest.mark.parametrize("name", ["headersAs", "group", "dataDir", "mispelt"])
def test_an_option_that_the_connector_lacks_is_refused(name: str) -> None:
    with pytest.raises(PipelineError, match=f"option '{name}' is not one of connector kafka"):
        translated_for_kafka({name: "x"})


def test_jars_belong_to_connector_kafka(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="a directory of jars is for connector kafka"):
        connector_settings(Connector.CONVEYOR, tmp_path)


def test_options_of_a_target_are_translated() -> None:
    options = {"bootstrap.servers": "host:9092", "topic": "a", "delivery": "at-least-once", "kafka.client.id": "me"}
    expected = {"kafka.bootstrap.servers": "host:9092", "topic": "a", "kafka.client.id": "me"}
    assert sink_options_for_kafka(options) == expected


def test_the_connector_refuses_to_write_exactly_once() -> None:
    with pytest.raises(PipelineError, match="writes at least once only"):
        sink_options_for_kafka({"delivery": "exactly-once"})


@pytest.mark.parametrize("name", ["jobId", "markerTopic", "mispelt"])
def test_an_option_of_a_target_that_the_connector_lacks_is_refused(name: str) -> None:
    with pytest.raises(PipelineError, match=f"option '{name}' is not one of connector kafka"):
        sink_options_for_kafka({name: "x"})


def pipeline(sink: SinkSpec, delivery: Delivery = "exactly-once", dead_letters: str = "") -> PipelineSpec:
    sources = {"a": SourceSpec(topic="a")}
    return PipelineSpec(
        name="p",
        checkpoint="c",
        bootstrap="b:1",
        sources=sources,
        sinks={"out": sink},
        delivery=delivery,
        dead_letters=dead_letters,
        connector=Connector.KAFKA,
    )


@pytest.mark.parametrize(
    "spec",
    [
        pipeline(SinkSpec(step="a", topic="b")),
        pipeline(SinkSpec(step="a", topic="b", delivery="exactly-once"), "at-least-once"),
        pipeline(SinkSpec(step="a", table="t"), dead_letters="d"),
    ],
)
def test_a_pipeline_that_would_write_exactly_once_with_the_connector_is_refused(spec: PipelineSpec) -> None:
    with pytest.raises(PipelineError, match=r"(sinks\.out|dead_letters): Spark's own connector writes at least"):
        check_spec(spec)


def test_a_sink_may_have_another_connector_than_its_pipeline() -> None:
    exact = SinkSpec(step="a", topic="b", delivery="exactly-once", connector=Connector.CONVEYOR)
    check_spec(pipeline(exact, "at-least-once", "d"))
    check_spec(pipeline(exact))
    check_spec(pipeline(SinkSpec(step="a", table="t")))
    with pytest.raises(PipelineError, match="connector is for topics"):
        check_spec(pipeline(SinkSpec(step="a", table="t", connector=Connector.CONVEYOR)))


def test_delivery_and_connector_are_part_of_a_replays_fingerprint() -> None:
    plan = ReplayPlan(
        lake_id="lake",
        selection=ReplaySelection(),
        target=ReplayTarget(topic="t"),
        partitions=1,
        width=2,
        tasks=1,
        slices=((0, 2),),
    )
    others = [replace(plan, delivery=DeliveryGuarantee.AT_LEAST_ONCE), replace(plan, connector=Connector.KAFKA)]
    assert len({other.fingerprint for other in (plan, *others)}) == 3
