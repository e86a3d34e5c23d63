"""Messages, one by one, for doors that do not speak in batches: published, looked at, found by their id."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import Executor
from typing import NamedTuple

from conveyor.broker.fetch.list_offsets import EARLIEST, LATEST, NO_OFFSET, find_offset
from conveyor.broker.hosts.inboxes import Inboxes
from conveyor.broker.partitions.own_writes import wait_for_commits
from conveyor.broker.partitions.partition_table import PartitionTable
from conveyor.broker.produce.publish import ACKS_ALL, Published, Publisher
from conveyor.broker.topics.topics import Topics
from conveyor.cluster.topic_creation import TopicRequest
from conveyor.kernel.errors import ErrorKind, RequestError, StorageFailure
from conveyor.kernel.ports import Bytes, Clock, FileSlice
from conveyor.queues.subscription.policy import Start
from conveyor.records.batch import CONTROL, iterate_batches
from conveyor.records.message import (
    Message,
    format_message_id,
    format_waiting_id,
    is_message_id,
    is_waiting_id,
    parse_message_id,
    parse_waiting_id,
)
from conveyor.records.message_attributes import DEDUP_ID, LAST_TIME_MS, last_header
from conveyor.records.partitioner import partition_for_key
from conveyor.records.record import Header, Record, UnreadableBatch, decode_records, encode_batch
from conveyor.records.record_checks import RefusedRecords
from conveyor.replication.partition import Partition

_READ_BYTES = 1 << 20
_BROWSED_BYTES = 8 << 20
"""Read for one answer at most, apart from a single batch that is larger."""

_RECORD_BYTES = 40
"""At most what a record takes besides its key, value and headers; so much for each header, too."""

_AT_ONCE = 500
"""Messages that are looked at in one turn of the event loop, where each has 10 headers; others in proportion."""

_BATCH_BYTES = 61
_MOST_BATCH_BYTES = 1 << 20
"""More go into one only if a single message is larger, however large the topic's messages may be."""


class OutgoingMessage(NamedTuple):
    """What to publish. Without a partition the key decides, then `conveyor-dedup-id`; without a time it is now.

    What it asks of the queues is in its headers: see `conveyor.records.message_attributes`.
    """

    value: bytes | None
    key: bytes | None = None
    headers: tuple[Header, ...] = ()
    partition: int | None = None
    timestamp_ms: int | None = None


class PublishedMessage(NamedTuple):
    """Where a message lies. duplicate: it was there already, with the same `conveyor-dedup-id`.

    offset: -1 while it waits in an inbox (`delay.enable`): it gets one when it is due.
    """

    message_id: str
    partition: int
    offset: int
    duplicate: bool


class Messages:
    """See the module's docstring."""

    def __init__(
        self,
        *,
        topics: Topics,
        partitions: PartitionTable,
        publisher: Publisher,
        inboxes: Inboxes,
        clock: Clock,
        threads: Executor,
    ) -> None:
        self._topics = topics
        self._partitions = partitions
        self._publisher = publisher
        self._inboxes = inboxes
        self._clock = clock
        self._threads = threads
        self._turn = 0

    async def publish(
        self, topic: str, messages: Sequence[OutgoingMessage], acks: int = ACKS_ALL
    ) -> list[PublishedMessage | RequestError]:
        """Publish messages; one result each, in order. They are as safe as `acks` says when this returns.

        Raises RequestError (UNKNOWN_TOPIC) where topics are not made by using them.
        """
        partition_count = await self._partition_count(topic)
        keyless, self._turn = self._turn % partition_count, self._turn + 1
        results: list[PublishedMessage | RequestError | None] = [None] * len(messages)
        by_partition: dict[int, list[int]] = {}
        deduplicates = False
        pause = _Pause()
        for number, message in enumerate(messages):
            await pause.after(message)
            dedup_id = last_header(message.headers, DEDUP_ID) if message.headers else None
            if message.partition is not None or message.timestamp_ms is not None:
                error = _unsound(topic, message, partition_count)
                if error is not None:
                    results[number] = error
                    continue
            by_partition.setdefault(_partition(message, dedup_id, partition_count, keyless), []).append(number)
            deduplicates = deduplicates or bool(dedup_id)
        batches = [
            (partition, chunk)
            for partition, numbers in by_partition.items()
            for chunk in await self._chunks(topic, partition, messages, numbers)
        ]
        published = await self._publish(topic, messages, batches, acks, deduplicates)
        for (partition, chunk), outcome in zip(batches, published, strict=True):
            is_plain = outcome.error is None and not outcome.duplicates and outcome.inbox_offset < 0
            for place, number in enumerate(chunk):
                offset = outcome.base_offset + place
                results[number] = (
                    PublishedMessage(f"{partition}-{offset}", partition, offset, False)
                    if is_plain
                    else _result(partition, place, outcome)
                )
        return [result for result in results if result is not None]

    async def browse(self, topic: str, partition: int | None, start: Start | int, limit: int) -> list[Message]:
        """Up to so many messages from a place on, without a lease, in order of time; fewer if they are large.

        start: an offset, or where a subscription could start. Raises RequestError: UNKNOWN_TOPIC, OFFSET_OUT_OF_RANGE.
        """
        count = len(self._topics.existing(topic).partitions)
        found: list[Message] = []
        budget = _BROWSED_BYTES
        numbers = range(count) if partition is None else (partition,)
        await wait_for_commits([self._partitions.find(topic, number) for number in numbers], self._clock)
        for number in numbers:
            if found and budget <= 0:
                break
            read, used = await self._read(topic, number, self._start_offset(topic, number, start), limit, budget)
            found += read
            budget -= used
        if partition is None:
            found.sort(key=lambda message: (message.timestamp_ms, message.partition, message.offset))
        return found[:limit]

    async def read_all(self, topic: str, number: int, at_once: int, start: int = 0) -> AsyncIterator[Message]:
        """Every committed message of a partition from an offset on, read in portions. Raises RequestError."""
        while found := await self.read(topic, number, start, at_once, _READ_BYTES):
            for message in found:
                yield message
            start = found[-1].offset + 1

    async def read(self, topic: str, number: int, start: int, limit: int, max_bytes: int) -> list[Message]:
        """The next committed messages of a partition from an offset on; none if there are no more.

        Reads no more than max_bytes, or a single batch if that is larger. Raises RequestError.
        """
        partition = self._partitions.find(topic, number)
        await wait_for_commits([partition], self._clock)
        offset = max(start, int(partition.log.log_start_offset))
        if offset > partition.high_watermark:
            return []
        found, _ = await self._read(topic, number, offset, limit, max_bytes)
        return found

    def end_offsets(self, topic: str) -> dict[int, int]:
        """Where the committed messages end, of each partition that could be opened. Raises RequestError."""
        numbers = range(len(self._topics.existing(topic).partitions))
        return {
            number: int(self._partitions.find(topic, number).high_watermark)
            for number in numbers
            if self._partitions.has(topic, number)
        }

    async def get(self, topic: str, message_id: str) -> Message:
        """One message. Raises RequestError: UNKNOWN_TOPIC, UNKNOWN_MESSAGE."""
        count = len(self._topics.existing(topic).partitions)
        if is_waiting_id(message_id):
            return await self._get_waiting(topic, message_id, count)
        if not is_message_id(message_id):
            raise _unknown(topic, message_id, "an id is <partition>-<offset>, as in 0-42")
        number, offset = parse_message_id(message_id)
        if number >= count:
            raise _unknown(topic, message_id, f"the topic's partitions are 0 to {count - 1}")
        partition = self._partitions.find(topic, number)
        await wait_for_commits([partition], self._clock)
        first, end = partition.log.log_start_offset, partition.high_watermark
        if not first <= offset < end:
            held = f"{first} to {end - 1}" if first < end else "nothing"
            raise _unknown(topic, message_id, f"partition {number} holds {held}")
        found, _ = await self._read(topic, number, offset, 1, 1)
        if not found or found[0].offset != offset:
            raise _unknown(topic, message_id, "it was left out as a duplicate, or compacted away")
        return found[0]

    async def _get_waiting(self, topic: str, message_id: str, count: int) -> Message:
        number, offset = parse_waiting_id(message_id)
        message = await self._inboxes.get(topic, number, offset) if number < count else None
        if message is None:
            raise _unknown(topic, message_id, "it does not wait any more: it is due, or was cancelled")
        return message

    async def _partition_count(self, topic: str) -> int:
        known = self._topics.image.topics.get(topic)
        if known is None and self._topics.settings.broker.auto_create_topics:
            known = await self._topics.ensure(TopicRequest(name=topic))
        return len((known or self._topics.existing(topic)).partitions)

    async def _chunks(
        self, topic: str, number: int, messages: Sequence[OutgoingMessage], numbers: list[int]
    ) -> list[list[int]]:
        """The messages of a partition as few batches; none larger than the topic takes, if its messages are not."""
        try:
            most_bytes = self._partitions.find(topic, number).log.topic.max_message_bytes
        except RequestError:
            return [numbers]
        room = min(most_bytes, _MOST_BATCH_BYTES) - _BATCH_BYTES
        chunks: list[list[int]] = []
        left = 0
        pause = _Pause()
        for each in numbers:
            await pause.after(messages[each])
            size = _size(messages[each])
            if not chunks or size > left:
                chunks.append([])
                left = room
            chunks[-1].append(each)
            left -= size
        return chunks

    async def _publish(
        self,
        topic: str,
        messages: Sequence[OutgoingMessage],
        batches: Sequence[tuple[int, list[int]]],
        acks: int,
        deduplicates: bool,
    ) -> Sequence[Published]:
        now_ms = self._clock.now_ms()
        done: asyncio.Future[Sequence[Published]] = asyncio.get_running_loop().create_future()
        encoded: list[tuple[str, int, Bytes | None]] = []
        pause = _Pause()
        for partition, chunk in batches:
            encoded.append((topic, partition, _encode([messages[number] for number in chunk], now_ms)))
            await pause.after(*(messages[number] for number in chunk))

        def finished(results: Sequence[Published]) -> None:
            if not done.done():
                done.set_result(results)

        self._publisher.publish(encoded, acks, finished, deduplicates=deduplicates)
        return await done

    def _start_offset(self, topic: str, number: int, start: Start | int) -> int:
        if isinstance(start, int):
            return start
        known = {"earliest": EARLIEST, "latest": LATEST}
        timestamp_ms = known.get(start.kind, max(0, start.timestamp_ms))
        offset, _, _ = find_offset(self._partitions, topic, number, timestamp_ms, -1)
        return self._partitions.find(topic, number).high_watermark if offset == NO_OFFSET else offset

    async def _read(
        self, topic: str, number: int, offset: int, limit: int, max_bytes: int
    ) -> tuple[list[Message], int]:
        """Committed messages from an offset on, one at least if there is one; and the bytes that were read for them."""
        partition = self._partitions.find(topic, number)
        found: list[Message] = []
        used = 0
        while len(found) < limit and (used < max_bytes or not found):
            stored = partition.read(offset, min(_READ_BYTES, max(1, max_bytes - used)), at_least_one=True)
            if stored is None:
                break
            records, offset = await self._records(partition, stored, offset)
            found += (
                Message(topic, number, each.offset, each.timestamp_ms, each.key, each.value, each.headers)
                for each in records[: limit - len(found)]
            )
            used += stored.length
        return found, used

    async def _records(self, partition: Partition, stored: FileSlice, offset: int) -> tuple[list[Record], int]:
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._threads, _decode, stored, offset)
        except StorageFailure as failure:
            raise partition.failed_read(failure) from failure


class _Pause:
    """Lets others have a turn of the event loop every so many messages."""

    def __init__(self) -> None:
        self._weight = 0

    async def after(self, *messages: OutgoingMessage) -> None:
        for message in messages:
            self._weight += 10 + len(message.headers)
        if self._weight >= 20 * _AT_ONCE:
            self._weight = 0
            await asyncio.sleep(0)


def _decode(stored: FileSlice, offset: int) -> tuple[list[Record], int]:
    content = stored.file.read(stored.position, stored.length)
    records: list[Record] = []
    for position, header in iterate_batches(content):
        if not header.attributes & CONTROL:
            records += _readable(content[position : position + header.size], offset)
        offset = max(offset, header.next_offset)
    return records, offset


def _readable(batch: bytes, offset: int) -> list[Record]:
    """The records of a batch from an offset on; none of one that cannot be read, which a plain topic stores."""
    try:
        return [record for record in decode_records(batch) if record.offset >= offset]
    except UnreadableBatch:
        return []


def _encode(messages: Sequence[OutgoingMessage], now_ms: int) -> bytes:
    return encode_batch(
        [
            (now_ms if each.timestamp_ms is None else each.timestamp_ms, each.key, each.value, each.headers)
            for each in messages
        ]
    )


def _unsound(topic: str, message: OutgoingMessage, partition_count: int) -> RequestError | None:
    if message.partition is not None and not 0 <= message.partition < partition_count:
        reason = f"topic '{topic}' has partitions 0 to {partition_count - 1}, not {message.partition}"
        return RequestError(ErrorKind.INVALID_REQUEST, reason)
    if message.timestamp_ms is not None and not 0 <= message.timestamp_ms <= LAST_TIME_MS:
        reason = f"timestamp {message.timestamp_ms} is not within 0 to {LAST_TIME_MS} ms since 1970"
        return RequestError(ErrorKind.INVALID_REQUEST, reason)
    return None


def _partition(message: OutgoingMessage, dedup_id: bytes | None, partition_count: int, keyless: int) -> int:
    if message.partition is not None:
        return message.partition
    key = message.key if message.key is not None else dedup_id
    return keyless if key is None else partition_for_key(key, partition_count)


def _size(message: OutgoingMessage) -> int:
    size = len(message.key or b"") + len(message.value or b"") + _RECORD_BYTES
    if message.headers:
        size += sum(len(name) + len(name) + len(value or b"") + _RECORD_BYTES for name, value in message.headers)
    return size


def _result(partition: int, place: int, outcome: Published) -> PublishedMessage | RequestError:
    if outcome.error is not None:
        return _refusal(outcome.error, place)
    first = outcome.duplicates.get(place) if outcome.duplicates else None
    if outcome.inbox_offset >= 0:
        inbox_offset = outcome.inbox_offset + place if first is None else first
        return PublishedMessage(format_waiting_id(partition, inbox_offset), partition, -1, first is not None)
    offset = outcome.base_offset + place if first is None else first
    return PublishedMessage(format_message_id(partition, offset), partition, offset, first is not None)


def _refusal(error: RequestError, place: int) -> RequestError:
    """Why one message of a batch was not taken. place: its number there."""
    if not isinstance(error, RefusedRecords):
        return error
    own = next((each.message for each in error.record_errors if each.batch_index == place), None)
    reason = "another message of the same request was refused: send this one again" if own is None else own
    return RequestError(error.kind, reason)


def _unknown(topic: str, message_id: str, reason: str) -> RequestError:
    return RequestError(ErrorKind.UNKNOWN_MESSAGE, f"topic '{topic}' has no message '{message_id}': {reason}")
