"""Compaction merges small files of finished days, and a kill between any two steps changes no record."""

import subprocess
import sys
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from conveyor.cli.pipeline import app
from conveyor.testing import Broker
from pyspark_conveyor.lake.commit_log import CommitLog
from pyspark_conveyor.lake.lake_compaction import compact
from pyspark_conveyor.lake.lake_parts import LakePart, PartFile, new_part_path, publish_parts, remove_leftovers
from pyspark_conveyor.lake.lake_table import read_lake
from tests.pipeline.lakes import archive, arguments, expected, files, places
from tests.pipeline.topics import create_topic, numbered, produce

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FIRST, SECOND, TODAY = "2026-03-01", "2026-03-02", "2026-03-03"
KILL_AT = """
import os, sys, pyarrow.parquet
from datetime import date
from pathlib import Path
from pyspark_conveyor.lake.lake_compaction import compact

lake, steps = sys.argv[1], int(sys.argv[2])
left = steps

def kill(event, arguments):
    global left
    if event in ("os.rename", "os.remove", "open", "os.mkdir") and str(arguments[0]).startswith(lake):
        left -= 1
        if left == 0:
            os._exit(9)

sys.addaudithook(kill)
compact(Path(lake), date(2026, 3, 3))
"""


def add_part(lake: Path, day: str, *numbers: int, extra: bool = False) -> LakePart:
    columns = {"number": pa.array(numbers, pa.int64())} | ({"extra": pa.array(numbers)} if extra else {})
    batch = pa.RecordBatch.from_pydict(columns)
    file = PartFile(lake, new_part_path(f"topic=t/day={day}"), batch.schema)
    file.add(batch)
    part = file.close()
    publish_parts(lake, [part])
    return part


def small_lake(lake: Path) -> Path:
    """Three batches: two finished days with three files and one, and a day that goes on."""
    log = CommitLog(lake)
    for batch in range(3):
        parts = [add_part(lake, FIRST, batch), add_part(lake, TODAY, 20 + batch)]
        log.commit(batch, [*parts, add_part(lake, SECOND, 10)] if batch == 0 else parts)
    return lake


def committed(lake: Path) -> dict[str, list[int]]:
    """The numbers of each day, in the order of the log."""
    found: dict[str, list[int]] = {}
    for path in CommitLog(lake).paths():
        numbers = pq.ParquetFile(lake / path).read(["number"]).column("number").to_pylist()
        found.setdefault(path.split("/")[1], []).extend(numbers)
    return found


ALL = {f"day={FIRST}": [0, 1, 2], f"day={SECOND}": [10], f"day={TODAY}": [20, 21, 22]}


def test_only_small_files_of_finished_days_are_merged(tmp_path: Path) -> None:
    lake = small_lake(tmp_path)
    result = compact(lake, date.fromisoformat(TODAY))
    assert (result.small_files, result.merged_files, result.records) == (3, 1, 3)
    assert committed(lake) == ALL
    assert {path.parent.name: len(list(path.parent.iterdir())) for path in files(lake)} == {
        f"day={FIRST}": 1,
        f"day={SECOND}": 1,
        f"day={TODAY}": 3,
    }
    assert compact(lake, date.fromisoformat(TODAY)).records == 0


def test_files_with_other_columns_stay_apart(tmp_path: Path) -> None:
    parts = [add_part(tmp_path, FIRST, number, extra=number > 1) for number in range(4)]
    CommitLog(tmp_path).commit(0, parts)
    assert compact(tmp_path, date.fromisoformat(TODAY)).merged_files == 2
    assert committed(tmp_path) == {f"day={FIRST}": [0, 1, 2, 3]}


def test_leftovers_are_removed_and_files_of_others_stay(tmp_path: Path) -> None:
    directory = tmp_path / "topic=t" / f"day={FIRST}"
    directory.mkdir(parents=True)
    committed_file, leftover, others = new_part_path(""), new_part_path(""), ["part-1.parquet", "counterpart-1.csv"]
    names = [committed_file, leftover, f"/.{leftover[1:]}", *(f"/{other}" for other in others)]
    for name in names:
        (directory / name[1:]).touch()
    remove_leftovers(tmp_path, {f"topic=t/day={FIRST}{committed_file}"})
    assert sorted(file.name for file in directory.iterdir()) == sorted([committed_file[1:], *others])


def test_a_kill_between_any_two_steps_changes_no_record(spark: "SparkSession", tmp_path: Path) -> None:
    steps = 0
    killed = True
    while killed:
        steps += 1
        lake = small_lake(tmp_path / str(steps))
        done = subprocess.run([sys.executable, "-c", KILL_AT, str(lake), str(steps)], check=False)
        killed = done.returncode == 9
        assert killed or done.returncode == 0
        assert {day: sorted(numbers) for day, numbers in committed(lake).items()} == ALL
        remove_leftovers(lake, set(CommitLog(lake).paths()))
        compact(lake, date.fromisoformat(TODAY))
        assert {day: sorted(numbers) for day, numbers in committed(lake).items()} == ALL
        assert len(files(lake)) == len(CommitLog(lake).paths()) == 5
        assert len(list(lake.glob("topic=*/day=*/*"))) == 5
    assert steps > 8
    assert spark.read.schema("number long").parquet(str(lake)).count() == 7


def test_late_records_go_to_their_own_day_and_are_merged_there(
    spark: "SparkSession", broker: Broker, topic: str, tmp_path: Path
) -> None:
    from typer.testing import CliRunner

    create_topic(broker, topic)
    produce(broker, topic, numbered(range(10)))
    archive(broker, tmp_path, topic)
    compact(tmp_path, date(2023, 12, 1))
    produce(broker, topic, numbered(range(100_000, 100_010)))
    produce(broker, topic, numbered(range(10, 20)))
    done = CliRunner().invoke(app, [*arguments(broker, tmp_path, topic), "--compact"], catch_exceptions=False)
    assert done.stdout.endswith("merged 2 small files into 1\n")
    assert [path.parent.name for path in files(tmp_path)] == ["day=2023-11-14", "day=2023-11-16"]
    assert places(tmp_path) == expected(topic, 30)
    late = read_lake(spark, tmp_path).where("day = '2023-11-14'")
    assert sorted(int(row.value) for row in late.collect()) == list(range(20))
