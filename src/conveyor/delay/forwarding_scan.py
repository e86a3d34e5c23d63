"""Reads the due times of a batch's records, without decoding the records.

Most batches have no delay headers. One search for the headers' common prefix detects this.
"""

from collections.abc import Iterator
from typing import NamedTuple

from conveyor.records.batch import COMPRESSION_MASK, CONTROL, BatchHeader
from conveyor.records.compression import MAX_UNPACKED_BYTES, Unpacked
from conveyor.records.message_attributes import may_have_attributes, read_attributes
from conveyor.records.record import UnreadableBatch, raw_records, unpacked_records

MAX_DELAYED_BYTES = 16 << 20
"""The most decompressed bytes of a batch whose records are delayed: above it, they could not be read one by one."""


class DueRun(NamedTuple):
    """Adjacent records [start, end) that are due immediately (0), or one record with its due time."""

    start: int
    end: int
    due_ms: int


def scan_due(header: BatchHeader, batch: bytes, limit_bytes: int = MAX_UNPACKED_BYTES) -> list[DueRun]:
    """Return the runs of a batch, by offset. A batch that is unreadable, or too large, is one run that is due
    immediately.

    Raises UnreadableBatch only if there is a limit and the decompressed batch exceeds it.
    """
    if header.attributes & CONTROL or not header.records_count:
        return []
    whole = DueRun(header.base_offset, header.next_offset, 0)
    has_gaps = header.records_count != header.last_offset_delta + 1
    try:
        _, content = unpacked_records(batch, limit_bytes)
        if len(content) > MAX_DELAYED_BYTES or (not has_gaps and not may_have_attributes(content)):
            return [whole]
        return list(_joined(_each(header, content)))
    except UnreadableBatch:  # The broker stores batches without checking their content.
        if limit_bytes < MAX_UNPACKED_BYTES and header.attributes & COMPRESSION_MASK:
            raise
        return [whole]


def _each(header: BatchHeader, content: Unpacked) -> Iterator[DueRun]:
    for _, _, offset_delta, timestamp_ms, _, _, headers in raw_records(header, content, skims=True):
        offset = header.base_offset + offset_delta
        due_ms = read_attributes(headers, timestamp_ms).due_ms if headers else 0
        yield DueRun(offset, offset + 1, due_ms)


def _joined(runs: Iterator[DueRun]) -> Iterator[DueRun]:
    """Join adjacent runs that are due immediately."""
    last: DueRun | None = None
    for run in runs:
        if last is not None and not last.due_ms and not run.due_ms and last.end == run.start:
            last = last._replace(end=run.end)
            continue
        if last is not None:
            yield last
        last = run
    if last is not None:
        yield last
