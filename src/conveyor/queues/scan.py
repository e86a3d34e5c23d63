"""What the index of a subscription needs to know of the messages of a batch, before anybody reads them.

Most batches hold plain messages only, which one search for the headers' common prefix tells: they become one run.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from conveyor.kernel.ports import FileSlice
from conveyor.log.batch import COMPRESSION_MASK, CONTROL, BatchHeader
from conveyor.log.compression import MAX_UNPACKED_BYTES, Unpacked
from conveyor.log.records import Header, UnreadableBatch, raw_records
from conveyor.queues.attributes import DEFAULT_PRIORITY, PREFIX, last_header, read_attributes
from conveyor.queues.available import NO_GROUP
from conveyor.queues.message import Message
from conveyor.queues.source import MessageSource

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
    """One batch, looked through once for each way that somebody wants it grouped.

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
        self._by_group: dict[str | None, list[Scanned]] = {}

    def runs(self, fair_by: str | None) -> list[Scanned]:
        """Its messages in the order of their offsets; none if it cannot be read. Raises StillPacked.

        fair_by: the header that names their groups.
        """
        found = self._by_group.get(fair_by)
        if found is None:
            try:
                found = list(self._scan(fair_by))
            except UnreadableBatch:  # The broker does not look inside what it stores.
                found = []
            self._by_group[fair_by] = found
        return found

    def _scan(self, fair_by: str | None) -> Iterator[Scanned]:
        header = self.header
        if header.attributes & CONTROL or not header.records_count:
            return
        if fair_by is None and self._is_plain():
            yield self._plain()
        else:
            yield from self._joined(fair_by)

    def _plain(self) -> Scanned:
        """All of its messages, which ask for nothing."""
        header = self.header
        return Scanned(header.base_offset, header.next_offset, DEFAULT_PRIORITY, 0, 0, header.max_timestamp, NO_GROUP)

    def _is_plain(self) -> bool:
        if not self.header.attributes & COMPRESSION_MASK:
            return _MARK not in self._batch
        return self._content().find(_MARK, 0) < 0

    def _joined(self, fair_by: str | None) -> Iterator[Scanned]:
        """One run for neighbours that are alike."""
        last: Scanned | None = None
        for each in self._each(fair_by):
            if last is not None and last.end == each.start and last[2:5] == each[2:5] and last.group == each.group:
                last = last._replace(end=each.end)
                continue
            if last is not None:
                yield last
            last = each
        if last is not None:
            yield last

    def _each(self, fair_by: str | None) -> Iterator[Scanned]:
        """Message by message."""
        base_offset = self.header.base_offset
        for _, _, offset_delta, timestamp_ms, _, _, headers in raw_records(self.header, self._content()):
            attributes = read_attributes(headers, timestamp_ms)
            offset = base_offset + offset_delta
            yield Scanned(
                offset,
                offset + 1,
                attributes.priority,
                attributes.due_ms,
                attributes.expires_ms,
                timestamp_ms,
                _group(headers, fair_by),
            )

    def _content(self) -> Unpacked:
        opened = self._source.open(self.header, self._place, self._batch, self._limit_bytes)
        assert opened.content is not None
        return opened.content
