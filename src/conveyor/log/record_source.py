"""Reads single records of one partition by offset, in any order, as queues need.

The source caches the record positions of many batches, at a few bytes per record, and the decompressed content of a
few batches. For a batch that compaction has thinned out it also caches the records' offsets, so that a missing offset
costs no read. Cached data stays valid because records never change.
All sources of a broker share the memory limit; the last batch read is always kept.

Batches are read whole and compared with their CRC: a batch that the disk has changed raises LogDamaged. An unreadable
batch, which a plain topic may contain, has no messages. Neither has a batch of an aborted transaction: the caller reads
below the last stable offset, where each transaction is decided. A batch that is large or slow to decompress raises
StillPacked, unless the caller sets a higher limit: it runs `unpack_batch` on a thread and passes the result to `keep`.
"""

import logging
from array import array
from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator

from conveyor.kernel.errors import LogDamaged, ReadLater, RequestError
from conveyor.kernel.ports import FileSlice
from conveyor.log.aborted_search import AbortedBatches, aborted_between
from conveyor.log.batch_reading import StoredBatch, batches_in, read_batch
from conveyor.log.cache_share import CacheShare
from conveyor.log.log import Log
from conveyor.records.batch import (
    COMPRESSION_MASK,
    CONTROL,
    BatchHeader,
    is_transactional,
)
from conveyor.records.compression import MAX_UNPACKED_BYTES, Unpacked
from conveyor.records.message import Message
from conveyor.records.message_attributes import may_have_attributes
from conveyor.records.publishers import true_headers
from conveyor.records.record import (
    UnreadableBatch,
    offset_deltas,
    raw_records,
    read_record,
    record_positions,
    unpacked_records,
)
from conveyor.settings.tree import TopicSettings

log = logging.getLogger(__name__)

_MAX_CONTENT_BYTES = 8 << 20
_MAX_POSITIONS = 2_000_000
_POSITION_BYTES = 8
_PARTS = 3
"""One part of the cache share is for decompressed content, the others are for positions."""

_BATCH_COST = 100
"""The memory for a batch besides its positions, as a number of positions."""

SMALL_BYTES = 1 << 16
"""The most content to decompress and examine on the event loop: it may contain thousands of headers."""

_SMALL_PACKED_BYTES = 1 << 16
"""The most stored bytes to read again and decompress on the event loop: an empty gzip member takes 20 bytes, and 10 us
to decompress.
"""

SMALL_RECORDS = 1_000
"""The most records to examine at once on the event loop."""

BYTES_OF_A_RUN = 4 << 10
"""The event loop looks at so many bytes of a batch in about the time that it takes for one run of messages."""

_MAX_MESSAGE_BYTES = 16 << 20

_SEARCHED_OFFSETS = 10_000
"""The source searches so many offsets ahead for aborted transactions at once."""

_UNPACKED_AT_ONCE = 1 << 20
"""The most bytes that one call of `batches` decompresses, apart from its last batch."""


def _run_now(work: Callable[[], None]) -> None:
    work()


class StillPacked(ReadLater):
    """A batch must be decompressed on a thread before its records can be read."""

    def __init__(self, header: BatchHeader, place: FileSlice) -> None:
        super().__init__(f"the batch at offset {header.base_offset} is not unpacked")
        self.header = header
        self.place = place


class SourceBatch:
    """One batch: its header, its record positions, and its content while that is cached.

    An unreadable batch has no positions. offset_deltas: of its records, if there are gaps between them, as compaction
    leaves them. is_marked: a record may have queue headers. is_aborted: whether it belongs to an aborted transaction;
    None if that was not asked yet. cost: the memory that it takes besides the content, as a number of positions.
    Raises UnreadableBatch.
    """

    __slots__ = (
        "base_offset",
        "content",
        "cost",
        "header",
        "is_aborted",
        "is_marked",
        "is_small",
        "next_offset",
        "offset_deltas",
        "place",
        "positions",
    )

    def __init__(self, header: BatchHeader, place: FileSlice, content: Unpacked, positions: "array[int]") -> None:
        self.header = header
        self.is_aborted: bool | None = None
        self.base_offset = header.base_offset
        self.next_offset = header.next_offset
        self.place = place
        self.content: Unpacked | None = content
        self.positions = positions
        has_gaps = header.records_count != header.last_offset_delta + 1
        self.offset_deltas = offset_deltas(content, positions) if has_gaps else None
        self.cost = len(positions) * (2 if has_gaps else 1) + _BATCH_COST
        self.is_marked = may_have_attributes(content)
        self.is_small = header.records_count <= SMALL_RECORDS and len(content) <= SMALL_BYTES

    def following(self, offset: int) -> int:
        """Return the lowest offset that may have a record, above one in this batch."""
        deltas = self.offset_deltas
        if deltas is None:
            return offset + 1
        index = bisect_right(deltas, offset - self.base_offset)
        return self.base_offset + deltas[index] if index < len(deltas) else self.next_offset


def unpack_batch(header: BatchHeader, place: FileSlice) -> SourceBatch:
    """Read and decompress a batch of any size; call it off the event loop. Raises StorageFailure."""
    return _unpack(header, place, read_batch(place), MAX_UNPACKED_BYTES)


def takes_long_to_look_at(header: BatchHeader) -> bool:
    """Return whether a thread has to examine a batch first: it may be slow to decompress, or has too many records."""
    return header.records_count > SMALL_RECORDS or header.size > SMALL_BYTES


def runs_worth(header: BatchHeader) -> int:
    """Return how long the event loop takes to look at a batch, as the number of runs of messages that it could add to
    an index meanwhile. A compressed batch is small once it is decompressed.
    """
    return (SMALL_BYTES if header.attributes & COMPRESSION_MASK else header.size) // BYTES_OF_A_RUN


def largest_read_bytes(topic: TopicSettings) -> int:
    """Return the size of the largest messages that are read: above the limit, those that the topic accepts unpacked."""
    return max(_MAX_MESSAGE_BYTES, topic.max_message_bytes)


def _unpack(header: BatchHeader, place: FileSlice, batch: bytes, limit_bytes: int) -> SourceBatch:
    """Decompress a batch. Raises StillPacked, only if there is a limit."""
    is_limited = limit_bytes < MAX_UNPACKED_BYTES
    if is_limited and takes_long_to_look_at(header):
        raise StillPacked(header, place)
    try:
        _, content = unpacked_records(batch, limit_bytes)
        unpacked = SourceBatch(header, place, content, record_positions(content, header.records_count))
        if not unpacked.is_small:  # Its records are examined in parts later, so they are all validated now.
            deque(raw_records(header, content, skims=True), maxlen=0)
        return unpacked
    except UnreadableBatch as error:
        if is_limited and header.attributes & COMPRESSION_MASK:  # It may be valid, but above the limit.
            raise StillPacked(header, place) from None
        log.debug("batch unreadable offset=%d bytes=%d: %s", header.base_offset, header.size, error)
        return SourceBatch(header, place, b"", array("L"))


class MessageSource:
    """Reads one partition; see the module's docstring."""

    def __init__(self, topic: str, partition: int, log: Log) -> None:
        self._topic = topic
        self._partition = partition
        self._log = log
        self._bases: list[int] = []
        self._batches: OrderedDict[int, SourceBatch] = OrderedDict()
        self._contents: OrderedDict[int, SourceBatch] = OrderedDict()
        self._positions_count = 0
        self._content_bytes = 0
        self.unpacked_bytes = 0
        """The content of all batches that were opened so far, whether they were compressed or not."""
        self._has_logged_unreadable = False
        self.dispose: Callable[[Callable[[], None]], object] = _run_now
        """Runs a callback that frees large content. Freeing is slow, so the owner may run it on a thread."""
        self._last: SourceBatch | None = None
        self._gap = range(0)
        """The offsets without a batch that were found last: the next ones are likely among them."""
        self._stable_offset = 0
        """A last stable offset that a caller of `batches` has seen."""
        self._aborted = AbortedBatches()
        self._searched = range(0)
        """The offsets, below the last stable offset, whose aborted batches are known."""
        self._share: CacheShare | None = None

    def join(self, share: CacheShare) -> None:
        """Limit the cache to a share of the broker's, plus the last batch."""
        self._share = share
        share.join(self)
        self.trim()

    def leave(self) -> None:
        """Give up the cache share: nothing is read any more."""
        if self._share is not None:
            self._share.leave(self)

    def trim(self) -> None:
        """Discard batches and content above the cache share."""
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
        """Read from a reopened log from now on. The files of the previous log may be closed."""
        self._log = log
        self._bases, self._last, self._gap = [], None, range(0)
        self._searched = range(0)
        self._batches.clear()
        self._contents.clear()
        self._positions_count = self._content_bytes = 0

    @property
    def log_start_offset(self) -> int:
        return self._log.log_start_offset

    @property
    def log_end_offset(self) -> int:
        return self._log.log_end_offset

    def batches(self, offset: int, limit_offset: int, max_bytes: int) -> Iterator[StoredBatch]:
        """Yield whole batches from the one that holds `offset` on, at least one if there is any: header, position
        and bytes. The header of an aborted batch is that of a control batch: it has no messages.

        limit_offset: at most the last stable offset. Raises StorageFailure.
        """
        offset = max(offset, self._log.log_start_offset)
        piece = self._log.read(offset, max_bytes, limit_offset, at_least_one=True)
        if piece is None:
            self._check_gap(offset, limit_offset)
            return
        unpacked_bytes = self.unpacked_bytes
        self._stable_offset = max(self._stable_offset, limit_offset)
        for batch in batches_in(piece, offset):
            header = batch.header
            if offset < header.base_offset:
                self._check_gap(offset, header.base_offset)
            offset = header.next_offset
            if self._is_aborted(header):
                batch = batch._replace(header=header._replace(attributes=header.attributes | CONTROL))
            yield batch
            if self.unpacked_bytes - unpacked_bytes > _UNPACKED_AT_ONCE:
                return

    def open(self, header: BatchHeader, place: FileSlice, batch: bytes, limit_bytes: int = SMALL_BYTES) -> SourceBatch:
        """Decompress a batch, cache it for `get` and return it with its content. Raises UnreadableBatch.

        limit_bytes: StillPacked is raised if the content is larger, or has too many records.
        """
        cached = self._batches.get(header.base_offset)
        if cached is not None and cached.header != header:  # Compaction has replaced the batch.
            self._drop(cached)
            cached = None
        if cached is None:
            cached = _unpack(header, place, batch, limit_bytes)
            self._keep(cached)
        if len(cached.positions) == 0:
            raise UnreadableBatch(f"the batch at offset {header.base_offset} cannot be read")
        self._content_of(cached, limit_bytes, batch)
        return cached

    def has_content(self, header: BatchHeader) -> bool:
        """Return whether a batch is decompressed, or known to be unreadable."""
        cached = self._batches.get(header.base_offset)
        return (
            cached is not None and cached.header == header and (cached.content is not None or not len(cached.positions))
        )

    def keep(self, batch: SourceBatch) -> None:
        """Cache a batch that was decompressed on a thread."""
        cached = self._batches.get(batch.base_offset)
        if cached is not None:
            self._drop(cached)
        self._keep(batch)

    def get(self, offset: int, limit_bytes: int = SMALL_BYTES) -> Message | None:
        """Return the record at an offset; None if it was compacted away, deleted or aborted, is a control record, or
        is unreadable.

        offset: below the last stable offset. limit_bytes: see `open`. Raises StillPacked, StorageFailure.
        """
        if offset < self._log.log_start_offset:
            return None
        try:
            batch = self._holding(offset, limit_bytes)
            if batch is None or self._has_no_messages(batch):
                return None
            return self._find(batch, offset, limit_bytes)
        except RequestError as error:  # A plain topic stores batches without checking their records.
            log.debug("record unreadable partition=%s-%d offset=%d: %s", self._topic, self._partition, offset, error)
            return None

    def following(self, offset: int) -> int:
        """Return the lowest offset that may have a message, above one where `get` has just found none."""
        if offset < self._log.log_start_offset:
            return self._log.log_start_offset
        if offset in self._gap:
            return self._gap.stop
        batch = self._last
        if batch is None or not batch.base_offset <= offset < batch.next_offset:
            return offset + 1
        if len(batch.positions) < 2 or self._has_no_messages(batch):
            return batch.next_offset
        return batch.following(offset)

    @property
    def last_timestamp_ms(self) -> int | None:
        """The latest timestamp of the batch that was read last, if there is one."""
        return None if self._last is None else self._last.header.max_timestamp

    def _has_no_messages(self, batch: SourceBatch) -> bool:
        if batch.is_aborted is None:
            batch.is_aborted = self._is_aborted(batch.header)
        return batch.is_aborted or bool(batch.header.attributes & CONTROL)

    def _is_aborted(self, header: BatchHeader) -> bool:
        """Return whether a batch below the last stable offset belongs to an aborted transaction.

        The search may look at all transactions that were aborted while a long one was open, so its result is kept for
        the batches behind. Raises StorageFailure.
        """
        if not is_transactional(header):
            return False
        if header.base_offset < self._searched.start or header.next_offset > self._searched.stop:
            end = max(header.next_offset, min(self._stable_offset, header.next_offset + _SEARCHED_OFFSETS))
            self._aborted = AbortedBatches(aborted_between(self._log.segments.all, header.base_offset, end))
            self._searched = range(header.base_offset, end)
        return self._aborted.has(header)

    def message(self, batch: SourceBatch, index: int, limit_bytes: int = SMALL_BYTES) -> Message:
        """Return one record of a batch by its index. Raises UnreadableBatch, StillPacked, StorageFailure."""
        start, end = batch.positions[index], batch.positions[index + 1]
        if end - start > largest_read_bytes(self._log.topic):
            raise UnreadableBatch(f"a message of {end - start} bytes exceeds max.message.bytes and is not read")
        record = read_record(batch.header, self._content_of(batch, limit_bytes), start, end)
        return Message(
            self._topic,
            self._partition,
            record.offset,
            record.timestamp_ms,
            record.key,
            record.value,
            true_headers(batch.header.attributes, record.headers),
        )

    def _find(self, batch: SourceBatch, offset: int, limit_bytes: int) -> Message | None:
        index = offset_delta = offset - batch.base_offset
        deltas = batch.offset_deltas
        if deltas is not None:
            index = bisect_left(deltas, offset_delta)
            if index < len(deltas) and deltas[index] != offset_delta:
                return None
        if index > len(batch.positions) - 2:  # It is above the last record, or the batch cannot be read.
            return None
        message = self.message(batch, index, limit_bytes)
        return message if message.offset == offset else None  # A producer's header may be wrong.

    def _holding(self, offset: int, limit_bytes: int) -> SourceBatch | None:
        last = self._last
        if last is not None and last.base_offset <= offset < last.next_offset:
            return last
        if offset in self._gap:
            return None
        place = bisect_right(self._bases, offset) - 1
        if place >= 0:
            cached = self._batches[self._bases[place]]
            if offset < cached.next_offset:
                self._batches.move_to_end(cached.base_offset)
                self._last = cached
                return cached
        return self._read(offset, limit_bytes)

    def _read(self, offset: int, limit_bytes: int) -> SourceBatch | None:
        limit_offset = self._log.written_offset
        piece = self._log.read(offset, 1, limit_offset, at_least_one=True)
        if piece is None:
            self._check_gap(offset, limit_offset)
            self._gap = range(offset, limit_offset)
            return None
        header, place, batch = next(batches_in(piece, offset))
        if offset < header.base_offset:
            self._check_gap(offset, header.base_offset)
            self._gap = range(offset, header.base_offset)
            return None
        return self.open(header, place, batch, limit_bytes)

    def _check_gap(self, offset: int, end_offset: int) -> None:
        """Raise LogDamaged if there are no records between two offsets, and compaction has not removed them: a damaged
        length hides them. Those below the log start, or truncated, may have been removed since they were looked for.
        """
        log = self._log
        if max(offset, log.log_start_offset, log.copying.compacted_offset) < min(end_offset, log.written_offset):
            raise LogDamaged(f"{log.place.path} has no batch from offset {offset} to {end_offset - 1}")

    def _content_of(self, batch: SourceBatch, limit_bytes: int, packed: bytes | None = None) -> Unpacked:
        """Return a batch's content. Unless that is cached, decompress the batch, or read it first."""
        if batch.content is None:
            if limit_bytes < MAX_UNPACKED_BYTES and batch.header.size > _SMALL_PACKED_BYTES:
                raise StillPacked(batch.header, batch.place)
            try:
                _, content = unpacked_records(packed or read_batch(batch.place), limit_bytes)
            except UnreadableBatch:
                if limit_bytes < MAX_UNPACKED_BYTES:
                    raise StillPacked(batch.header, batch.place) from None
                raise
            batch.content = content
            self._keep_content(batch, content)
        return batch.content

    def _keep(self, batch: SourceBatch) -> None:
        if not len(batch.positions) and not self._has_logged_unreadable:
            self._has_logged_unreadable = True
            log.warning("batch unreadable partition=%s-%d offset=%d", self._topic, self._partition, batch.base_offset)
        insort(self._bases, batch.base_offset)
        self._batches[batch.base_offset] = batch
        self._last = batch
        self._positions_count += batch.cost
        if batch.content is not None:
            self._keep_content(batch, batch.content)
        self.trim()

    def _drop(self, batch: SourceBatch) -> None:
        base = batch.header.base_offset
        del self._batches[base]
        del self._bases[bisect_right(self._bases, base) - 1]
        self._positions_count -= batch.cost
        self._drop_content(batch)
        if self._last is batch:
            self._last = None

    def _keep_content(self, batch: SourceBatch, content: Unpacked) -> None:
        self._contents[batch.header.base_offset] = batch
        self._content_bytes += len(content)
        self.unpacked_bytes += len(content)
        self._batches.move_to_end(batch.base_offset)  # Otherwise `trim` might discard this batch.
        self.trim()

    def _drop_content(self, batch: SourceBatch) -> None:
        if batch.content is not None and self._contents.pop(batch.header.base_offset, None) is not None:
            self._content_bytes -= len(batch.content)
            dropped, batch.content = [batch.content], None
            if not isinstance(dropped[0], bytes):
                self.dispose(dropped.clear)
