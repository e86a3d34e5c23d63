"""The files of a lake: Parquet, one file per task, topic and day.

Tasks write a file under a hidden name. The driver publishes it (renames it) just before it commits the file to the
lake's log, so that tools that list directories see no torn file, and a killed batch rarely leaves a visible one.

    topic=flights/day=2013-01-01/.part-<uuid>.zstd.parquet    while the batch runs
    topic=flights/day=2013-01-01/part-<uuid>.zstd.parquet     published

Spark's own Parquet sink takes more than twice as long for many small files: without Hadoop's native library, it starts
a `chmod` process for every file, checksum file and directory.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import msgspec

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

PARTITION_COLUMNS = ("topic", "day")
_PART_SCHEMA = "path string, size_bytes long, records long"
_ROW_GROUP_BYTES = 32 << 20
_SUFFIX = ".zstd.parquet"


class LakePart(msgspec.Struct, frozen=True, kw_only=True):
    """A file of the lake. path: relative to the lake, as published."""

    path: str
    size_bytes: int
    records: int


def write_parts(records: "DataFrame", lake: Path) -> list[LakePart]:
    """Write records as hidden files, in Spark's tasks. Returns one entry per file; the records stay in the tasks.

    records: has columns `topic` (string) and `day` (date), which become directories, `partition` and `offset`.
    """
    # Spark splits a large day among tasks; a small one has one file. Sorted records need one open file at a time.
    placed = records.hint("rebalance", *PARTITION_COLUMNS)
    placed = placed.sortWithinPartitions(*PARTITION_COLUMNS, "partition", "offset")
    rows = placed.mapInArrow(_part_writer(str(lake)), _PART_SCHEMA).collect()
    return [LakePart(path=row.path, size_bytes=row.size_bytes, records=row.records) for row in rows]


def publish_parts(lake: Path, parts: Sequence[LakePart]) -> None:
    """Rename hidden files to their published names."""
    for part in parts:
        published = lake / part.path
        published.with_name(f".{published.name}").rename(published)


def remove_leftovers(lake: Path, committed: set[str]) -> None:
    """Remove the uncommitted files of killed runs.

    committed: the paths of all committed files, relative to the lake. Call it only with the lake open.
    """
    for file in lake.glob("topic=*/day=*/*part-*"):
        if file.relative_to(lake).as_posix() not in committed:
            file.unlink()


def new_part_path(directory: str) -> str:
    """Return a path for a new part. directory: `topic=.../day=...`."""
    return f"{directory}/part-{uuid4()}{_SUFFIX}"


def _part_writer(lake: str) -> Callable[[Iterable["pa.RecordBatch"]], Iterator["pa.RecordBatch"]]:
    def write(batches: Iterable["pa.RecordBatch"]) -> Iterator["pa.RecordBatch"]:
        import pyarrow as pa

        for part in _written(Path(lake), batches):
            row = {"path": [part.path], "size_bytes": [part.size_bytes], "records": [part.records]}
            yield pa.RecordBatch.from_pydict(row)

    return write


def _written(lake: Path, batches: Iterable["pa.RecordBatch"]) -> Iterator[LakePart]:
    """Write sorted batches, and yield each part when it is complete."""
    directory, file = "", None
    for batch in batches:
        for run_directory, run in _runs(batch):
            if file is None or run_directory != directory:
                if file is not None:
                    yield file.close()
                directory, file = run_directory, PartFile(lake, new_part_path(run_directory), run.schema)
            file.add(run)
    if file is not None:
        yield file.close()


def _runs(batch: "pa.RecordBatch") -> Iterator[tuple[str, "pa.RecordBatch"]]:
    """Split a sorted batch into runs of one topic and day. Yields (directory, records without these columns)."""
    import numpy as np

    topics = batch.column("topic").dictionary_encode()
    days = batch.column("day").dictionary_encode()
    places = topics.indices.to_numpy().astype(np.int64) * len(days.dictionary) + days.indices.to_numpy()
    starts = [0, *(np.flatnonzero(np.diff(places)) + 1).tolist(), batch.num_rows]
    plain = batch.drop_columns(list(PARTITION_COLUMNS))
    for start, end in itertools.pairwise(starts):
        if end > start:
            directory = f"topic={topics[start].as_py()}/day={days[start].as_py().isoformat()}"
            yield directory, plain.slice(start, end - start)


class PartFile:
    """A Parquet file that is being written, under its hidden name."""

    def __init__(self, lake: Path, path: str, schema: "pa.Schema") -> None:
        import pyarrow.parquet as pq

        self._path = path
        published = lake / path
        self._hidden = published.with_name(f".{published.name}")
        self._hidden.parent.mkdir(parents=True, exist_ok=True)
        self._writer: Any = pq.ParquetWriter(self._hidden, schema, compression="zstd")
        self._schema = schema
        self._runs: list[pa.RecordBatch] = []
        self._buffered_bytes = 0
        self._records = 0

    def add(self, run: "pa.RecordBatch") -> None:
        self._runs.append(run)
        self._records += run.num_rows
        self._buffered_bytes += run.nbytes
        if self._buffered_bytes >= _ROW_GROUP_BYTES:
            self._flush()

    def close(self) -> LakePart:
        self._flush()
        self._writer.close()
        return LakePart(path=self._path, size_bytes=self._hidden.stat().st_size, records=self._records)

    def _flush(self) -> None:
        import pyarrow as pa

        if self._runs:
            self._writer.write_table(pa.Table.from_batches(self._runs, self._schema))
        self._runs, self._buffered_bytes = [], 0
