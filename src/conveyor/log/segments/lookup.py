"""Lookups in segments: by offset, by time, and the end of a slice. Mostly reads batch headers only.

A lookup by time also decompresses and examines batches: call it off the event loop.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence

from conveyor.kernel.ids import NO_TIMESTAMP
from conveyor.log.segments.index import below_by_second, floor_by_first
from conveyor.log.segments.segment import Segment
from conveyor.records.batch import BatchHeader, read_header
from conveyor.records.record import Record, UnreadableBatch, raw_records, unpack_records

_UNPACKED_BYTES = 8 << 20
_MAX_EXAMINED_RECORDS = 20_000
_MAX_HEADERS = 50_000
_BATCH_RECORDS = 50
"""To look at a batch takes as long as so many of its records."""


class _Room:
    """The bytes and records that one lookup may still decompress and examine: a bound of its memory and of the time for
    which it keeps a thread. A producer can claim times in the headers of its batches that none of their records have,
    and the index has no times of the records behind those that were deleted, so a lookup may look at many batches in
    vain.
    """

    unpacked_bytes = _UNPACKED_BYTES
    records = _MAX_EXAMINED_RECORDS
    headers = _MAX_HEADERS


class _NoRoom(_Room):
    unpacked_bytes = 0


def segment_for(segments: Sequence[Segment], offset: int) -> Segment:
    """Return the segment that holds an offset; the first one for an offset below all."""
    return segments[max(0, bisect_right(segments, offset, key=base_offset) - 1)]


def headers_from(segment: Segment, offset: int) -> Iterator[tuple[int, BatchHeader]]:
    """Yield the batches from about an index interval before an offset on. Blocks: the index may be damaged."""
    if offset > segment.base_offset:
        segment.indexes.stored.prepare()
    return segment.headers(segment.indexes.position_before(offset))


def position_of(segment: Segment, offset: int) -> int:
    """Return the position of the batch that holds an offset; the segment's size for the offset after its last.

    Raises StorageFailure.
    """
    if offset >= segment.next_offset:
        return segment.size
    start = segment.indexes.position_before(offset)
    for position, header in segment.headers(start):
        if header.next_offset > offset:
            return position
        start = position + header.size
    return start


def cut(segment: Segment, start: int, limit: int, max_bytes: int, *, at_least_one: bool) -> int:
    """Return where a slice from `start` ends: a batch boundary within `max_bytes`, or the end of one larger batch."""
    if limit - start <= max_bytes:
        return limit
    boundary = segment.indexes.boundary_at_or_before(min(start + max_bytes, limit))
    if boundary > start:
        return boundary
    end = start
    for position, header in segment.headers(start):
        if position + header.size - start > max_bytes:
            break
        end = position + header.size
    if end == start and at_least_one:
        return start + segment.files.header_at(start).size
    return end


def find_time(
    segments: Sequence[Segment], timestamp_ms: int, limit_offset: int, start_offset: int = 0
) -> Record | None:
    """Return the first record at or after a time, in [start_offset, limit_offset); None if there is none.

    A search that has looked at too many batches ends at the batch that it has reached: all records before are older.
    Raises StorageFailure.
    """
    room = _Room()
    for segment in segments:
        if segment.max_timestamp >= timestamp_ms and segment.base_offset < limit_offset:
            record = _find_time_in(segment, timestamp_ms, limit_offset, start_offset, room)
            if record is not None:
                return record
    return None


def find_newest(segments: Sequence[Segment], limit_offset: int, start_offset: int = 0) -> Record | None:
    """Return the first record with the largest timestamp, in [start_offset, limit_offset). If no record has the
    timestamp that its batch claims, the batch counts as an unreadable one. Raises StorageFailure. Source: KIP-734.
    """
    candidates = [
        segment
        for segment in segments
        if segment.base_offset < limit_offset and segment.next_offset > start_offset and segment.size
    ]
    if not candidates:
        return None
    room = _Room()
    times = [_newest_time(segment, limit_offset, start_offset, room) for segment in candidates]
    newest_ms = max(times)
    segment = candidates[times.index(newest_ms)]
    record = _find_time_in(segment, newest_ms, limit_offset, start_offset, room)
    return record or _find_time_in(segment, newest_ms, limit_offset, start_offset, _NoRoom())


def _newest_time(segment: Segment, limit_offset: int, start_offset: int, room: _Room) -> int:
    """Return the largest timestamp of a segment's batches that have offsets in [start_offset, limit_offset), as far as
    there is room.
    """
    segment_ms = segment.max_timestamp  # Read before the next offset: see `Segment.note`.
    if start_offset <= segment.base_offset and segment.next_offset <= limit_offset:
        return segment_ms
    offsets, times = segment.indexes.pair()
    newest_ms, start = NO_TIMESTAMP, start_offset - segment.base_offset
    position = segment.indexes.position_before(start_offset)
    entry = below_by_second(times, limit_offset - segment.base_offset) or (NO_TIMESTAMP, 0)
    if start <= entry[1]:  # It is the newest before the last batch in the offset index; see `position_before_time`.
        last = floor_by_first(offsets, limit_offset - segment.base_offset - 1)
        newest_ms, position = entry[0], last[1] if last else 0
    if newest_ms == segment.max_timestamp:
        return newest_ms
    for _, header in segment.headers(position):
        if header.base_offset >= limit_offset or room.headers <= 0:
            break
        room.headers -= 1
        if header.next_offset > start_offset:
            newest_ms = max(newest_ms, header.max_timestamp)
    return newest_ms


def _find_time_in(
    segment: Segment, timestamp_ms: int, limit_offset: int, start_offset: int, room: _Room
) -> Record | None:
    start = max(segment.indexes.position_before_time(timestamp_ms), segment.indexes.position_before(start_offset))
    for position, header in segment.headers(start):
        if header.base_offset >= limit_offset:
            return None
        if header.max_timestamp >= timestamp_ms and header.next_offset > start_offset:
            record = _find_time_among(segment.file.read(position, header.size), timestamp_ms, start_offset, room)
            if record is not None:
                return record
        room.headers -= 1
        if room.headers <= 0:
            return _whole(header, start_offset)
    return None


def _find_time_among(batch: bytes, timestamp_ms: int, start_offset: int, room: _Room) -> Record | None:
    """Search one batch. A batch that is unreadable, or for which there is no more room, counts as its first record with
    the header's timestamp.
    """
    try:
        header = read_header(batch)
        if header.records_count > room.records or room.unpacked_bytes <= 0:
            raise UnreadableBatch(f"{header.records_count} records are too many to look at")
        content = unpack_records(header, batch, room.unpacked_bytes)
        room.records -= header.records_count + _BATCH_RECORDS
        room.unpacked_bytes -= len(content)
        for _, _, offset_delta, time_ms, _, _, _ in raw_records(header, content, skims=True):
            offset = header.base_offset + offset_delta
            if time_ms >= timestamp_ms and offset >= start_offset:
                return Record(offset=offset, timestamp_ms=time_ms, key=None, value=None)
    except UnreadableBatch:
        return _whole(read_header(batch), start_offset)
    return None


def _whole(header: BatchHeader, start_offset: int) -> Record:
    offset = max(header.base_offset, start_offset)
    return Record(offset=offset, timestamp_ms=header.max_timestamp, key=None, value=None)


def first_with_records(segments: Sequence[Segment], before: Segment) -> Segment:
    """Return the first non-empty segment after `before`; the last one if all are empty. Compaction may empty
    segments.
    """
    later = segments[bisect_right(segments, before.base_offset, key=base_offset) :]
    return next((segment for segment in later if segment.size), segments[-1])


def base_offset(segment: Segment) -> int:
    return segment.base_offset
