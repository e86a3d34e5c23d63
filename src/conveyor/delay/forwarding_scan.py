"""When the records of a batch are due: what a forwarder needs to know of them before it reads them.

Most batches of most topics ask for nothing, which one search for the headers' common prefix tells.
"""

from collections.abc import Iterator
from typing import NamedTuple

from conveyor.records.batch import COMPRESSION_MASK, CONTROL, BatchHeader
from conveyor.records.compression import MAX_UNPACKED_BYTES, Unpacked, contains
from conveyor.records.message_attributes import PREFIX, read_attributes
from conveyor.records.record import UnreadableBatch, raw_records, unpacked_records

_MARK = PREFIX.encode()


class DueRun(NamedTuple):
    """Neighbours [start, end) that are due at once (0), or one record that is due at a time."""

    start: int
    end: int
    due_ms: int


def scan_due(header: BatchHeader, batch: bytes, limit_bytes: int = MAX_UNPACKED_BYTES) -> list[DueRun]:
    """The records of a batch, by their offsets. A batch that cannot be read is due at once, as a whole.

    Raises UnreadableBatch only if there is a limit, and the batch does not unpack within it.
    """
    if header.attributes & CONTROL or not header.records_count:
        return []
    whole = DueRun(header.base_offset, header.next_offset, 0)
    has_gaps = header.records_count != header.last_offset_delta + 1
    try:
        _, content = unpacked_records(batch, limit_bytes)
        if not has_gaps and not contains(content, _MARK):
            return [whole]
        return list(_joined(_each(header, content)))
    except UnreadableBatch:  # The broker does not look inside what it stores.
        if limit_bytes < MAX_UNPACKED_BYTES and header.attributes & COMPRESSION_MASK:
            raise
        return [whole]


def _each(header: BatchHeader, content: Unpacked) -> Iterator[DueRun]:
    for _, _, offset_delta, timestamp_ms, _, _, headers in raw_records(header, content, skims=True):
        offset = header.base_offset + offset_delta
        due_ms = read_attributes(headers, timestamp_ms).due_ms if headers else 0
        yield DueRun(offset, offset + 1, due_ms)


def _joined(runs: Iterator[DueRun]) -> Iterator[DueRun]:
    """One run for neighbours that are due at once."""
    last: DueRun | None = None
    for each in runs:
        if last is not None and not last.due_ms and not each.due_ms and last.end == each.start:
            last = last._replace(end=each.end)
            continue
        if last is not None:
            yield last
        last = each
    if last is not None:
        yield last
