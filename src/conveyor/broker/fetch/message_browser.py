"""Reading committed messages, for doors that do not send batches: browsing a topic, finding a message by its id.

Messages of open transactions are not committed yet, and those of aborted transactions never are.
"""

import asyncio
import sys
from collections.abc import Sequence

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
from conveyor.broker.fetch.list_offsets import EARLIEST, LATEST, NO_OFFSET, OffsetFinder
from conveyor.broker.fetch.message_reading import MessageReading
from conveyor.broker.partitions.own_writes import wait_for_commits
from conveyor.broker.partitions.partition_table import PartitionTable
from conveyor.broker.remote.leader_calls import LeaderCalls
from conveyor.broker.services import Services
from conveyor.broker.topics.topics import Topics
from conveyor.kernel.access.caller import Caller
from conveyor.kernel.errors import ErrorKind, RequestError, StorageFailure
from conveyor.kernel.ports import FileSlice
from conveyor.log.record_source import largest_read_bytes
from conveyor.log.transactions.aborted_entries import AbortedTransaction
from conveyor.queues.subscription.policy import StartPosition
from conveyor.records.message import Message, format_message_id, is_message_id, parse_message_id
from conveyor.replication.partition import Partition
from conveyor.replication.reads import read_committed
from conveyor.replication.transactions import last_stable_offset

_BROWSED_BYTES = 8 << 20
"""About the most that is read for one answer, unless a single message is larger."""


def unknown_message(topic: str, message_id: str, reason: str) -> RequestError:
    """Return the error for an id that names no message."""
    return RequestError(ErrorKind.UNKNOWN_MESSAGE, f"topic '{topic}' has no message '{message_id}': {reason}")


class MessageBrowser:
    """See the module's docstring. The leader of a partition reads it, whichever broker is asked."""

    def __init__(
        self,
        services: Services,
        topics: Topics,
        partitions: PartitionTable,
        offsets: OffsetFinder,
        leaders: LeaderCalls,
    ) -> None:
        self._topics = topics
        self._leaders = leaders
        leaders.handlers.register(BROWSE, self._browse_here)
        leaders.handlers.register(READ, self._read_here)
        leaders.handlers.register(FIND, self._find_here)
        leaders.handlers.register(END, self._end_here)
        self._partitions = partitions
        self._offsets = offsets
        self._clock = services.clock
        self._threads = services.threads

    async def browse(
        self,
        caller: Caller,
        topic: str,
        partition: int | None,
        start: StartPosition | int,
        limit: int,
        *,
        is_whole: bool = False,
    ) -> list[Message]:
        """Return up to `limit` messages from a position on, fewer if they are large.

        partition: None for all; messages are then sorted by time.
        start: an offset, or a position as for a subscription.
        Raises RequestError: UNKNOWN_TOPIC, OFFSET_OUT_OF_RANGE; with `is_whole` CONCURRENT_TRANSACTIONS if an open
        transaction hides messages.
        """
        count = len((await self._topics.served(topic)).partitions)
        messages: list[Message] = []
        budget = _BROWSED_BYTES
        numbers = range(count) if partition is None else (partition,)
        for number in numbers:
            if messages and budget <= 0:
                break
            request = BrowsePartition(topic, number, start, limit, budget, is_whole)
            read, used = await self._leaders.ask(caller, BROWSE, topic, number, request)
            messages += read
            budget -= used
        if partition is None:
            messages.sort(key=lambda message: (message.timestamp_ms, message.partition, message.offset))
        return messages[:limit]

    async def read(
        self, caller: Caller, topic: str, number: int, start: int, limit: int, max_bytes: int
    ) -> list[Message]:
        """Return the next committed messages of a partition from an offset on; empty at its end.

        Reads about max_bytes at most, unless a single batch is larger. Raises RequestError.
        """
        request = ReadPartition(topic, number, start, limit, max_bytes)
        return await self._leaders.ask(caller, READ, topic, number, request)

    async def end_offsets(self, caller: Caller, topic: str) -> dict[int, int]:
        """Return the last stable offset of each partition that could be opened. Raises RequestError."""
        numbers = range(len(self._topics.existing(topic).partitions))
        asks = [self._leaders.ask(caller, END, topic, number, FindEnd(topic, number)) for number in numbers]
        return {number: end for number, end in enumerate(await all_answered(asks)) if end >= 0}

    async def get(self, caller: Caller, topic: str, message_id: str) -> Message:
        """Return the message with an id. Raises RequestError: UNKNOWN_TOPIC, UNKNOWN_MESSAGE."""
        count = len((await self._topics.served(topic)).partitions)
        if not is_message_id(message_id):
            raise unknown_message(topic, message_id, "an id is <partition>-<offset>, as in 0-42")
        number, offset = parse_message_id(message_id)
        if number >= count:
            raise unknown_message(topic, message_id, f"the topic's partitions are 0 to {count - 1}")
        return await self._leaders.ask(caller, FIND, topic, number, FindMessage(topic, number, offset))

    async def _browse_here(self, caller: Caller, request: BrowsePartition) -> Browsed:
        topic, number = request.topic, request.number
        partition = self._partitions.find(topic, number)
        await wait_for_commits([partition], self._clock)
        if request.is_whole and last_stable_offset(partition) < partition.term.high_watermark:
            reason = f"{partition.identity} has an open transaction: what is behind its beginning is not known yet"
            raise RequestError(ErrorKind.CONCURRENT_TRANSACTIONS, reason)
        offset = await self._start_offset(caller, topic, number, request.start)
        reading = await self._read(topic, number, offset, request.limit, request.max_bytes)
        return reading.messages, reading.used_bytes

    async def _read_here(self, caller: Caller, request: ReadPartition) -> list[Message]:
        partition = self._partitions.find(request.topic, request.number)
        await wait_for_commits([partition], self._clock)
        offset = max(request.start, int(partition.log.log_start_offset))
        if offset > last_stable_offset(partition):
            return []
        reading = await self._read(request.topic, request.number, offset, request.limit, request.max_bytes)
        return reading.messages

    async def _end_here(self, caller: Caller, request: FindEnd) -> int:
        if self._partitions.get(request.topic, request.number) is None:
            return -1
        partition = self._partitions.find(request.topic, request.number)
        await wait_for_commits([partition], self._clock)
        return last_stable_offset(partition)

    async def _find_here(self, caller: Caller, request: FindMessage) -> Message:
        topic, number, offset = request.topic, request.number, request.offset
        message_id = format_message_id(number, offset)
        partition = self._partitions.find(topic, number)
        await wait_for_commits([partition], self._clock)
        first, end = partition.log.log_start_offset, last_stable_offset(partition)
        if not first <= offset < end:
            held = f"{first} to {end - 1}" if first < end else "nothing"
            raise unknown_message(topic, message_id, f"partition {number} holds {held}")
        reading = await self._read(topic, number, offset, 1, 1, offset + 1)
        if offset in reading.too_large:
            reason = f"it takes {reading.too_large[offset]} bytes, more than max.message.bytes, and is not read"
            raise unknown_message(topic, message_id, reason)
        if not reading.messages or reading.messages[0].offset != offset:
            raise unknown_message(topic, message_id, "it was left out as a duplicate, aborted, or compacted away")
        return reading.messages[0]

    async def _start_offset(self, caller: Caller, topic: str, number: int, start: StartPosition | int) -> int:
        if isinstance(start, int):
            return start
        names = {"earliest": EARLIEST, "latest": LATEST}
        timestamp_ms = names.get(start.kind, max(0, start.timestamp_ms))
        offset, _, _ = await self._offsets.find(caller, topic, number, timestamp_ms, -1, reads_committed=True)
        return last_stable_offset(self._partitions.find(topic, number)) if offset == NO_OFFSET else offset

    async def _read(
        self, topic: str, number: int, offset: int, limit: int, max_bytes: int, limit_offset: int = sys.maxsize
    ) -> MessageReading:
        """Read committed messages from an offset on, at least one if there is one below about `limit_offset`."""
        partition = self._partitions.find(topic, number)
        largest_bytes = largest_read_bytes(partition.log.topic)
        reading = MessageReading(topic, number, offset, limit=limit, max_bytes=max_bytes, largest_bytes=largest_bytes)
        while reading.offset < limit_offset and not reading.is_complete:
            partition.leading()
            committed = read_committed(partition, reading.offset, reading.next_bytes, at_least_one=True)
            if committed.records is None:
                break
            await self._decode(partition, reading, committed.records, committed.aborted)
        return reading

    async def _decode(
        self, partition: Partition, reading: MessageReading, stored: FileSlice, aborted: Sequence[AbortedTransaction]
    ) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(self._threads, reading.decode, stored, aborted)
        except StorageFailure as failure:
            raise partition.failed_read(failure) from failure
