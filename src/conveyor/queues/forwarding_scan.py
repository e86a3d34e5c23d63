"""When the records of a batch are due: what a forwarder needs to know of them before it reads them.

Most batches of most topics ask for nothing, which one search for the headers' common prefix tells.
"""

from collections.abc import Iterator
from typing import NamedTuple

from conveyor.kernel.errors import RequestError
from conveyor.log.batch import COMPRESSION_MASK, CONTROL, HEADER_BYTES, LOG_APPEND_TIME, BatchHeader
from conveyor.log.compression import decompress
from conveyor.log.records import read_fields, record_positions
from conveyor.queues.attributes import PREFIX, read_attributes

_MARK = PREFIX.encode()


class DueRun(NamedTuple):
    """Neighbours [start, end) that are due at once (0), or one record that is due at a time."""

    start: int
    end: int
    due_ms: int


def scan_due(header: BatchHeader, batch: bytes) -> list[DueRun]:
    """The records of a batch, by their offsets. What cannot be read is due at once, as a whole."""
    if header.attributes & CONTROL or not header.records_count:
        return []
    whole = DueRun(header.base_offset, header.next_offset, 0)
    has_gaps = header.records_count != header.last_offset_delta + 1
    try:
        content = decompress(header.attributes & COMPRESSION_MASK, memoryview(batch)[HEADER_BYTES:])
        if not has_gaps and _MARK not in content:
            return [whole]
        return list(_joined(_each(header, content)))
    except (IndexError, RequestError):  # The broker does not look inside what it stores.
        return [whole]


def _each(header: BatchHeader, content: bytes) -> Iterator[DueRun]:
    stamped = bool(header.attributes & LOG_APPEND_TIME)
    last_delta = -1
    for position in record_positions(content, header.records_count)[:-1]:
        timestamp_delta, offset_delta, _, _, headers = read_fields(content, position)
        timestamp_ms = header.max_timestamp if stamped else header.base_timestamp + timestamp_delta
        offset = header.base_offset + offset_delta
        if not last_delta < offset_delta <= header.last_offset_delta:
            raise IndexError(offset_delta)
        last_delta = offset_delta
        yield DueRun(offset, offset + 1, read_attributes(headers, timestamp_ms).due_ms if headers else 0)


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
