"""Publishes record batches. A produced batch passes these stages, each in a module of its own:

    check             `records.checked_batch`   length, magic, CRC-32C, fields: once for all stages
    look at records   `record_demands`          keys and timestamps that the topic demands, limits of ids
    de-duplicate      `deduplication`           drops records with known ids
    recompress        `recompression`           to the topic's `compression.type`
    append            `replication.partition`   assigns offsets
    acknowledge       `acknowledgement`         once the batch is as durable as `acks` demands

A plain topic has no demands on records: its batches go from the check to the append at once. All other batches pass
through `inspected_appends`, which runs the stages between: at once or in a lane, in order for each partition.
"""

import logging
from collections.abc import Sequence
from functools import partial
from typing import NoReturn

from conveyor.broker.partitions.partition_table import PartitionTable
from conveyor.broker.produce.acknowledgement import (
    ACKS_ALL,
    ACKS_LEADER,
    ACKS_NONE,
    Finished,
    PendingRequest,
    Published,
)
from conveyor.broker.produce.inspected_appends import Appended, InspectedAppends
from conveyor.cluster.image import is_internal
from conveyor.cluster.topic_decisions import owned_by_broker
from conveyor.kernel.attempts import attempt
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.ports import Bytes, Clock
from conveyor.kernel.state_change import StateChange
from conveyor.records.checked_batch import CheckedBatch, check_batch, check_size
from conveyor.records.timestamps import is_too_new
from conveyor.replication.partition import Partition

__all__ = ["ACKS_ALL", "ACKS_LEADER", "ACKS_NONE", "Published", "Publisher"]

log = logging.getLogger(__name__)

APPENDING = StateChange("a batch may be appended in part")


class Publisher:
    """Appends batches to partitions by name."""

    def __init__(self, partitions: PartitionTable, clock: Clock, inspected_appends: InspectedAppends) -> None:
        self._partitions = partitions
        self._clock = clock
        self._inspected_appends = inspected_appends

    async def drain(self) -> None:
        """Wait until every published batch is appended."""
        await self._inspected_appends.drain()

    def publish(
        self,
        batches: Sequence[tuple[str, int, Bytes | CheckedBatch | None]],
        acks: int,
        finished: Finished,
        *,
        deduplicates: bool = False,
    ) -> None:
        """Append batches of (topic, partition, batch). `finished` gets one result for each batch, in order, now or
        later.

        deduplicates: drop records with a known `conveyor-dedup-id`, even if the topic's `dedup.enable` is off.
        Raises RequestError (INVALID_REQUIRED_ACKS).
        """
        if acks not in (ACKS_NONE, ACKS_LEADER, ACKS_ALL):
            raise RequestError(ErrorKind.INVALID_REQUIRED_ACKS, f"acks is 0, 1 or all (-1), not {acks}")
        now_ms = self._clock.now_ms()
        request = PendingRequest(len(batches), acks, deduplicates, finished)
        with APPENDING:
            for index, (topic, number, batch) in enumerate(batches):
                result = request.results[index]
                try:
                    self._publish_one(topic, number, batch, now_ms, request, result)
                except RequestError as error:
                    request.settle(result, error)
        request.settle_one()

    def _publish_one(
        self,
        topic: str,
        number: int,
        produced: Bytes | CheckedBatch | None,
        now_ms: int,
        request: PendingRequest,
        result: Published,
    ) -> None:
        partition = self.writable(topic, number)
        result.log_start_offset = partition.log.log_start_offset
        if produced is None:
            raise RequestError(ErrorKind.INVALID_RECORD, "no records")
        if request.acks == ACKS_ALL:
            partition.term.check_replicas()
        is_plain = not self._inspected_appends.is_needed(partition, request.deduplicates)
        if is_plain:
            partition.term.check_writable()
        max_bytes = partition.log.topic.max_message_bytes
        if isinstance(produced, CheckedBatch):
            batch = check_size(produced, max_bytes)
        else:
            batch = attempt(_refuse_unchecked, check_batch, produced, max_bytes)
        if is_plain:
            if not is_too_new(batch.header.max_timestamp, partition.log.topic, now_ms):
                return request.settle_when_safe(result, partition, partition.append(batch, now_ms))
            partition.log.producers.check(batch.header)  # A wrong sequence is refused before a too new timestamp.
        appended = partial(_settle_when_safe, request, result, partition)
        self._inspected_appends.append(partition, batch, request.deduplicates, appended)

    def writable(self, topic: str, number: int) -> Partition:
        """Return a partition for producers. Raises RequestError: also if the topic is the broker's own."""
        if is_internal(topic):
            raise owned_by_broker(topic)
        return self._partitions.find_for_producer(topic, number)


def _refuse_unchecked(error: Exception) -> NoReturn:
    """Raise RequestError for a batch whose check has failed: also for a bug, which has changed nothing."""
    if isinstance(error, RequestError):
        raise error
    log.error("batch not checked", exc_info=error)
    raise RequestError(ErrorKind.UNKNOWN_SERVER_ERROR, "the batch could not be checked: a bug, see the log") from error


def _settle_when_safe(
    request: PendingRequest, result: Published, partition: Partition, appended: Appended | RequestError
) -> None:
    if isinstance(appended, RequestError):
        return request.settle(result, appended)
    result.duplicates = appended.duplicates
    request.settle_when_safe(result, partition, appended.info)
