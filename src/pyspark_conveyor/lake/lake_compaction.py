"""Compaction of a lake: merges the small files of finished days.

A run takes these steps, and a run that is killed between any two of them loses and repeats nothing:

1. write the merged files under hidden names     killed: the next run of the job removes them
2. publish them (rename)                         killed: the next run of the job removes them
3. replace the small files in the commit log     one rename; from here on, the merged files count
4. remove the small files                        killed: the next run of the job removes them

Readers of the log see either the small files or the merged ones. Between steps 2 and 4, which are renames and removals
only, tools that list directories may see both. A query that planned to read a small file fails if the file is removed
before it is opened; it succeeds when it is repeated.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from pyspark_conveyor.lake.commit_log import CommitLog
from pyspark_conveyor.lake.lake_parts import LakePart, PartFile, new_part_path, publish_parts
from pyspark_conveyor.pipeline_errors import PipelineError

if TYPE_CHECKING:
    import pyarrow as pa

TARGET_BYTES = 128 << 20
"""Size up to which files are merged. A file of at least half this size is left alone."""


class Compacted(msgspec.Struct, frozen=True, kw_only=True):
    """The result: the number of small files, of the files that replace them, and of the records in them."""

    small_files: int
    merged_files: int
    records: int


def compact(lake: Path, today: date) -> Compacted:
    """Merge the small files of all days before `today`. Call it only with the lake open. Raises PipelineError."""
    log = CommitLog(lake)
    sizes = {log.relative(file): file.size for file in log.files()}
    groups = [group for candidates in _candidates(lake, sizes, today) for group in _groups(candidates, sizes)]
    merged = [_merge(lake, group) for group in groups]
    small = [path for group in groups for path in group]
    if merged:
        publish_parts(lake, merged)
        log.replace(small, merged)
        for path in small:
            (lake / path).unlink()
    return Compacted(small_files=len(small), merged_files=len(merged), records=sum(part.records for part in merged))


def _candidates(lake: Path, sizes: dict[str, int], today: date) -> Iterator[list[str]]:
    """Yield the small files of each finished day that have the same columns, in the order of their commits."""
    import pyarrow.parquet as pq

    days: defaultdict[str, list[str]] = defaultdict(list)
    for path, size in sizes.items():
        directory = path.rpartition("/")[0]
        if size < TARGET_BYTES // 2 and date.fromisoformat(directory.rpartition("day=")[2]) < today:
            days[directory].append(path)
    for paths in days.values():
        if len(paths) > 1:
            alike: defaultdict[str, list[str]] = defaultdict(list)
            for path in paths:
                alike[str(pq.read_schema(lake / path).remove_metadata())].append(path)
            yield from alike.values()


def _groups(paths: Sequence[str], sizes: dict[str, int]) -> Iterator[list[str]]:
    """Divide files into groups of about the target size. A file alone is no group."""
    group: list[str] = []
    for path in paths:
        if group and sum(sizes[each] for each in group) + sizes[path] > TARGET_BYTES:
            if len(group) > 1:
                yield group
            group = []
        group.append(path)
    if len(group) > 1:
        yield group


def _merge(lake: Path, paths: Sequence[str]) -> LakePart:
    import pyarrow.parquet as pq

    expected = sum(pq.read_metadata(lake / path).num_rows for path in paths)
    file: PartFile | None = None
    for batch in _batches(lake, paths):
        if file is None:
            file = PartFile(lake, new_part_path(paths[0].rpartition("/")[0]), batch.schema)
        file.add(batch)
    part = file.close() if file is not None else None
    if part is None or part.records != expected:
        raise PipelineError(f"{lake / paths[0]} and others have {expected} records, but fewer were read: nothing done")
    return part


def _batches(lake: Path, paths: Sequence[str]) -> Iterator["pa.RecordBatch"]:
    import pyarrow.parquet as pq

    for path in paths:
        with pq.ParquetFile(lake / path) as file:
            yield from file.iter_batches()
