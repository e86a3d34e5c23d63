"""Reads the records of one partition by offset: any of them, in any order, as queues do.

Where the records of a batch begin is kept for many batches, a few bytes a record; the unpacked bytes of a batch for
few. A record of a batch that is not compressed is then read alone. Nothing here changes: records never do. All sources
of a broker share the memory for this; the batch that was read last is always kept.

A batch that cannot be read, which a plain topic stores, holds no messages. A batch that takes long to unpack is
unpacked by `unpack_batch` on a thread, if the caller asks for messages within a limit; then `keep` takes it.
"""

import logging
from array import array
from bisect import bisect_right, insort
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator

from conveyor.kernel.errors import ReadLater, RequestError
from conveyor.kernel.ports import FileSlice
from conveyor.log.cache_share import CacheShare
from conveyor.log.log import Log
from conveyor.log.segments.lookup import find_time
from conveyor.records.batch import (
    COMPRESSION_MASK,
    CONTROL,
    HEADER_BYTES,
    BatchHeader,
    iterate_batches,
    read_header,
)
from conveyor.records.compression import MAX_UNPACKED_BYTES, Unpacked, contains
from conveyor.records.message import Message
from conveyor.records.message_attributes import PREFIX
from conveyor.records.record import UnreadableBatch, raw_records, read_record, record_positions, unpacked_records

log = logging.getLogger(__name__)

_MAX_CONTENT_BYTES = 8 << 20
_MAX_POSITIONS = 2_000_000
_POSITION_BYTES = 8
_PARTS = 3
"""Of a share of the broker's cache, one part is for unpacked bytes, and the others for positions."""

_BATCH_COST = 100
"""What is kept of a batch besides its positions takes as much room as so many of them."""

SMALL_BYTES = 1 << 16
"""Unpacked and looked at on the event loop: so much may be thousands of headers."""

_SMALL_PACKED_BYTES = 1 << 16
"""Unpacked on the event loop, if that is little: a member of gzip that holds nothing takes 20 bytes, and 10 us."""

SMALL_RECORDS = 1_000
"""Looked through on the event loop, at once."""

_MAX_MESSAGE_BYTES = 16 << 20
"""A message may be larger if its topic takes such messages unpacked, too."""

_MARK = PREFIX.encode()
_UNPACKED_AT_ONCE = 1 << 20
"""By one call of `batches`, and the last batch."""


def _do(work: Callable[[], None]) -> None:
    work()


class StillPacked(ReadLater):
    """A batch has to be unpacked on a thread before its records can be read."""

    def __init__(self, header: BatchHeader, place: FileSlice) -> None:
        super().__init__(f"the batch at offset {header.base_offset} is not unpacked")
        self.header = header
        self.place = place


class SourceBatch:
    """One batch: its header, where its records begin, and their bytes, as long as these are kept.

    One that cannot be read has no positions. is_marked: some header may ask something of the queues.
    """

    __slots__ = ("base_offset", "content", "header", "is_marked", "is_small", "next_offset", "place", "positions")

    def __init__(self, header: BatchHeader, place: FileSlice, content: Unpacked, positions: "array[int]") -> None:
        self.header = header
        self.base_offset = header.base_offset
        self.next_offset = header.next_offset
        self.place = place
        self.content: Unpacked | None = content
        self.positions = positions
        self.is_marked = contains(content, _MARK)
        self.is_small = header.records_count <= SMALL_RECORDS and len(content) <= SMALL_BYTES


def unpack_batch(header: BatchHeader, place: FileSlice) -> SourceBatch:
    """Read and unpack a batch, however large; call it off the event loop. Raises StorageFailure."""
    return _unpack(header, place, place.file.read(place.position, place.length), MAX_UNPACKED_BYTES)


def takes_long_to_unpack(header: BatchHeader) -> bool:
    """Whether a batch may take long to unpack, however small its records turn out to be."""
    return bool(header.attributes & COMPRESSION_MASK) and header.size > _SMALL_PACKED_BYTES


def takes_long_to_look_at(header: BatchHeader) -> bool:
    """Whether a batch is looked at on a thread first: it may take long to unpack, or has very many records."""
    return header.records_count > SMALL_RECORDS or header.size > SMALL_BYTES


def _unpack(header: BatchHeader, place: FileSlice, batch: bytes, limit_bytes: int) -> SourceBatch:
    """Raises StillPacked, only if there is a limit."""
    is_limited = limit_bytes < MAX_UNPACKED_BYTES
    if is_limited and takes_long_to_look_at(header):
        raise StillPacked(header, place)
    try:
        _, content = unpacked_records(batch, limit_bytes)
        unpacked = SourceBatch(header, place, content, record_positions(content, header.records_count))
        if not unpacked.is_small:  # They are looked at part by part: whether they all are sound shows now.
            deque(raw_records(header, content, skims=True), maxlen=0)
        return unpacked
    except UnreadableBatch as error:
        if is_limited and header.attributes & COMPRESSION_MASK:  # It may only be too large.
            raise StillPacked(header, place) from None
        log.debug("batch unreadable offset=%d bytes=%d: %s", header.base_offset, header.size, error)
        return SourceBatch(header, place, b"", array("L"))


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
        self._unpacked_bytes = 0
        self._has_told_of_garbage = False
        self.dispose: Callable[[Callable[[], None]], object] = _do
        """Takes what gives large unpacked records back to the system, which takes long."""
        self._last: SourceBatch | None = None
        self._share: CacheShare | None = None

    def join(self, share: CacheShare) -> None:
        """Keep from now on no more than a share of the broker's cache, and the last batch."""
        self._share = share
        share.join(self)
        self.trim()

    def leave(self) -> None:
        """Nothing is read any more."""
        if self._share is not None:
            self._share.leave(self)

    def trim(self) -> None:
        """Give up the batches, and the unpacked bytes, that are too much for the share."""
        max_bytes, max_positions = _MAX_CONTENT_BYTES, _MAX_POSITIONS
        if self._share is not None:
            part_bytes = self._share.bytes // _PARTS
            max_bytes = min(max_bytes, part_bytes)
            max_positions = min(max_positions, (_PARTS - 1) * part_bytes // _POSITION_BYTES)
        while self._positions_count > max_positions and len(self._batches) > 1:
            self._drop(next(iter(self._batches.values())))
        while self._content_bytes > max_bytes and len(self._contents) > 1:
            self._drop_content(next(iter(self._contents.values())))

    def use(self, log: Log) -> None:
        """Read from another opening of the same log from now on; the files of the one before may be closed."""
        self._log = log
        self._bases, self._last = [], None
        self._batches.clear()
        self._contents.clear()
        self._positions_count = self._content_bytes = 0

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
        unpacked_bytes = self._unpacked_bytes
        for position, header in iterate_batches(content):
            place = FileSlice(found.file, found.position + position, header.size)
            yield header, place, content[position : position + header.size]
            if self._unpacked_bytes - unpacked_bytes > _UNPACKED_AT_ONCE:
                return

    def open(
        self, header: BatchHeader, place: FileSlice, batch: bytes, limit_bytes: int = MAX_UNPACKED_BYTES
    ) -> SourceBatch:
        """Unpack a batch and keep it for `get`; with its content. Raises UnreadableBatch.

        limit_bytes: StillPacked is raised if the batch unpacks to more, or has very many records.
        """
        known = self._batches.get(header.base_offset)
        if known is not None and known.header != header:  # Compaction has left another one in its place.
            self._drop(known)
            known = None
        if known is None:
            known = _unpack(header, place, batch, limit_bytes)
            self._keep(known)
        if len(known.positions) == 0:
            raise UnreadableBatch(f"the batch at offset {header.base_offset} cannot be read")
        self._with_content(known, batch, limit_bytes)
        return known

    def has_content(self, header: BatchHeader) -> bool:
        """Whether a batch is unpacked, or known to hold nothing that can be read."""
        known = self._batches.get(header.base_offset)
        return known is not None and known.header == header and (known.content is not None or not len(known.positions))

    def keep(self, batch: SourceBatch) -> None:
        """Take a batch that was unpacked on a thread."""
        known = self._batches.get(batch.base_offset)
        if known is not None:
            self._drop(known)
        self._keep(batch)

    def get(self, offset: int, limit_bytes: int = MAX_UNPACKED_BYTES) -> Message | None:
        """The record at an offset; None if there is none: compacted away, deleted, a broker's own mark, or garbage.

        limit_bytes: see `open`. Raises StorageFailure.
        """
        if offset < self._log.log_start_offset:
            return None
        try:
            batch = self._holding(offset, limit_bytes)
            if batch is None or batch.header.attributes & CONTROL:
                return None
            return self._find(batch, offset, limit_bytes)
        except RequestError as error:  # The broker does not look inside what it stores.
            log.debug("record unreadable partition=%s-%d offset=%d: %s", self._topic, self._partition, offset, error)
            return None

    def message(self, batch: SourceBatch, index: int, limit_bytes: int = MAX_UNPACKED_BYTES) -> Message:
        """One record of a batch, by its place. Raises UnreadableBatch, StillPacked, StorageFailure."""
        start, end = batch.positions[index], batch.positions[index + 1]
        if end - start > _MAX_MESSAGE_BYTES and end - start > self._log.topic.max_message_bytes:
            raise UnreadableBatch(f"a message of {end - start} bytes, above max.message.bytes, is not read into memory")
        content = batch.content
        if content is None and not batch.header.attributes & COMPRESSION_MASK:
            content = batch.place.file.read(batch.place.position + HEADER_BYTES + start, end - start)
            start, end = 0, end - start
        elif content is None:
            packed = batch.place.file.read(batch.place.position, batch.place.length)
            content = self._with_content(batch, packed, limit_bytes)
        record = read_record(batch.header, content, start, end)
        return Message(
            self._topic,
            self._partition,
            record.offset,
            record.timestamp_ms,
            record.key,
            record.value,
            record.headers,
        )

    def _find(self, batch: SourceBatch, offset: int, limit_bytes: int) -> Message | None:
        low, high = 0, min(offset - batch.base_offset, len(batch.positions) - 2)
        if high < 0:  # The batch cannot be read.
            return None
        if batch.header.records_count == batch.header.last_offset_delta + 1:  # A producer's own, which may lie.
            low = high
        index = high
        while low <= high:  # Where compaction has left holes, a record lies before the place that its offset gives.
            found = self.message(batch, index, limit_bytes)
            if found.offset == offset:
                return found
            if found.offset < offset:
                low = index + 1
            else:
                high = index - 1
            index = (low + high) // 2
        return None

    def _holding(self, offset: int, limit_bytes: int) -> SourceBatch | None:
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
        return self._read(offset, limit_bytes)

    def _read(self, offset: int, limit_bytes: int) -> SourceBatch | None:
        found = self._log.read(offset, 1, self._log.written_offset, at_least_one=True)
        if found is None:
            return None
        batch = found.file.read(found.position, found.length)
        header = read_header(batch)
        if offset < header.base_offset:
            return None
        return self.open(header, found, batch, limit_bytes)

    def _with_content(self, batch: SourceBatch, packed: bytes, limit_bytes: int) -> Unpacked:
        """The unpacked records, kept for a while."""
        if batch.content is None:
            if limit_bytes < MAX_UNPACKED_BYTES and takes_long_to_unpack(batch.header):
                raise StillPacked(batch.header, batch.place)
            try:
                _, content = unpacked_records(packed, limit_bytes)
            except UnreadableBatch:
                if limit_bytes < MAX_UNPACKED_BYTES:
                    raise StillPacked(batch.header, batch.place) from None
                raise
            batch.content = content
            self._keep_content(batch, content)
        return batch.content

    def _keep(self, batch: SourceBatch) -> None:
        if not len(batch.positions) and not self._has_told_of_garbage:
            self._has_told_of_garbage = True
            log.warning("batch unreadable partition=%s-%d offset=%d", self._topic, self._partition, batch.base_offset)
        insort(self._bases, batch.base_offset)
        self._batches[batch.base_offset] = batch
        self._last = batch
        self._positions_count += len(batch.positions) + _BATCH_COST
        if batch.content is not None:
            self._keep_content(batch, batch.content)
        self.trim()

    def _drop(self, batch: SourceBatch) -> None:
        base = batch.header.base_offset
        del self._batches[base]
        del self._bases[bisect_right(self._bases, base) - 1]
        self._positions_count -= len(batch.positions) + _BATCH_COST
        self._drop_content(batch)
        if self._last is batch:
            self._last = None

    def _keep_content(self, batch: SourceBatch, content: Unpacked) -> None:
        self._contents[batch.header.base_offset] = batch
        self._content_bytes += len(content)
        self._unpacked_bytes += len(content)
        self._batches.move_to_end(batch.base_offset)  # So that it is not given up itself.
        self.trim()

    def _drop_content(self, batch: SourceBatch) -> None:
        if batch.content is not None and self._contents.pop(batch.header.base_offset, None) is not None:
            self._content_bytes -= len(batch.content)
            dropped, batch.content = [batch.content], None
            if not isinstance(dropped[0], bytes):
                self.dispose(dropped.clear)
