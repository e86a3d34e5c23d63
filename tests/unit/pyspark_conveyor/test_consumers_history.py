"""What the metrics job reads back of its earlier runs."""

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pyspark_conveyor.jobs import consumers_history
from pyspark_conveyor.jobs.consumers_history import delays_of, last_numbers
from pyspark_conveyor.jobs.topic_metrics import ConsumerNumbers, DelayHistogram
from pyspark_conveyor.pipeline_errors import PipelineError

pytestmark = pytest.mark.slow

START = datetime(2026, 3, 1, 12, tzinfo=UTC)


def numbers(hour: int, name: str, topic: str = "t") -> ConsumerNumbers:
    at = START + timedelta(hours=hour)
    delays = DelayHistogram("id", [10], [hour, 0], 3.5)
    return ConsumerNumbers(at=at, topic=topic, consumer=name, kind="subscription", lag=0, ack_delays=delays)


def write(directory: Path, hour: int, rows: list[ConsumerNumbers]) -> Path:
    folder = directory / "consumers"
    folder.mkdir(exist_ok=True)
    table = pa.Table.from_pylist([msgspec.to_builtins(row, builtin_types=(datetime,)) for row in rows])
    file = folder / f"part-{hour}.parquet"
    pq.write_table(table, file, use_deprecated_int96_timestamps=bool(hour % 2))
    os.utime(file, (1_000_000 + hour, 1_000_000 + hour))
    return file


def test_newest_numbers_of_each_subscription_are_found(tmp_path: Path) -> None:
    write(tmp_path, 1, [numbers(1, "a"), numbers(1, "b")])
    write(tmp_path, 2, [numbers(2, "a"), numbers(2, "a", "other")])
    found = last_numbers(tmp_path, [("t", "a"), ("t", "b"), ("t", "new")])
    assert found == {("t", "a"): numbers(2, "a"), ("t", "b"): numbers(1, "b")}
    assert delays_of(tmp_path, ["t"]) == [numbers(1, "a"), numbers(1, "b"), numbers(2, "a")]


def test_first_run_finds_nothing(tmp_path: Path) -> None:
    assert last_numbers(tmp_path, [("t", "a")]) == {}
    assert delays_of(tmp_path, ["t"]) == []


def test_groups_have_no_delays(tmp_path: Path) -> None:
    group = ConsumerNumbers(at=START, topic="t", consumer="a", kind="group", lag=0)
    write(tmp_path, 1, [numbers(1, "a")])
    write(tmp_path, 2, [group])
    assert last_numbers(tmp_path, [("t", "a")]) == {("t", "a"): numbers(1, "a")}


def test_only_the_last_runs_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for hour in range(5):
        write(tmp_path, hour, [numbers(hour, "a")])
    monkeypatch.setattr(consumers_history, "MAX_RUNS", 2)
    assert delays_of(tmp_path, ["t"]) == [numbers(3, "a"), numbers(4, "a")]


def test_files_that_are_not_the_jobs_are_refused(tmp_path: Path) -> None:
    file = write(tmp_path, 1, [numbers(1, "a")])
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(PipelineError, match=r"part-1\.parquet cannot be read"):
        last_numbers(tmp_path, [("t", "a")])
    pq.write_table(pa.table({"at": ["noon"]}), file)
    with pytest.raises(PipelineError, match=r"part-1\.parquet cannot be read"):
        delays_of(tmp_path, ["t"])
