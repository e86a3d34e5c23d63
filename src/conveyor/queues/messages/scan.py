"""Extracts from a batch the data for a subscription's index, before any message is leased.

Most batches contain only messages without queue headers. One search for the headers' common prefix detects this, and
the whole batch becomes one run.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from conveyor.kernel.ports import FileSlice
from conveyor.log.record_source import SMALL_BYTES, SMALL_RECORDS, MessageSource, SourceBatch, runs_worth
from conveyor.records.batch import COMPRESSION_MASK, CONTROL, BatchHeader
from conveyor.records.compression import MAX_UNPACKED_BYTES
from conveyor.records.message import Message
from conveyor.records.message_attributes import (
    DEFAULT_PRIORITY,
    last_header,
    may_have_attributes,
    read_attributes,
)
from conveyor.records.publishers import true_headers
from conveyor.records.record import Header, Record, UnreadableBatch, raw_records, read_record

NO_GROUP = ""
"""The fairness group of a message without one."""


def group_of(message: Message, fair_by: str | None) -> str:
    """Return the fairness group of a message: the value of the header `fair_by`."""
    return _group(message.headers, fair_by)


def _group(headers: Sequence[Header], fair_by: str | None) -> str:
    value = None if fair_by is None else last_header(headers, fair_by)
    return NO_GROUP if value is None else value.decode("utf-8", "replace")


class Scanned(NamedTuple):
    """Adjacent messages [start, end) with equal attributes. due_ms: 0 if due at once; expires_ms: 0 if they never
    expire.
    """

    start: int
    end: int
    priority: int
    due_ms: int
    expires_ms: int
    since_ms: int
    group: str


class BatchScan:
    """One batch, scanned once for each header that groups its messages. A batch of many records is scanned in parts.

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
        self.work_count = runs_worth(header)
        """The work of the scan so far, as the number of records that were looked at one by one."""
        self._source = source
        self._place = place
        self._batch = batch
        self._limit_bytes = limit_bytes
        self._found: dict[tuple[str | None, int], tuple[list[Scanned], int]] = {}

    def runs(self, fair_by: str | None, start_offset: int = 0) -> tuple[list[Scanned], int]:
        """Return the batch's messages from about `start_offset` on, in offset order, and the next offset to scan.

        fair_by: the header that names the fairness group. An unreadable batch has no messages. Raises StillPacked.
        """
        cache_key = (fair_by, start_offset)
        scanned = self._found.get(cache_key)
        if scanned is not None:
            return scanned
        try:
            if self._has_parts(fair_by):
                scanned = self._part(fair_by, start_offset)
            else:
                scanned = list(self._scan(fair_by)), self.header.next_offset
        except UnreadableBatch:  # A plain topic stores batches without checking their records.
            scanned = [], self.header.next_offset
        self._found[cache_key] = scanned
        return scanned

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
        """Return whether the batch is too large to scan in one loop tick. Raises as `_is_plain`."""
        if self.header.attributes & CONTROL or not self.header.records_count or self._is_plain(fair_by):
            return False
        return not self._opened().is_small

    def _is_plain(self, fair_by: str | None) -> bool:
        """Return whether no message of the batch has queue headers. Raises UnreadableBatch, StillPacked."""
        if fair_by is not None:
            return False
        if not self.header.attributes & COMPRESSION_MASK:
            return not may_have_attributes(self._batch)
        return not self._opened().is_marked

    def _scanned(self, fair_by: str | None) -> Iterator[Scanned]:
        content = self._opened().content
        assert content is not None
        self.work_count += self.header.records_count
        base_offset = self.header.base_offset
        for _, _, offset_delta, timestamp_ms, _, _, headers in raw_records(self.header, content, skims=True):
            headers = true_headers(self.header.attributes, headers)
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
        self.work_count += len(records)
        runs = list(
            _joined(_scanned(record.offset, record.timestamp_ms, record.headers, fair_by) for record in records)
        )
        is_rest = last >= count
        return runs, self.header.next_offset if is_rest else runs[-1].end

    def _record(self, opened: SourceBatch, index: int) -> Record:
        assert opened.content is not None
        start, end = opened.positions[index], opened.positions[index + 1]
        record = read_record(self.header, opened.content, start, end, skims=True)
        headers = true_headers(self.header.attributes, record.headers)
        return record if headers is record.headers else replace(record, headers=headers)

    def _opened(self) -> SourceBatch:
        return self._source.open(self.header, self._place, self._batch, self._limit_bytes)


def _scanned(offset: int, timestamp_ms: int, headers: Sequence[Header], fair_by: str | None) -> Scanned:
    due_ms, expires_ms, priority, _ = read_attributes(headers, timestamp_ms)
    return Scanned(offset, offset + 1, priority, due_ms, expires_ms, timestamp_ms, _group(headers, fair_by))


def _joined(messages: Iterable[Scanned]) -> Iterator[Scanned]:
    """Merge adjacent messages with equal attributes into runs."""
    last: Scanned | None = None
    for message in messages:
        if last is not None and last.end == message.start and last[2:5] == message[2:5] and last.group == message.group:
            last = last._replace(end=message.end)
            continue
        if last is not None:
            yield last
        last = message
    if last is not None:
        yield last
