"""Publishes single messages, for doors that do not send batches: builds one or a few batches per partition."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

from conveyor.broker.answers import answered
from conveyor.broker.partitions.partition_table import PartitionTable
from conveyor.broker.produce.acknowledgement import ACKS_ALL, Published
from conveyor.broker.produce.leader_publisher import Batch, LeaderPublisher
from conveyor.broker.produce.message_batches import MessageBatches, PublishRequest, Result, steps_of
from conveyor.broker.produce.outgoing_message import OutgoingMessage, Transaction
from conveyor.broker.services import Services
from conveyor.broker.topics.topics import Topics
from conveyor.cluster.topic_creation import TopicRequest
from conveyor.kernel.access.caller import Caller
from conveyor.kernel.errors import RequestError
from conveyor.records.batch import MAX_BATCH_BYTES
from conveyor.settings.tree import topic_settings

Reply = Callable[[list[Result] | RequestError], None]


class MessagePublisher:
    def __init__(
        self, *, services: Services, topics: Topics, partitions: PartitionTable, publisher: LeaderPublisher
    ) -> None:
        self._metadata = services.metadata
        self._clock = services.clock
        self._tasks = services.tasks
        self._slices = services.slices
        self._topics = topics
        self._partitions = partitions
        self._publisher = publisher
        self._requests_count = 0

    async def publish(
        self,
        caller: Caller,
        topic: str,
        messages: Sequence[OutgoingMessage],
        acks: int = ACKS_ALL,
        transaction: Transaction | None = None,
        *,
        are_copies: bool = False,
    ) -> list[Result]:
        """As `submit`. A request that was cancelled is carried out."""
        return await answered(
            lambda reply: self.submit(
                caller, topic, messages, reply, acks=acks, transaction=transaction, are_copies=are_copies
            )
        )

    def submit(
        self,
        caller: Caller,
        topic: str,
        messages: Sequence[OutgoingMessage],
        reply: Reply,
        *,
        acks: int = ACKS_ALL,
        transaction: Transaction | None = None,
        are_copies: bool = False,
    ) -> None:
        """Publish messages. `reply` gets one result for each, in order, once they are as durable as `acks` demands.
        Without messages, no topic is created.

        transaction: that the messages belong to; only with acks=all. are_copies: of stored messages, so that they keep
        the name of their first publisher. Others get that of the caller, unless it is a broker.
        Refused with UNKNOWN_TOPIC if the topic is missing and topics are not created automatically; with
        TRANSACTION_OUTCOME_UNKNOWN if messages may belong to the transaction although they were not acknowledged.
        Raises RequestError, too.
        """
        if not messages:
            return reply([])
        request = PublishRequest(caller, topic, messages, acks, transaction, are_copies)
        image = self._metadata.image.topics.get(topic)
        steps = steps_of(messages)
        if image is None or not self._topics.is_served(image) or len(steps) > 1:
            return self._tasks.answer(self._publish_in_steps(request, steps), reply)
        batches = self._batches(request, len(image.partitions))
        for step in steps:
            batches.add(step)
        now_ms = self._clock.now_ms()
        self._send(batches, [batches.encode(chunk, now_ms) for chunk in batches.chunks], reply)

    async def _publish_in_steps(self, request: PublishRequest, steps: Sequence[range]) -> list[Result]:
        """Publish many messages, or to a topic that is not served yet. Other clients are served between the steps."""
        batches = self._batches(request, await self._partition_count(request))
        for step in steps:
            batches.add(step)
            await asyncio.sleep(0)
        now_ms, encoded = self._clock.now_ms(), list[Batch]()
        for chunk in batches.chunks:
            encode = partial(batches.encode, chunk, now_ms)
            encoded.append(await self._slices.in_thread(encode) if batches.is_large(chunk) else encode())
            await asyncio.sleep(0)
        return await answered(partial(self._send, batches, encoded))

    async def _partition_count(self, request: PublishRequest) -> int:
        if request.topic not in self._metadata.image.topics and self._topics.settings.broker.auto_create_topics:
            return len((await self._topics.ensure(request.caller, TopicRequest(name=request.topic))).partitions)
        return len((await self._topics.served(request.topic)).partitions)

    def _batches(self, request: PublishRequest, partition_count: int) -> MessageBatches:
        keyless_partition = self._requests_count % partition_count
        self._requests_count += 1
        return MessageBatches(request, partition_count, keyless_partition, self.max_message_bytes)

    def max_message_bytes(self, topic: str, number: int = 0) -> int:
        """Return the size limit of a topic's messages. Raises RequestError (UNKNOWN_TOPIC)."""
        partition = self._partitions.get(topic, number)
        if partition is not None:
            settings = partition.log.topic
        else:
            settings = topic_settings(self._topics.settings.topics, self._topics.existing(topic).config)
        return min(settings.max_message_bytes, MAX_BATCH_BYTES)

    def _send(self, batches: MessageBatches, encoded: Sequence[Batch], reply: Reply) -> None:
        request = batches.request

        def published(outcomes: Sequence[Published] | RequestError) -> None:
            reply(outcomes if isinstance(outcomes, RequestError) else batches.results_of(outcomes))

        self._publisher.publish(
            request.caller,
            request.topic,
            encoded,
            request.acks,
            published,
            deduplicates=batches.deduplicates,
            transactional_id="" if request.transaction is None else request.transaction.transactional_id,
        )
