"""Decodes stored batches for one read, up to its limits: a small compressed batch may hold many large messages."""

from collections.abc import Iterator, Sequence

from conveyor.kernel.ports import FileSlice
from conveyor.log.aborted_search import AbortedBatches
from conveyor.log.batch_reading import batches_in
from conveyor.log.transactions.aborted_entries import AbortedTransaction
from conveyor.records.batch import CONTROL
from conveyor.records.message import Message
from conveyor.records.publishers import true_headers
from conveyor.records.record import UnreadableBatch, raw_records, read_record, unpacked_records

_READ_BYTES = 1 << 20
"""The most stored bytes that are decoded at once, unless a single batch is larger. A read takes at least this weight of
messages from a batch that has it.
"""

_MESSAGE_BYTES = 256
"""The weight of a message besides its content."""


class MessageReading:
    """One read: what it has found so far, and where it goes on.

    limit, max_bytes: the most messages, and about the most weight of them and of what is left out.
    largest_bytes: larger messages are left out.
    """

    def __init__(self, topic: str, number: int, offset: int, *, limit: int, max_bytes: int, largest_bytes: int) -> None:
        self._topic = topic
        self._number = number
        self._limit = limit
        self._max_bytes = max_bytes
        self._largest_bytes = largest_bytes
        self.messages: list[Message] = []
        self.offset = offset
        self.used_bytes = 0
        self.too_large: dict[int, int] = {}
        """By offset: the size of each message that was left out because it is too large."""

    @property
    def next_bytes(self) -> int:
        """The stored bytes to decode next."""
        return min(_READ_BYTES, max(1, self._max_bytes - self.used_bytes))

    @property
    def is_complete(self) -> bool:
        """True if a limit is reached. The read goes on until it has a message."""
        return len(self.messages) >= self._limit or (bool(self.messages) and self.used_bytes >= self._max_bytes)

    def decode(self, stored: FileSlice, aborted: Sequence[AbortedTransaction]) -> None:
        """Decode batches, without those of aborted transactions, up to a limit. Call it off the event loop; it returns
        now and then, so that the read can be cancelled. Raises StorageFailure.
        """
        dropped, until_bytes = AbortedBatches(aborted), self.used_bytes + self.next_bytes
        for header, _, batch in batches_in(stored, self.offset):
            if header.attributes & CONTROL or dropped.has(header):
                self.used_bytes += header.size
            elif not self._take(batch):
                return
            self.offset = max(self.offset, header.next_offset)
            if self.is_complete or self.used_bytes >= until_bytes:
                return

    def _take(self, batch: bytes) -> bool:
        """Add the messages of a batch. Returns whether it has no more, because no limit was reached.

        An undecodable batch, which a plain topic may store, has none, as far as it is decoded.
        """
        until_bytes, count_before = max(self._max_bytes, _READ_BYTES), len(self.messages)
        try:
            for message in self._messages_in(batch):
                self.messages.append(message)
                self.offset = message.offset + 1
                self.used_bytes += message.weight_bytes + _MESSAGE_BYTES
                if len(self.messages) >= self._limit or self.used_bytes >= until_bytes:
                    return False
        except UnreadableBatch:
            del self.messages[count_before:]
            self.used_bytes += len(batch)
        return True

    def _messages_in(self, batch: bytes) -> Iterator[Message]:
        first_offset = self.offset
        header, content = unpacked_records(batch)
        for start, end, offset_delta, *_ in raw_records(header, content, skims=True):
            offset, size = header.base_offset + offset_delta, end - start
            if offset < first_offset:
                continue
            if size > self._largest_bytes:
                self.too_large[offset] = size
                self.used_bytes += size
                continue
            record = read_record(header, content, start, end)
            headers = true_headers(header.attributes, record.headers)
            yield Message(self._topic, self._number, offset, record.timestamp_ms, record.key, record.value, headers)
