"""A lake's commit log: what Spark reads, and what a repeated batch leaves."""

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pyspark_conveyor.lake.commit_log import CommitLog
from pyspark_conveyor.lake.lake_parts import LakePart
from pyspark_conveyor.pipeline_errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def part(lake: Path, name: str, *values: int) -> LakePart:
    path = lake / "topic=a b" / "day=2026-01-01" / f"part-{name}.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"number": pa.array(values, pa.int64())}), path)
    return LakePart(path=path.relative_to(lake).as_posix(), size_bytes=path.stat().st_size, records=len(values))


def numbers(spark: "SparkSession", lake: Path) -> list[int]:
    return sorted(row.number for row in spark.read.schema("number long").parquet(str(lake)).collect())


def test_spark_reads_what_is_committed(spark: "SparkSession", tmp_path: Path) -> None:
    log = CommitLog(tmp_path)
    for batch in range(4):
        log.commit(batch, [part(tmp_path, str(batch), batch)])
        part(tmp_path, f"uncommitted-{batch}", 100)
        assert numbers(spark, tmp_path) == list(range(batch + 1))
    assert log.last_batch() == 3
    assert sorted(file.name for file in (tmp_path / "_spark_metadata").iterdir()) == ["2.compact", "3.compact"]


def test_spark_reads_what_replaced_files(spark: "SparkSession", tmp_path: Path) -> None:
    log = CommitLog(tmp_path)
    small = [part(tmp_path, str(number), number) for number in range(3)]
    for batch, each in enumerate(small):
        log.commit(batch, [each])
    log.replace([small[0].path, small[1].path], [part(tmp_path, "merged", 0, 1)])
    assert numbers(spark, tmp_path) == [0, 1, 2]
    log.commit(3, [part(tmp_path, "3", 3)])
    assert numbers(spark, tmp_path) == [0, 1, 2, 3]


def test_a_repeated_batch_replaces_its_files(tmp_path: Path) -> None:
    log = CommitLog(tmp_path)
    log.commit(0, [part(tmp_path, "0", 0)])
    log.commit(1, [part(tmp_path, "first", 1)])
    log.commit(1, [part(tmp_path, "second", 1)])
    assert [path.rpartition("part-")[2] for path in log.paths()] == ["0.parquet", "second.parquet"]


@pytest.mark.parametrize(("name", "content"), [("7", "v1"), ("7.compact", "v2")])
def test_a_log_of_others_is_refused(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / "_spark_metadata").mkdir()
    (tmp_path / "_spark_metadata" / name).write_text(content)
    with pytest.raises(PipelineError, match=r"archive into an empty directory|use a newer conveyor"):
        CommitLog(tmp_path).files()
