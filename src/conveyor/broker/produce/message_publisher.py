"""Publishes single messages, for doors that do not send batches: builds one or a few batches per partition."""

import asyncio
from collections.abc import Sequence

from conveyor.broker.metadata.metadata import Metadata
from conveyor.broker.partitions.partition_table import PartitionTable
from conveyor.broker.produce.leader_publisher import LeaderPublisher
from conveyor.broker.produce.outgoing_message import (
    OutgoingMessage,
    PublishedMessage,
    Transaction,
    check_outgoing,
    choose_partition,
    encode_messages,
    max_size_bytes,
)
from conveyor.broker.produce.publish import ACKS_ALL, Published
from conveyor.broker.topics.topics import Topics
from conveyor.cluster.topic_creation import TopicRequest
from conveyor.kernel.access.caller import Caller
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.ports import Clock
from conveyor.records.checked_batch import CheckedBatch
from conveyor.records.message import format_message_id
from conveyor.records.message_attributes import DEDUP_ID, last_header
from conveyor.records.record_checks import RefusedRecords
from conveyor.settings.tree import topic_settings

_AT_ONCE = 500
"""Messages handled in one tick of the event loop if each has 10 headers; others in proportion."""

_BATCH_BYTES = 61
_MOST_BATCH_BYTES = 1 << 20
"""A batch is larger only if a single message is, even if the topic allows larger batches."""


OTHER_REFUSED = "another message of the same request was refused: send this one again"
"""The refusal of a valid message that is in one batch with an invalid one."""


class MessagePublisher:
    """See the module's docstring."""

    def __init__(
        self,
        *,
        metadata: Metadata,
        topics: Topics,
        partitions: PartitionTable,
        publisher: LeaderPublisher,
        clock: Clock,
    ) -> None:
        self._metadata = metadata
        self._topics = topics
        self._partitions = partitions
        self._publisher = publisher
        self._clock = clock
        self._requests_count = 0

    async def publish(
        self,
        caller: Caller,
        topic: str,
        messages: Sequence[OutgoingMessage],
        acks: int = ACKS_ALL,
        transaction: Transaction | None = None,
    ) -> list[PublishedMessage | RequestError]:
        """Publish messages. Returns one result for each, in order, once they are as durable as `acks` demands.

        transaction: that the messages belong to; only with acks=all.
        Raises RequestError: UNKNOWN_TOPIC if the topic is missing and topics are not created automatically;
        TRANSACTION_OUTCOME_UNKNOWN if messages may belong to the transaction although they were not acknowledged.
        """
        partition_count = await self._partition_count(caller, topic)
        keyless_partition = self._requests_count % partition_count
        self._requests_count += 1
        results: list[PublishedMessage | RequestError | None] = [None] * len(messages)
        by_partition: dict[int, list[int]] = {}
        deduplicates = False
        pause = _Pause()
        for number, message in enumerate(messages):
            await pause.after(message)
            dedup_id = last_header(message.headers, DEDUP_ID) if message.headers else None
            if message.partition is not None or message.timestamp_ms is not None:
                error = check_outgoing(topic, message, partition_count)
                if error is not None:
                    results[number] = error
                    continue
            partition = choose_partition(message, dedup_id, partition_count, keyless_partition)
            by_partition.setdefault(partition, []).append(number)
            deduplicates = deduplicates or bool(dedup_id)
        batches = [
            (partition, chunk)
            for partition, numbers in by_partition.items()
            for chunk in await self._chunks(topic, partition, messages, numbers)
        ]
        published = await self._publish(caller, topic, messages, batches, acks, deduplicates, transaction)
        for (partition, chunk), outcome in zip(batches, published, strict=True):
            is_plain = outcome.error is None and not outcome.duplicates
            for place, number in enumerate(chunk):
                offset = outcome.base_offset + place
                results[number] = (
                    PublishedMessage(f"{partition}-{offset}", partition, offset, False)
                    if is_plain
                    else _result(partition, place, outcome)
                )
        return [result for result in results if result is not None]

    async def _partition_count(self, caller: Caller, topic: str) -> int:
        if topic not in self._metadata.image.topics and self._topics.settings.broker.auto_create_topics:
            return len((await self._topics.ensure(caller, TopicRequest(name=topic))).partitions)
        return len((await self._topics.served(topic)).partitions)

    async def _chunks(
        self, topic: str, number: int, messages: Sequence[OutgoingMessage], numbers: list[int]
    ) -> list[list[int]]:
        """Divide a partition's messages into a few batches, none above the topic's limit unless a message is."""
        room = min(self.max_message_bytes(topic, number), _MOST_BATCH_BYTES) - _BATCH_BYTES
        chunks: list[list[int]] = []
        left = 0
        pause = _Pause()
        for index in numbers:
            await pause.after(messages[index])
            size = max_size_bytes(messages[index])
            if not chunks or size > left:
                chunks.append([])
                left = room
            chunks[-1].append(index)
            left -= size
        return chunks

    def max_message_bytes(self, topic: str, number: int = 0) -> int:
        """Return the size limit of a topic's messages. Raises RequestError (UNKNOWN_TOPIC)."""
        partition = self._partitions.get(topic, number)
        if partition is not None:
            return partition.log.topic.max_message_bytes
        return topic_settings(self._topics.settings.topics, self._topics.existing(topic).config).max_message_bytes

    async def _publish(
        self,
        caller: Caller,
        topic: str,
        messages: Sequence[OutgoingMessage],
        batches: Sequence[tuple[int, list[int]]],
        acks: int,
        deduplicates: bool,
        transaction: Transaction | None,
    ) -> Sequence[Published]:
        now_ms = self._clock.now_ms()
        encoded: list[tuple[int, CheckedBatch]] = []
        pause = _Pause()
        for partition, chunk in batches:
            encoded.append((partition, encode_messages([messages[number] for number in chunk], now_ms, transaction)))
            await pause.after(*(messages[number] for number in chunk))
        if transaction is None:
            return await self._publisher.publish(caller, topic, encoded, acks, deduplicates=deduplicates)
        published = await self._publisher.publish(
            caller, topic, encoded, acks, deduplicates=deduplicates, transactional_id=transaction.transactional_id
        )
        _check_certainty(published)
        return published


class _Pause:
    """Lets other tasks run after a number of messages."""

    def __init__(self) -> None:
        self._weight = 0

    async def after(self, *messages: OutgoingMessage) -> None:
        for message in messages:
            self._weight += 10 + len(message.headers)
        if self._weight >= 20 * _AT_ONCE:
            self._weight = 0
            await asyncio.sleep(0)


def _check_certainty(published: Sequence[Published]) -> None:
    """Raise RequestError if a batch of a transaction may be stored although it was not acknowledged."""
    for outcome in published:
        if outcome.error is not None and outcome.may_be_stored:
            reason = f"it is not known whether all messages were stored: {outcome.error.message}"
            raise RequestError(ErrorKind.TRANSACTION_OUTCOME_UNKNOWN, reason) from outcome.error


def _result(partition: int, place: int, outcome: Published) -> PublishedMessage | RequestError:
    if outcome.error is not None:
        return _refusal(outcome.error, place)
    first = outcome.duplicates.get(place) if outcome.duplicates else None
    offset = outcome.base_offset + place if first is None else first
    return PublishedMessage(format_message_id(partition, offset), partition, offset, first is not None)


def _refusal(error: RequestError, place: int) -> RequestError:
    """Return why one message of a batch was refused. place: its index in the batch."""
    if not isinstance(error, RefusedRecords):
        return error
    own = next((refused.message for refused in error.record_errors if refused.batch_index == place), None)
    return RequestError(error.kind, OTHER_REFUSED if own is None else own)
