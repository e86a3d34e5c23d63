"""Walks through the headers of a partition's batches: where they are, and which transactions are open or aborted.

Only headers, markers and the first batch of each transaction are read, about 0.1 s for a GB of batches of 16 kB. What a
follower or a broker without fsync has written, but the cluster has not committed, is there as well: read a partition's
leader, or a broker that has ended.
"""

import mmap
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from pyspark.sql.datasource import InputPartition

from conveyor.records.batch import (
    CONTROL,
    HEADER_BYTES,
    MAGIC,
    MIN_BATCH_LENGTH,
    BatchHeader,
    is_transactional,
    read_header,
)
from conveyor.records.transaction_marker import decode_marker
from pyspark_conveyor.pipeline_errors import PipelineError
from pyspark_conveyor.segments.segment_files import PartitionFiles
from pyspark_conveyor.source.record_columns import checked_batch

_RANGE_BYTES = 64 << 20


@dataclass(frozen=True)
class SegmentRange(InputPartition):
    """Some batches of a segment, and which of their offsets are wanted: [start, end).

    inode: of the file; another one means that compaction has replaced it. aborted: producer ids and first offsets of
    the aborted transactions that reach into the range.
    """

    topic: str
    partition: int
    path: str
    inode: int
    first_byte: int
    end_byte: int
    start: int
    end: int
    aborted: tuple[tuple[int, int], ...] = ()


@dataclass(slots=True)
class Walked:
    """The result of a walk. pieces: successive batches, as (path, inode, bytes [first, end), offsets [first, end)).

    open: the first offset of each producer's open transaction. aborted: producer id, first and last offset.
    """

    pieces: list[tuple[str, int, int, int, int, int]] = field(default_factory=list)
    open: dict[int, int] = field(default_factory=dict)
    aborted: list[tuple[int, int, int]] = field(default_factory=list)
    end_offset: int = 0

    @property
    def stable_offset(self) -> int:
        """The first offset of the oldest open transaction, or the end."""
        return min([self.end_offset, *self.open.values()])


def walk(files: PartitionFiles, piece_records: int) -> Walked:
    """Walk through all segments. Raises PipelineError if one is damaged or missing.

    piece_records: how many offsets a piece has, about.
    """
    walked = Walked(end_offset=int(files.segments[0].stem) if files.segments else 0)
    for number, path in enumerate(files.segments):
        base_offset = int(path.stem)
        if base_offset < walked.end_offset or walked.end_offset < base_offset > files.dense_from:
            raise PipelineError(
                f"{path} does not follow the segment before it, which ends at offset {walked.end_offset}:"
                " run the query again; if it fails again, restore the files or let the broker recover them"
            )
        try:
            _walk_segment(path, walked, piece_records, files.dense_from, is_last=number == len(files.segments) - 1)
        except FileNotFoundError as error:
            raise PipelineError(f"{path} was deleted while it was read: run the query again") from error
    walked.end_offset = max(walked.end_offset, files.log_start)
    return walked


def _walk_segment(path: Path, walked: Walked, piece_records: int, dense_from: int, *, is_last: bool) -> None:
    with path.open("rb") as file:
        status = os.fstat(file.fileno())
        if not status.st_size:
            return
        with mmap.mmap(file.fileno(), status.st_size, access=mmap.ACCESS_READ) as mapped, memoryview(mapped) as data:
            first_byte, first_offset, end = 0, -1, 0
            for position, header in _headers(data, path, dense_from, is_last=is_last):
                if first_offset < 0:
                    first_offset = header.base_offset
                _note_transaction(walked, header, data, position)
                end, walked.end_offset = position + header.size, header.next_offset
                if header.next_offset - first_offset >= piece_records or end - first_byte >= _RANGE_BYTES:
                    walked.pieces.append((str(path), status.st_ino, first_byte, end, first_offset, walked.end_offset))
                    first_byte, first_offset = end, -1
            if first_offset >= 0:
                walked.pieces.append((str(path), status.st_ino, first_byte, end, first_offset, walked.end_offset))


def _headers(data: memoryview, path: Path, dense_from: int, *, is_last: bool) -> Iterator[tuple[int, BatchHeader]]:
    """Yield positions and headers. The last segment may end with a part of a batch, which is being written."""
    position, next_offset = 0, int(path.stem)
    while position < len(data):
        header = read_header(data, position) if position + HEADER_BYTES <= len(data) else None
        is_sound = header is None or (
            header.magic == MAGIC
            and header.batch_length >= MIN_BATCH_LENGTH
            and (header.base_offset == next_offset or next_offset < header.base_offset <= dense_from)
            and header.last_offset_delta >= 0
        )
        if not is_sound:
            raise PipelineError(f"{path} is damaged at byte {position}: let the broker recover it")
        if header is None or position + header.size > len(data):
            if is_last:
                return
            raise PipelineError(f"{path} is cut off at byte {position}: let the broker recover it")
        yield position, header
        position, next_offset = position + header.size, header.next_offset


def _note_transaction(walked: Walked, header: BatchHeader, data: memoryview, position: int) -> None:
    if is_transactional(header):
        if header.producer_id not in walked.open:
            checked_batch(data, position, header)
            walked.open[header.producer_id] = header.base_offset
    elif header.attributes & CONTROL:
        checked_batch(data, position, header)
        marker = decode_marker(header, bytes(data[position : position + header.size]))
        first_offset = walked.open.pop(header.producer_id, None)
        if marker is not None and not marker.commits and first_offset is not None:
            walked.aborted.append((header.producer_id, first_offset, header.base_offset))
