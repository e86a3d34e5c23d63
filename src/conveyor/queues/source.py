"""Reads the records of one partition by offset: any of them, in any order, as queues do.

Where the records of a batch begin is kept for many batches, a few bytes a record; the unpacked bytes of a batch for
few. A record of a batch that is not compressed is then read alone. Nothing here changes: records never do.
"""

import logging
from array import array
from bisect import bisect_right, insort
from collections import OrderedDict
from collections.abc import Iterator

from conveyor.kernel.errors import RequestError
from conveyor.kernel.ports import FileSlice
from conveyor.log.batch import (
    COMPRESSION_MASK,
    CONTROL,
    HEADER_BYTES,
    LOG_APPEND_TIME,
    BatchHeader,
    iterate_batches,
    read_header,
)
from conveyor.log.log import Log
from conveyor.log.reading import find_time
from conveyor.log.records import read_fields, record_positions, unpacked_records
from conveyor.queues.message import Message

log = logging.getLogger(__name__)

_MAX_CONTENT_BYTES = 8 << 20
_MAX_POSITIONS = 2_000_000
_BATCH_COST = 100
"""What is kept of a batch besides its positions takes as much room as so many of them."""


class SourceBatch:
    """One batch: its header, where its records begin, and their bytes, as long as these are kept."""

    __slots__ = ("base_offset", "content", "header", "next_offset", "place", "positions")

    def __init__(self, header: BatchHeader, place: FileSlice, content: bytes, positions: "array[int]") -> None:
        self.header = header
        self.base_offset = header.base_offset
        self.next_offset = header.next_offset
        self.place = place
        self.content: bytes | None = content
        self.positions = positions


class MessageSource:
    """See the module's docstring."""

    def __init__(self, topic: str, partition: int, log: Log) -> None:
        self._topic = topic
        self._partition = partition
        self._log = log
        self._bases: list[int] = []
        self._batches: OrderedDict[int, SourceBatch] = OrderedDict()
        self._contents: OrderedDict[int, SourceBatch] = OrderedDict()
        self._positions_count = 0
        self._content_bytes = 0
        self._last: SourceBatch | None = None

    @property
    def log_start_offset(self) -> int:
        return self._log.log_start_offset

    def first_offset_after(self, timestamp_ms: int, limit_offset: int) -> int:
        """The first offset with a timestamp not older than that, below a limit; else the limit."""
        found = find_time(self._log.segments, timestamp_ms, limit_offset, self._log.log_start_offset)
        return limit_offset if found is None else found.offset

    def batches(self, offset: int, limit_offset: int, max_bytes: int) -> Iterator[tuple[BatchHeader, FileSlice, bytes]]:
        """Whole batches from the one that holds an offset on, at least one if there is any: header, place and bytes."""
        found = self._log.read(max(offset, self._log.log_start_offset), max_bytes, limit_offset, at_least_one=True)
        if found is None:
            return
        content = found.file.read(found.position, found.length)
        for position, header in iterate_batches(content):
            place = FileSlice(found.file, found.position + position, header.size)
            yield header, place, content[position : position + header.size]

    def open(self, header: BatchHeader, place: FileSlice, batch: bytes) -> SourceBatch:
        """Unpack a batch and keep it for `get`. Raises RequestError, IndexError if it holds no sound records."""
        known = self._batches.get(header.base_offset)
        if known is not None and known.header == header:
            self._with_content(known, batch)
            return known
        if known is not None:  # Compaction has left another one in its place.
            self._drop(known)
        _, content = unpacked_records(batch)
        opened = SourceBatch(header, place, content, record_positions(content, header.records_count))
        self._keep(opened, content)
        return opened

    def get(self, offset: int) -> Message | None:
        """The record at an offset; None if there is none: compacted away, deleted, a broker's own mark, or garbage.

        Raises StorageFailure.
        """
        if offset < self._log.log_start_offset:
            return None
        try:
            batch = self._holding(offset)
            if batch is None or batch.header.attributes & CONTROL:
                return None
            return self._find(batch, offset)
        except (IndexError, RequestError) as error:  # The broker does not look inside what it stores.
            log.warning("record unreadable partition=%s-%d offset=%d: %s", self._topic, self._partition, offset, error)
            return None

    def batch_at(self, offset: int) -> SourceBatch | None:
        """The batch that holds an offset. Raises StorageFailure; RequestError, IndexError if they are no records."""
        return self._holding(offset)

    def message(self, batch: SourceBatch, index: int) -> Message:
        """One record of a batch, by its place in it."""
        content, position = self._record(batch, index)
        timestamp_delta, offset_delta, key, value, headers = read_fields(content, position)
        header = batch.header
        stamped = header.attributes & LOG_APPEND_TIME
        return Message(
            self._topic,
            self._partition,
            header.base_offset + offset_delta,
            header.max_timestamp if stamped else header.base_timestamp + timestamp_delta,
            key,
            value,
            headers,
        )

    def _find(self, batch: SourceBatch, offset: int) -> Message | None:
        index = min(offset - batch.base_offset, len(batch.positions) - 2)
        while index >= 0:  # Where compaction has left holes, a record lies before the place that its offset gives.
            found = self.message(batch, index)
            if found.offset == offset:
                return found
            if found.offset < offset:
                return None
            index -= 1
        return None

    def _record(self, batch: SourceBatch, index: int) -> tuple[bytes, int]:
        if batch.content is not None:
            return batch.content, batch.positions[index]
        if not batch.header.attributes & COMPRESSION_MASK:
            start, end = batch.positions[index], batch.positions[index + 1]
            return batch.place.file.read(batch.place.position + HEADER_BYTES + start, end - start), 0
        content = self._with_content(batch, batch.place.file.read(batch.place.position, batch.place.length))
        return content, batch.positions[index]

    def _holding(self, offset: int) -> SourceBatch | None:
        last = self._last
        if last is not None and last.base_offset <= offset < last.next_offset:
            return last
        place = bisect_right(self._bases, offset) - 1
        if place >= 0:
            known = self._batches[self._bases[place]]
            if offset < known.next_offset:
                self._batches.move_to_end(known.base_offset)
                self._last = known
                return known
        return self._read(offset)

    def _read(self, offset: int) -> SourceBatch | None:
        found = self._log.read(offset, 1, self._log.written_offset, at_least_one=True)
        if found is None:
            return None
        batch = found.file.read(found.position, found.length)
        header = read_header(batch)
        if offset < header.base_offset:
            return None
        return self.open(header, found, batch)

    def _with_content(self, batch: SourceBatch, packed: bytes) -> bytes:
        """The unpacked records, kept for a while."""
        if batch.content is None:
            _, batch.content = unpacked_records(packed)
            self._keep_content(batch, batch.content)
        return batch.content

    def _keep(self, batch: SourceBatch, content: bytes) -> None:
        base = batch.header.base_offset
        insort(self._bases, base)
        self._batches[base] = batch
        self._last = batch
        self._positions_count += len(batch.positions) + _BATCH_COST
        self._keep_content(batch, content)
        while self._positions_count > _MAX_POSITIONS and len(self._batches) > 1:
            self._drop(next(iter(self._batches.values())))

    def _drop(self, batch: SourceBatch) -> None:
        base = batch.header.base_offset
        del self._batches[base]
        del self._bases[bisect_right(self._bases, base) - 1]
        self._positions_count -= len(batch.positions) + _BATCH_COST
        self._drop_content(batch)

    def _keep_content(self, batch: SourceBatch, content: bytes) -> None:
        self._contents[batch.header.base_offset] = batch
        self._content_bytes += len(content)
        while self._content_bytes > _MAX_CONTENT_BYTES and len(self._contents) > 1:
            self._drop_content(next(iter(self._contents.values())))

    def _drop_content(self, batch: SourceBatch) -> None:
        if batch.content is not None and self._contents.pop(batch.header.base_offset, None) is not None:
            self._content_bytes -= len(batch.content)
            batch.content = None
