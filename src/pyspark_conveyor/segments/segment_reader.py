"""Reads segment files as a table."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from conveyor.records.batch import iterate_batches
from pyspark_conveyor.pipeline_errors import PipelineError
from pyspark_conveyor.plain_errors import with_plain_errors
from pyspark_conveyor.segments.segment_files import PartitionFiles, find_partitions
from pyspark_conveyor.segments.segment_walk import SegmentRange, Walked, walk
from pyspark_conveyor.source.committed_batches import CommittedBatches, wanted_batches
from pyspark_conveyor.source.offset_ranges import check_loss
from pyspark_conveyor.source.record_columns import RawBatch, decode
from pyspark_conveyor.source.rows import arrow_schema, to_batches
from pyspark_conveyor.source.source_options import EARLIEST, LATEST, Bounds, SourceOptions
from pyspark_conveyor.source.topic_bounds import TopicFound, check_named

if TYPE_CHECKING:
    import pyarrow as pa

_READ_BYTES = 8 << 20


@with_plain_errors
class SegmentReader(DataSourceReader):
    """Reads the records between two bounds from the files of a data directory."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def partitions(self) -> list[SegmentRange]:
        options = self._options
        ranges: list[SegmentRange] = []
        partitions = find_partitions(options)
        _check_bounds(options, partitions)
        for files in partitions:
            walked = walk(files, options.max_records_per_partition)
            last = walked.stable_offset if options.read_committed else walked.end_offset
            start = _bound(options.starting_offsets, files, EARLIEST, last)
            end = _bound(options.ending_offsets, files, LATEST, last)
            if start < files.log_start or max(start, end) > last:
                check_loss(
                    options,
                    f"partition {files.partition} of '{files.topic}' has offsets {files.log_start} to {last} here,"
                    f" but {start} to {end} were requested",
                )
            ranges += _ranges(files, walked, max(start, files.log_start), min(end, last), options)
        return ranges

    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        if not isinstance(partition, SegmentRange):
            return  # Spark passes a placeholder partition when there is nothing to read.
        options = self._options
        schema = arrow_schema(headers_as_map=options.headers_as_map)
        committed = CommittedBatches(partition.aborted if options.read_committed else ())
        for batches in _batches(partition, committed):
            for columns in decode(batches, with_headers=options.include_headers):
                bounds = (partition.start, partition.end)
                yield from to_batches(columns, partition.topic, partition.partition, bounds, schema)


def _check_bounds(options: SourceOptions, partitions: Sequence[PartitionFiles]) -> None:
    found = {
        each.topic: tuple(other.partition for other in partitions if other.topic == each.topic) for each in partitions
    }
    for bounds in (options.starting_offsets, options.ending_offsets):
        if not isinstance(bounds, int):
            check_named(bounds, {topic: TopicFound("", numbers) for topic, numbers in found.items()})


def _bound(wanted: int | Bounds, files: PartitionFiles, left_out: int, last: int) -> int:
    offset = wanted if isinstance(wanted, int) else wanted.get(files.topic, {}).get(files.partition, left_out)
    return {EARLIEST: files.log_start, LATEST: last}.get(offset, offset)


def _ranges(
    files: PartitionFiles, walked: Walked, start: int, end: int, options: SourceOptions
) -> Iterator[SegmentRange]:
    for path, inode, first_byte, end_byte, first_offset, end_offset in walked.pieces:
        if first_offset < end and end_offset > start:
            aborted = [
                (producer_id, first)
                for producer_id, first, last in walked.aborted
                if first < end_offset and last >= first_offset
            ]
            yield SegmentRange(
                files.topic, files.partition, path, inode, first_byte, end_byte, start, end, tuple(aborted)
            )


def _batches(wanted: SegmentRange, committed: CommittedBatches) -> Iterator[list[RawBatch]]:
    """Yield the batches of a range, some MB at a time. Raises PipelineError if the file was replaced or is damaged."""
    replaced = f"{wanted.path} was deleted or replaced by compaction while it was read: run the query again"
    try:
        file = Path(wanted.path).open("rb")  # noqa: SIM115 - closed below
    except FileNotFoundError as error:
        raise PipelineError(replaced) from error
    with file:
        if os.fstat(file.fileno()).st_ino != wanted.inode:
            raise PipelineError(replaced)
        position, size = wanted.first_byte, _READ_BYTES
        while position < wanted.end_byte:
            data = memoryview(os.pread(file.fileno(), min(size, wanted.end_byte - position), position))
            places = list(iterate_batches(data))
            if not places:
                if len(data) == wanted.end_byte - position:
                    raise PipelineError(f"{wanted.path} is damaged at byte {position}: let the broker recover it")
                size *= 2  # A batch that is larger than what was read.
                continue
            last_place, last = places[-1]
            position += last_place + last.size
            batches = wanted_batches(data, places, committed, wanted.start, wanted.end)
            if batches:
                yield batches
