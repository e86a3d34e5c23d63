"""spark-sql-kafka-0-10: Spark's own connector, batches and streams. Fewer records: its rows come from Python."""

import sys

import pytest

from conveyor.testing import Broker
from tests.clients.programs import Line, Program
from tests.clients.records import PARTITIONS, sent
from tests.clients.scenarios import from_line, make_topic
from tests.clients.toolchains import spark_jars

COUNT = 20_000


@pytest.fixture(scope="module")
def told(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> list[Line]:
    """What the connector's program has printed, in one session of Spark."""
    make_topic(broker.bootstrap_servers, "spark", PARTITIONS)
    make_topic(broker.bootstrap_servers, "spark-copy", PARTITIONS)
    jars = ",".join(map(str, spark_jars().glob("*.jar")))
    program = Program([sys.executable, "-m", "tests.clients.spark_connector"])
    checkpoint = tmp_path_factory.mktemp("spark") / "checkpoint"
    return program.run(broker.bootstrap_servers, "spark", COUNT, jars, checkpoint, broker.http_url)


def step(told: list[Line], name: str) -> Line:
    [found] = [line for line in told if line["step"] == name]
    return found


def numbers(told: list[Line], step: str) -> list[int]:
    """The records of a step, by number; all but their timestamps, which the sink leaves to Kafka, are as sent."""
    found = sorted(from_line(line) for line in told if line["step"] == step)
    assert [(each.key, each.value, each.headers) for each in found] == [
        (each.key, each.value, each.headers) for each in (sent(each.number) for each in found)
    ]
    return [each.number for each in found]


def test_a_batch_comes_back_as_it_was_written(told: list[Line]) -> None:
    assert numbers(told, "batch") == list(range(COUNT // 2))


def test_a_time_is_where_a_batch_starts(told: list[Line]) -> None:
    assert numbers(told, "since") == list(range(COUNT // 2, COUNT))


def test_a_stream_copies_each_record_once_over_a_restart(told: list[Line]) -> None:
    assert numbers(told, "copy") == list(range(COUNT))
    assert [line["count"] for line in told if line["step"] == "batches"] == [3, 3]


def test_jobs_read_the_same_with_both_connectors(told: list[Line]) -> None:
    [found] = [line for line in told if line["step"] == "both"]
    assert (found["count"], found["different"], found["same"]) == (COUNT, 0, True)


def test_the_archive_runs_with_the_connector_and_goes_on_with_conveyor(told: list[Line]) -> None:
    [found] = [line for line in told if line["step"] == "archive"]
    assert (found["written"], found["in_lake"]) == ([COUNT, 0, 10], COUNT + 10)
    assert "was archived with connector conveyor" in found["refusal"]


def test_the_example_of_the_page_runs(told: list[Line]) -> None:
    [found] = [line for line in told if line["step"] == "page"]
    assert found["printed"] == f"{COUNT}\n"


def test_a_declared_pipeline_reads_and_writes_with_the_connector(told: list[Line]) -> None:
    assert step(told, "run")["counts"] == [26, 52, 1]
    assert step(told, "even")["same"]
    assert step(told, "exact")["same"]
    assert "the checkpoint was written with connector kafka, not conveyor" in step(told, "run")["refusal"]


def test_a_mirror_reads_with_the_connector(told: list[Line]) -> None:
    found = step(told, "mirror")
    assert found["shown"] == "mirrored 53 records of jobs\n"
    assert found["same"]
    assert "was written with connector kafka: continue with it" in found["refusal"]


def test_a_replay_writes_with_the_connector_at_least_once(told: list[Line]) -> None:
    found = step(told, "replay")
    assert [shown.split()[1] for shown in found["shown"]] == ["52", "0"]
    assert found["same"]
    assert "writes at least once only" in found["refusals"][0]
    assert "has begun with other options" in found["refusals"][1]


@pytest.mark.parametrize(
    ("job", "shown"),
    [("metrics", "jobs: 53 records, at most"), ("deadletters", "billing       no stock             1")],
)
def test_a_report_is_the_same_with_both_connectors(told: list[Line], job: str, shown: str) -> None:
    found = step(told, job)
    assert found["same"]
    assert shown in found["shown"]
