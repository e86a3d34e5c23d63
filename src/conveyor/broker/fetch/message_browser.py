"""Reading committed messages, for doors that do not send batches: browsing a topic, finding a message by its id.

Messages of open transactions are not committed yet, and those of aborted transactions never are.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import Executor

from conveyor.broker.answers import all_answered
from conveyor.broker.fetch.browse_calls import (
    BROWSE,
    END,
    FIND,
    READ,
    Browsed,
    BrowsePartition,
    FindEnd,
    FindMessage,
    ReadPartition,
)
from conveyor.broker.fetch.list_offsets import EARLIEST, LATEST, NO_OFFSET, find_offset
from conveyor.broker.partitions.own_writes import wait_for_commits
from conveyor.broker.partitions.partition_table import PartitionTable
from conveyor.broker.remote.leader_calls import LeaderCalls
from conveyor.broker.topics.topics import Topics
from conveyor.kernel.errors import ErrorKind, RequestError, StorageFailure
from conveyor.kernel.ports import Clock, FileSlice
from conveyor.log.aborted_search import AbortedBatches
from conveyor.log.batch_reading import batches_in
from conveyor.log.transactions.aborted_entries import AbortedTransaction
from conveyor.queues.subscription.policy import StartPosition
from conveyor.records.batch import CONTROL
from conveyor.records.message import Message, format_message_id, is_message_id, parse_message_id
from conveyor.records.record import Record, UnreadableBatch, decode_records
from conveyor.replication.committed_reads import read_committed
from conveyor.replication.partition import Partition
from conveyor.replication.transactions import last_stable_offset

_READ_BYTES = 1 << 20
_BROWSED_BYTES = 8 << 20
"""The most that is read for one answer, unless a single batch is larger."""


def unknown_message(topic: str, message_id: str, reason: str) -> RequestError:
    """Return the error for an id that names no message."""
    return RequestError(ErrorKind.UNKNOWN_MESSAGE, f"topic '{topic}' has no message '{message_id}': {reason}")


class MessageBrowser:
    """See the module's docstring. The leader of a partition reads it, whichever broker is asked."""

    def __init__(
        self, topics: Topics, partitions: PartitionTable, leaders: LeaderCalls, clock: Clock, threads: Executor
    ) -> None:
        self._topics = topics
        self._leaders = leaders
        leaders.handlers.register(BROWSE, self._browse_here)
        leaders.handlers.register(READ, self._read_here)
        leaders.handlers.register(FIND, self._find_here)
        leaders.handlers.register(END, self._end_here)
        self._partitions = partitions
        self._clock = clock
        self._threads = threads

    async def browse(self, topic: str, partition: int | None, start: StartPosition | int, limit: int) -> list[Message]:
        """Return up to `limit` messages from a position on, fewer if they are large.

        partition: None for all; messages are then sorted by time.
        start: an offset, or a position as for a subscription.
        Raises RequestError: UNKNOWN_TOPIC, OFFSET_OUT_OF_RANGE.
        """
        count = len((await self._topics.served(topic)).partitions)
        messages: list[Message] = []
        budget = _BROWSED_BYTES
        numbers = range(count) if partition is None else (partition,)
        for number in numbers:
            if messages and budget <= 0:
                break
            request = BrowsePartition(topic, number, start, limit, budget)
            read, used = await self._leaders.ask(BROWSE, topic, number, request)
            messages += read
            budget -= used
        if partition is None:
            messages.sort(key=lambda message: (message.timestamp_ms, message.partition, message.offset))
        return messages[:limit]

    async def read_all(self, topic: str, number: int, at_once: int, start: int = 0) -> AsyncIterator[Message]:
        """Yield every committed message of a partition from an offset on, `at_once` per read. Raises RequestError."""
        while messages := await self.read(topic, number, start, at_once, _READ_BYTES):
            for message in messages:
                yield message
            start = messages[-1].offset + 1

    async def read(self, topic: str, number: int, start: int, limit: int, max_bytes: int) -> list[Message]:
        """Return the next committed messages of a partition from an offset on; empty at its end.

        Reads at most max_bytes, unless a single batch is larger. Raises RequestError.
        """
        request = ReadPartition(topic, number, start, limit, max_bytes)
        return await self._leaders.ask(READ, topic, number, request)

    async def end_offsets(self, topic: str) -> dict[int, int]:
        """Return the last stable offset of each partition that could be opened. Raises RequestError."""
        numbers = range(len(self._topics.existing(topic).partitions))
        asks = [self._leaders.ask(END, topic, number, FindEnd(topic, number)) for number in numbers]
        return {number: end for number, end in enumerate(await all_answered(asks)) if end >= 0}

    async def get(self, topic: str, message_id: str) -> Message:
        """Return the message with an id. Raises RequestError: UNKNOWN_TOPIC, UNKNOWN_MESSAGE."""
        count = len((await self._topics.served(topic)).partitions)
        if not is_message_id(message_id):
            raise unknown_message(topic, message_id, "an id is <partition>-<offset>, as in 0-42")
        number, offset = parse_message_id(message_id)
        if number >= count:
            raise unknown_message(topic, message_id, f"the topic's partitions are 0 to {count - 1}")
        return await self._leaders.ask(FIND, topic, number, FindMessage(topic, number, offset))

    async def _browse_here(self, request: BrowsePartition) -> Browsed:
        topic, number = request.topic, request.number
        await wait_for_commits([self._partitions.find(topic, number)], self._clock)
        offset = self._start_offset(topic, number, request.start)
        return await self._read(topic, number, offset, request.limit, request.max_bytes)

    async def _read_here(self, request: ReadPartition) -> list[Message]:
        partition = self._partitions.find(request.topic, request.number)
        await wait_for_commits([partition], self._clock)
        offset = max(request.start, int(partition.log.log_start_offset))
        if offset > last_stable_offset(partition):
            return []
        messages, _ = await self._read(request.topic, request.number, offset, request.limit, request.max_bytes)
        return messages

    async def _end_here(self, request: FindEnd) -> int:
        if self._partitions.get(request.topic, request.number) is None:
            return -1
        return last_stable_offset(self._partitions.find(request.topic, request.number))

    async def _find_here(self, request: FindMessage) -> Message:
        topic, number, offset = request.topic, request.number, request.offset
        message_id = format_message_id(number, offset)
        partition = self._partitions.find(topic, number)
        await wait_for_commits([partition], self._clock)
        first, end = partition.log.log_start_offset, last_stable_offset(partition)
        if not first <= offset < end:
            held = f"{first} to {end - 1}" if first < end else "nothing"
            raise unknown_message(topic, message_id, f"partition {number} holds {held}")
        messages, _ = await self._read(topic, number, offset, 1, 1)
        if not messages or messages[0].offset != offset:
            raise unknown_message(topic, message_id, "it was left out as a duplicate, aborted, or compacted away")
        return messages[0]

    def _start_offset(self, topic: str, number: int, start: StartPosition | int) -> int:
        if isinstance(start, int):
            return start
        names = {"earliest": EARLIEST, "latest": LATEST}
        timestamp_ms = names.get(start.kind, max(0, start.timestamp_ms))
        offset, _, _ = find_offset(self._partitions, topic, number, timestamp_ms, -1, reads_committed=True)
        return last_stable_offset(self._partitions.find(topic, number)) if offset == NO_OFFSET else offset

    async def _read(
        self, topic: str, number: int, offset: int, limit: int, max_bytes: int
    ) -> tuple[list[Message], int]:
        """Return committed messages from an offset on, at least one if there is one, and the number of bytes read."""
        partition = self._partitions.find(topic, number)
        messages: list[Message] = []
        used = 0
        while len(messages) < limit and (used < max_bytes or not messages):
            partition.check_online()
            piece_bytes = min(_READ_BYTES, max(1, max_bytes - used))
            committed = read_committed(partition, offset, piece_bytes, at_least_one=True)
            stored = committed.records
            if stored is None:
                break
            records, offset = await self._records(partition, stored, committed.aborted, offset)
            messages += (
                Message(topic, number, record.offset, record.timestamp_ms, record.key, record.value, record.headers)
                for record in records[: limit - len(messages)]
            )
            used += stored.length
        return messages, used

    async def _records(
        self, partition: Partition, stored: FileSlice, aborted: Sequence[AbortedTransaction], offset: int
    ) -> tuple[list[Record], int]:
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._threads, _decode, stored, aborted, offset)
        except StorageFailure as failure:
            raise partition.failed_read(failure) from failure


def _decode(stored: FileSlice, aborted: Sequence[AbortedTransaction], offset: int) -> tuple[list[Record], int]:
    records: list[Record] = []
    dropped = AbortedBatches(aborted)
    for header, _, batch in batches_in(stored):
        if not header.attributes & CONTROL and not dropped.has(header):
            records += _readable(batch, offset)
        offset = max(offset, header.next_offset)
    return records, offset


def _readable(batch: bytes, offset: int) -> list[Record]:
    """Return the records of a batch from an offset on; none for an undecodable batch, which a plain topic may store."""
    try:
        return [record for record in decode_records(batch) if record.offset >= offset]
    except UnreadableBatch:
        return []
