"""What the index of a subscription needs to know of the messages of a batch, before anybody reads them.

Most batches hold plain messages only, which one search for the headers' common prefix tells: they become one run.
"""

from collections.abc import Iterator
from typing import NamedTuple

from conveyor.kernel.errors import RequestError
from conveyor.kernel.ports import FileSlice
from conveyor.log.batch import COMPRESSION_MASK, CONTROL, BatchHeader
from conveyor.queues.attributes import DEFAULT_PRIORITY, PREFIX, last_header, read_attributes
from conveyor.queues.available import NO_GROUP
from conveyor.queues.message import Message
from conveyor.queues.source import MessageSource, SourceBatch

_MARK = PREFIX.encode()


def group_of(message: Message, fair_by: str | None) -> str:
    """The group that takes turns with others: the value of a header."""
    value = None if fair_by is None else last_header(message.headers, fair_by)
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
    """One batch, looked through once for each way that somebody wants it grouped."""

    def __init__(self, source: MessageSource, header: BatchHeader, place: FileSlice, batch: bytes) -> None:
        self.header = header
        self._source = source
        self._place = place
        self._batch = batch
        self._by_group: dict[str | None, list[Scanned]] = {}

    def runs(self, fair_by: str | None) -> list[Scanned]:
        """Its messages in the order of their offsets. fair_by: the header that names their groups."""
        found = self._by_group.get(fair_by)
        if found is None:
            found = self._by_group[fair_by] = list(self._scan(fair_by))
        return found

    def _scan(self, fair_by: str | None) -> Iterator[Scanned]:
        header = self.header
        if header.attributes & CONTROL or not header.records_count:
            return
        if fair_by is None and self._is_plain():
            yield self._plain(header.base_offset)
        else:
            yield from self._joined(fair_by)

    def _plain(self, start: int) -> Scanned:
        """The messages from an offset to the batch's end, which ask for nothing."""
        header = self.header
        return Scanned(start, header.next_offset, DEFAULT_PRIORITY, 0, 0, header.max_timestamp, NO_GROUP)

    def _is_plain(self) -> bool:
        if not self.header.attributes & COMPRESSION_MASK:
            return _MARK not in self._batch
        opened = self._opened()
        return opened is None or opened.content is None or _MARK not in opened.content

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
        """Message by message. What cannot be read counts as plain: whoever comes to it finds that there is nothing."""
        start = self.header.base_offset
        try:
            opened = self._source.open(self.header, self._place, self._batch)
            for index in range(self.header.records_count):
                message = self._source.message(opened, index)
                if not start <= message.offset < self.header.next_offset:
                    raise IndexError(message.offset)
                attributes = read_attributes(message.headers, message.timestamp_ms)
                group = group_of(message, fair_by)
                start = message.offset + 1
                yield Scanned(
                    message.offset,
                    start,
                    attributes.priority,
                    attributes.due_ms,
                    attributes.expires_ms,
                    message.timestamp_ms,
                    group,
                )
        except (IndexError, RequestError):
            if start < self.header.next_offset:
                yield self._plain(start)

    def _opened(self) -> SourceBatch | None:
        """None if there are no sound records in it: the broker does not look inside what it stores."""
        try:
            return self._source.open(self.header, self._place, self._batch)
        except (IndexError, RequestError):
            return None
