"""Reads a leader's log for its followers: everything that is written, committed or not, as slices of its files."""

from typing import NamedTuple

from conveyor.kernel.ports import FileSlice
from conveyor.log.log import Log
from conveyor.log.segments.segment import Segment


class LogPortion(NamedTuple):
    """The stored batches from one offset up to another. place: None if compaction has left no record between them."""

    place: FileSlice | None
    next_offset: int


def read_portion(log: Log, offset: int, max_bytes: int) -> LogPortion | None:
    """Return the batches from the one that holds an offset on: some, at least one, and all of one segment at most.

    Returns None if nothing is written there yet. Raises RequestError (OFFSET_OUT_OF_RANGE: the log starts above the
    offset), StorageFailure.
    """
    if offset >= log.written_offset:  # A follower may have what is only buffered here.
        return None
    place = log.read(offset, max_bytes, log.written_offset, at_least_one=True)
    return LogPortion(place, log.written_offset if place is None else _next_offset(log, place))


def _next_offset(log: Log, place: FileSlice) -> int:
    end = place.position + place.length
    segment: Segment = next(segment for segment in reversed(log.segments.all) if segment.file is place.file)
    if end < segment.size:
        return segment.files.header_at(end).base_offset
    return log.written_offset if segment is log.segments.all[-1] else segment.next_offset
