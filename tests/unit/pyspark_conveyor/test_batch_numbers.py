"""A checkpoint and a target whose batches do not fit together."""

from pathlib import Path

import pytest

from pyspark_conveyor.declared.pipeline_spec import PipelineSpec, SinkSpec, SourceSpec
from pyspark_conveyor.declared.run_directory import open_run
from pyspark_conveyor.lake.batch_numbers import check_same_time
from pyspark_conveyor.pipeline_errors import PipelineError


def touch(directory: Path, *names: str) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for name in names:
        (directory / name).touch()


@pytest.mark.parametrize("written", [4, 5])
def test_a_batch_may_be_planned_and_not_yet_written_or_committed(tmp_path: Path, written: int) -> None:
    check_same_time(tmp_path, None, tmp_path)
    touch(tmp_path / "offsets", "3", "4", "5", ".5.crc", "6.tmp")
    touch(tmp_path / "commits", "3", "4")
    check_same_time(tmp_path, written, tmp_path)


@pytest.mark.parametrize(
    ("written", "older"), [(3, "target"), (None, "target"), (6, "checkpoint")], ids=["older", "empty", "newer"]
)
def test_what_is_of_another_time_is_refused(tmp_path: Path, written: int | None, older: str) -> None:
    touch(tmp_path / "checkpoint" / "offsets", "4", "5")
    touch(tmp_path / "checkpoint" / "commits", "4")
    with pytest.raises(PipelineError, match=f"{older} is an older copy"):
        check_same_time(tmp_path / "checkpoint", written, tmp_path / "target")


def test_a_pipeline_refuses_a_table_that_is_newer_than_its_checkpoint(tmp_path: Path) -> None:
    spec = PipelineSpec(
        name="p",
        checkpoint=str(tmp_path / "checkpoint"),
        bootstrap="",
        sources={"s": SourceSpec(topic="t")},
        sinks={"files": SinkSpec(step="s", table=str(tmp_path / "files"))},
    )
    table, query = tmp_path / "files", tmp_path / "checkpoint" / "queries" / "files"
    with open_run(spec, "cluster") as directory:
        directory.begin()
        directory.bind_table("files", table)
        touch(query / "offsets", "8", "9", "10")
        touch(query / "commits", "8", "9")
        touch(table / "_spark_metadata", "8", "9.compact", "10")
        directory.bind_table("files", table)
        touch(table / "_spark_metadata", "11")
        with pytest.raises(PipelineError, match="files ends with batch 11, and its checkpoint with batch 10"):
            directory.bind_table("files", table)
