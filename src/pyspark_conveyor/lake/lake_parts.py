"""The files of a lake: Parquet, one file per task, topic and day.

Tasks write a file under a hidden name. The driver publishes it (renames it) just before it commits the file to the
lake's log, so that tools that list directories see no torn file, and a killed batch rarely leaves a visible one.

    topic=flights/day=2013-01-01/.part-<uuid>.zstd.parquet    while the batch runs
    topic=flights/day=2013-01-01/part-<uuid>.zstd.parquet     published

Spark's own Parquet sink takes more than twice as long for many small files: without Hadoop's native library, it starts
a `chmod` process for every file, checksum file and directory.
"""

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import msgspec

from pyspark_conveyor.payloads.payload_columns import PAYLOAD, REASON

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

PARTITION_COLUMNS = ("topic", "day")
_PART_SCHEMA = "path string, size_bytes long, records long, is_bad boolean"
_ROW_GROUP_BYTES = 32 << 20
_SUFFIX = ".zstd.parquet"
_PART = re.compile(r"\.?part-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}" + re.escape(_SUFFIX))
"""The names that this module gives: other files in a lake are not its own to remove."""


class LakePart(msgspec.Struct, frozen=True, kw_only=True):
    """A file of the lake. path: relative to the lake, as published."""

    path: str
    size_bytes: int
    records: int


def write_parts(records: "DataFrame", lake: Path, bad_records: Path) -> tuple[list[LakePart], list[LakePart]]:
    """Write records as hidden files, in Spark's tasks. The records stay in the tasks.

    records: has columns `topic` (string) and `day` (date), which become directories, `partition` and `offset`. If it
    has `payload` and `reason`, records with a reason go to bad_records without `payload`, others to the lake.
    Returns one entry per file: those of the lake, and those of the bad records.
    """
    # Spark splits a large day among tasks; a small one has one file. Sorted records need one open file at a time.
    placed = records.hint("rebalance", *PARTITION_COLUMNS)
    placed = placed.sortWithinPartitions(*PARTITION_COLUMNS, "partition", "offset")
    rows = placed.mapInArrow(_part_writer(str(lake), str(bad_records)), _PART_SCHEMA).collect()
    good, bad = (
        [
            LakePart(path=row.path, size_bytes=row.size_bytes, records=row.records)
            for row in rows
            if row.is_bad == is_bad
        ]
        for is_bad in (False, True)
    )
    return good, bad


def publish_parts(lake: Path, parts: Sequence[LakePart]) -> None:
    """Rename hidden files to their published names."""
    for part in parts:
        published = lake / part.path
        published.with_name(f".{published.name}").rename(published)


def remove_leftovers(lake: Path, committed: set[str]) -> None:
    """Remove the uncommitted files of killed runs.

    committed: the paths of all committed files, relative to the lake. Call it only with the lake open.
    """
    for file in lake.glob(f"topic=*/day=*/*{_SUFFIX}"):
        if _PART.fullmatch(file.name) and file.relative_to(lake).as_posix() not in committed:
            file.unlink()


def remove_hidden(lake: Path) -> None:
    """Remove the files that killed runs have not published. Call it only with the lake open."""
    for file in lake.glob("topic=*/day=*/.part-*"):
        file.unlink()


def new_part_path(directory: str) -> str:
    """Return a path for a new part. directory: `topic=.../day=...`."""
    return f"{directory}/part-{uuid4()}{_SUFFIX}"


def _part_writer(lake: str, bad_records: str) -> Callable[[Iterable["pa.RecordBatch"]], Iterator["pa.RecordBatch"]]:
    def write(batches: Iterable["pa.RecordBatch"]) -> Iterator["pa.RecordBatch"]:
        writers = {False: _PartWriter(Path(lake)), True: _PartWriter(Path(bad_records))}
        for batch in batches:
            for directory, run in _runs(batch):
                for is_bad, records in _good_and_bad(run):
                    yield from _as_rows(writers[is_bad].add(directory, records), is_bad)
        for is_bad, writer in writers.items():
            yield from _as_rows(writer.close(), is_bad)

    return write


def _as_rows(part: LakePart | None, is_bad: bool) -> Iterator["pa.RecordBatch"]:
    import pyarrow as pa

    if part is not None:
        row = {"path": [part.path], "size_bytes": [part.size_bytes], "records": [part.records], "is_bad": [is_bad]}
        yield pa.RecordBatch.from_pydict(row)


def _good_and_bad(run: "pa.RecordBatch") -> Iterator[tuple[bool, "pa.RecordBatch"]]:
    import pyarrow.compute as pc

    if REASON not in run.schema.names:
        yield False, run
        return
    is_bad = run.column(REASON).is_valid()
    good, bad = run.filter(pc.invert(is_bad)), run.filter(is_bad)
    if good.num_rows:
        yield False, good.drop_columns([REASON])
    if bad.num_rows:
        yield True, bad.drop_columns([PAYLOAD])


class _PartWriter:
    """Writes runs, sorted by directory, to one part for each directory."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._directory = ""
        self._file: PartFile | None = None

    def add(self, directory: str, run: "pa.RecordBatch") -> LakePart | None:
        """Add records. Returns the part that is complete, if there is one."""
        complete = self.close() if directory != self._directory else None
        if self._file is None:
            self._directory = directory
            self._file = PartFile(self._root, new_part_path(directory), run.schema)
        self._file.add(run)
        return complete

    def close(self) -> LakePart | None:
        file, self._file = self._file, None
        return None if file is None else file.close()


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
