"""Checks the batches of a segment's file: their CRCs, and that each continues at the offset where the last one ended.

No read is longer than 16 MiB, because a damaged size may be as large as the segment: a large batch is read in pieces.

dense_from: no offset at or above it is missing. Below it a batch may begin further on, where a compaction has removed
records. A base offset has no checksum: a flipped bit shows only in a gap that may not be there.
"""

from collections.abc import Iterator

from conveyor.kernel.errors import StorageFailure
from conveyor.log.segments.segment import Segment
from conveyor.records.batch import HEADER_BYTES, BatchHeader, batch_is_intact, read_header
from conveyor.records.transaction_marker import is_marker

_READ_BYTES = 1 << 20
_SEARCHED_BYTES = 1 << 24


def end_is_sound(segment: Segment, dense_from: int) -> bool:
    """Check a sealed segment from its last index entry on. It is not sound if the index is damaged."""
    try:
        if not segment.indexes.stored.check("index"):
            return False
    except StorageFailure:
        return False
    entries = segment.indexes.offsets
    next_offset, end = segment.base_offset, 0
    if len(entries):
        delta, end = entries[len(entries) - 1]
        indexed = _intact_batch(segment, end)
        if indexed is None or indexed.next_offset != segment.base_offset + delta + 1:
            return False
        next_offset = indexed.base_offset
    while end < segment.size:
        header = _intact_batch(segment, end)
        if header is None or not _follows(next_offset, header, dense_from):
            return False
        end += header.size
        next_offset = header.next_offset
    return next_offset == segment.next_offset


def _follows(next_offset: int, header: BatchHeader, dense_from: int) -> bool:
    """Return whether a batch continues at the next offset; after a compaction it may continue further on. The base
    offset has no checksum.
    """
    return header.base_offset == next_offset or next_offset < header.base_offset <= dense_from


def scan(segment: Segment, dense_from: int, interval_bytes: int) -> int:
    """Check every batch and build the indexes. Returns the position of the first damaged batch, or the segment's
    size.
    """
    position = 0
    buffer, buffer_start = b"", 0
    while position < segment.size:
        within = position - buffer_start
        header = read_header(buffer, within) if within + HEADER_BYTES <= len(buffer) else None
        if header is None or not HEADER_BYTES <= header.size <= len(buffer) - within:
            if _size_at(segment, position) == 0:
                return position
            buffer, buffer_start, within = segment.file.read(position, _READ_BYTES), position, 0
            header = read_header(buffer)
        size = header.size
        batch = memoryview(buffer)[within : within + size]
        rest = _pieces(segment, position + len(batch), position + size) if len(batch) < size else ()
        if not _follows(segment.next_offset, header, dense_from) or not batch_is_intact(batch, rest):
            return position
        segment.note(header.next_offset - 1, header.max_timestamp, position, size, interval_bytes)
        if is_marker(header):
            segment.indexes.aborted = None
        position += size
    return position


def _size_at(segment: Segment, position: int) -> int:
    """Return the size of the complete batch at a position, or 0."""
    if position + HEADER_BYTES > segment.size:
        return 0
    size = segment.files.header_at(position).size
    return size if HEADER_BYTES <= size <= segment.size - position else 0


def was_complete(segment: Segment, position: int) -> bool:
    """Return whether the batch that ends the log was complete once: it is intact, but does not continue the log, or an
    intact batch follows it, also if its size is wrong. True if that takes too long to find out.
    """
    if _intact_batch(segment, position) or _intact_batch(segment, position + _size_at(segment, position)):
        return True
    content = segment.file.read(position, _SEARCHED_BYTES)
    if len(content) < HEADER_BYTES:
        return False
    next_offset = read_header(content).next_offset.to_bytes(8, "big", signed=True)
    checked_bytes = 0
    found = content.find(next_offset, HEADER_BYTES)
    while found >= 0 and _intact_batch(segment, position + found) is None:
        checked_bytes += HEADER_BYTES + _size_at(segment, position + found)
        if checked_bytes > _SEARCHED_BYTES:
            return True
        found = content.find(next_offset, found + 1)
    return found >= 0


def _intact_batch(segment: Segment, position: int) -> BatchHeader | None:
    pieces = _pieces(segment, position, position + _size_at(segment, position))
    first = next(pieces, b"")
    return read_header(first) if first and batch_is_intact(first, pieces) else None


def _pieces(segment: Segment, start: int, end: int) -> Iterator[bytes]:
    for position in range(start, end, _READ_BYTES):
        yield segment.file.read(position, min(end - position, _READ_BYTES))
