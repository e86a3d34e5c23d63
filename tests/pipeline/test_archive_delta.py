"""Delta lakes: every batch once, whichever log was lost, and compaction through Delta's own log."""

import shutil
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable
from typer.testing import CliRunner

from conveyor.cli.pipeline import app
from conveyor.cli.terminal.kafka_client import ClientError
from conveyor.testing import Broker
from pyspark_conveyor.lake.delta_log import DeltaLog
from pyspark_conveyor.lake.lake import read_manifest
from pyspark_conveyor.lake.lake_table import read_bad_records, read_lake
from tests.pipeline.lakes import Place, arguments, expected
from tests.pipeline.topics import Sent, create_topic, numbered, produce

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.usefixtures("spark")


def archive_delta(broker: Broker, lake: Path, topic: str, *options: str) -> str:
    command = [*arguments(broker, lake, topic), "--format", "delta", *options]
    done = CliRunner().invoke(app, command, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def delta_places(lake: Path) -> list[Place]:
    """Topic, partition and offset of every record, as Delta's own library reads the table."""
    table = DeltaTable(str(lake)).to_pyarrow_table(columns=["topic", "partition", "offset"])
    return sorted(zip(*(table.column(name).to_pylist() for name in table.column_names), strict=True))


def test_batches_are_committed_once_and_merged(
    spark: "SparkSession", broker: Broker, topic: str, tmp_path: Path
) -> None:
    create_topic(broker, topic, partitions=2)
    produce(broker, topic, numbered(range(100), partitions=2))
    archive_delta(broker, tmp_path, topic)
    produce(broker, topic, numbered(range(100, 200), partitions=2))
    archive_delta(broker, tmp_path, topic)
    assert delta_places(tmp_path) == expected(topic, 100, 100)
    # The lake has committed the batch, and the checkpoint has lost it.
    for name in ("1", ".1.crc"):
        (tmp_path / "_conveyor" / "checkpoint" / "commits" / name).unlink()
    assert archive_delta(broker, tmp_path, topic).endswith("archived 0 records of " + f"{topic} to {tmp_path}\n")
    assert delta_places(tmp_path) == expected(topic, 100, 100)
    assert archive_delta(broker, tmp_path, topic, "--compact").endswith("merged 2 small files into 1\n")
    assert delta_places(tmp_path) == expected(topic, 100, 100)
    assert read_lake(spark, tmp_path).count() == 200


def test_a_published_batch_without_its_commit_is_written_again(
    spark: "SparkSession", broker: Broker, topic: str, tmp_path: Path
) -> None:
    create_topic(broker, topic)
    produce(broker, topic, [Sent(value=b'{"id": 1}'), Sent(value=b"bad")])
    archive_delta(broker, tmp_path, topic, "--schema", "id long")
    shutil.rmtree(tmp_path / "_delta_log")
    with pytest.raises(ClientError, match=r"_delta_log, the list of committed files, is missing"):
        archive_delta(broker, tmp_path, topic)
    for name in ("0", ".0.crc"):
        (tmp_path / "_conveyor" / "checkpoint" / "commits" / name).unlink()
    archive_delta(broker, tmp_path, topic)
    assert [row.payload.id for row in read_lake(spark, tmp_path).collect()] == [1]
    assert DeltaTable(str(tmp_path)).to_pyarrow_table().column("payload").to_pylist() == [{"id": 1}]
    assert [row.value for row in read_bad_records(spark, tmp_path).collect()] == [b"bad"]


def test_an_unfinished_day_is_not_merged_and_a_lake_keeps_its_format(
    broker: Broker, topic: str, tmp_path: Path
) -> None:
    create_topic(broker, topic)
    produce(broker, topic, numbered(range(5)))
    archive_delta(broker, tmp_path, topic)
    manifest = read_manifest(tmp_path)
    assert manifest is not None
    assert DeltaLog(tmp_path, manifest.lake_id, None).compact(date(2023, 11, 14)).merged_files == 0
    with pytest.raises(ClientError, match="has the format delta, not parquet"):
        archive_delta(broker, tmp_path, topic, "--format", "parquet")
