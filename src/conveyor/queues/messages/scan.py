"""What the index of a subscription needs to know of the messages of a batch, before anybody reads them.

Most batches hold plain messages only, which one search for the headers' common prefix tells: they become one run.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from conveyor.kernel.ports import FileSlice
from conveyor.log.record_source import SMALL_BYTES, SMALL_RECORDS, MessageSource, SourceBatch
from conveyor.queues.delivery.available import NO_GROUP
from conveyor.records.batch import COMPRESSION_MASK, CONTROL, BatchHeader
from conveyor.records.compression import MAX_UNPACKED_BYTES
from conveyor.records.message import Message
from conveyor.records.message_attributes import DEFAULT_PRIORITY, PREFIX, last_header, read_attributes
from conveyor.records.record import Header, Record, UnreadableBatch, raw_records, read_record

_MARK = PREFIX.encode()


def group_of(message: Message, fair_by: str | None) -> str:
    """The group that takes turns with others: the value of a header."""
    return _group(message.headers, fair_by)


def _group(headers: Sequence[Header], fair_by: str | None) -> str:
    value = None if fair_by is None else last_header(headers, fair_by)
    return NO_GROUP if value is None else value.decode("utf-8", "replace")


class Scanned(NamedTuple):
    """Neighbours [start, end) of one kind. due_ms: 0 if they are due at once; expires_ms: 0 if they never do."""

    start: int
    end: int
    priority: int
    due_ms: int
    expires_ms: int
    since_ms: int
    group: str


class BatchScan:
    """One batch, looked through once for each way that somebody wants it grouped; one of many records part by part.

    limit_bytes: see `MessageSource.open`.
    """

    def __init__(
        self,
        source: MessageSource,
        header: BatchHeader,
        place: FileSlice,
        batch: bytes,
        limit_bytes: int = MAX_UNPACKED_BYTES,
    ) -> None:
        self.header = header
        self._source = source
        self._place = place
        self._batch = batch
        self._limit_bytes = limit_bytes
        self._found: dict[tuple[str | None, int], tuple[list[Scanned], int]] = {}

    def runs(self, fair_by: str | None, start_offset: int = 0) -> tuple[list[Scanned], int]:
        """Its messages in the order of their offsets, from one on at least, and the offset behind them.

        fair_by: the header that names their groups. A batch that cannot be read has no messages. Raises StillPacked.
        """
        place = (fair_by, start_offset)
        found = self._found.get(place)
        if found is not None:
            return found
        try:
            if self._has_parts(fair_by):
                found = self._part(fair_by, start_offset)
            else:
                found = list(self._scan(fair_by)), self.header.next_offset
        except UnreadableBatch:  # The broker does not look inside what it stores.
            found = [], self.header.next_offset
        self._found[place] = found
        return found

    def _scan(self, fair_by: str | None) -> Iterator[Scanned]:
        header = self.header
        if header.attributes & CONTROL or not header.records_count:
            return
        if self._is_plain(fair_by):
            yield Scanned(
                header.base_offset, header.next_offset, DEFAULT_PRIORITY, 0, 0, header.max_timestamp, NO_GROUP
            )
        else:
            yield from _joined(self._scanned(fair_by))

    def _has_parts(self, fair_by: str | None) -> bool:
        """Whether its records are too many, or too large, for one turn of the loop. Raises as `_is_plain`."""
        if self.header.attributes & CONTROL or not self.header.records_count or self._is_plain(fair_by):
            return False
        return not self._opened().is_small

    def _is_plain(self, fair_by: str | None) -> bool:
        """Whether all of its messages ask for nothing. Raises UnreadableBatch, StillPacked."""
        if fair_by is not None:
            return False
        if not self.header.attributes & COMPRESSION_MASK:
            return _MARK not in self._batch
        return not self._opened().is_marked

    def _scanned(self, fair_by: str | None) -> Iterator[Scanned]:
        content = self._opened().content
        assert content is not None
        base_offset = self.header.base_offset
        for _, _, offset_delta, timestamp_ms, _, _, headers in raw_records(self.header, content, skims=True):
            yield _scanned(base_offset + offset_delta, timestamp_ms, headers, fair_by)

    def _part(self, fair_by: str | None, start_offset: int) -> tuple[list[Scanned], int]:
        opened = self._opened()
        count = len(opened.positions) - 1
        first = bisect_left(range(count), start_offset, key=lambda index: self._record(opened, index).offset)
        last = min(first + SMALL_RECORDS, count)
        if first < last:
            end = opened.positions[first] + SMALL_BYTES
            last = max(first + 1, bisect_right(opened.positions, end, first, last + 1) - 1)
        records = [self._record(opened, index) for index in range(first, last)]
        runs = list(_joined(_scanned(each.offset, each.timestamp_ms, each.headers, fair_by) for each in records))
        is_rest = last >= count
        return runs, self.header.next_offset if is_rest else runs[-1].end

    def _record(self, opened: SourceBatch, index: int) -> Record:
        assert opened.content is not None
        start, end = opened.positions[index], opened.positions[index + 1]
        return read_record(self.header, opened.content, start, end, skims=True)

    def _opened(self) -> SourceBatch:
        return self._source.open(self.header, self._place, self._batch, self._limit_bytes)


def _scanned(offset: int, timestamp_ms: int, headers: Sequence[Header], fair_by: str | None) -> Scanned:
    due_ms, expires_ms, priority, _ = read_attributes(headers, timestamp_ms)
    return Scanned(offset, offset + 1, priority, due_ms, expires_ms, timestamp_ms, _group(headers, fair_by))


def _joined(messages: Iterable[Scanned]) -> Iterator[Scanned]:
    """One run for neighbours that are alike."""
    last: Scanned | None = None
    for each in messages:
        if last is not None and last.end == each.start and last[2:5] == each[2:5] and last.group == each.group:
            last = last._replace(end=each.end)
            continue
        if last is not None:
            yield last
        last = each
    if last is not None:
        yield last
