"""Publishes record batches. A produced batch passes these stages:

    check                    `records.checked_batch`   length, magic, CRC-32C, fields: once for all stages
    verify the transaction   `verification`            only for the first batch of a transaction in a partition
    look at records          `record_stages`           keys and timestamps that the topic demands, limits of ids
    de-duplicate             `deduplication`           drops records with known ids
    name the publisher       `records.publishers`      in a header of each record, if the topic has `publisher.enable`
    recompress               `record_stages`           to the topic's `compression.type`
    wait for an earlier one  `early_batches`           of the same idempotent producer: it is refused until then
    append                   `replication.partition`   assigns offsets
    acknowledge              `acknowledgement`         once the batch is as durable as `acks` demands

A plain topic has no demands on records: its batches go from the check to the last ones at once. All other batches pass
through `inspected_appends`, which runs the stages between: at once or in a lane, in order for each partition. The
marker that ends a transaction is appended here, too, because the index of ids depends on it.
"""

import logging
from collections.abc import Callable, Sequence
from typing import NoReturn

from conveyor.broker.partitions.partition_table import PartitionTable
from conveyor.broker.produce.acknowledgement import (
    ACKS_ALL,
    ACKS_LEADER,
    ACKS_NONE,
    Appended,
    Finished,
    PendingRequest,
    ProducedBatch,
    Published,
)
from conveyor.broker.produce.deduplication import DedupIndexes
from conveyor.broker.produce.early_batches import EarlyBatches
from conveyor.broker.produce.inspected_appends import InspectedAppends
from conveyor.broker.produce.verification import TransactionalBatch, Verification, Verifications
from conveyor.broker.services import Services
from conveyor.cluster.image import AUDIT_TOPIC, is_internal
from conveyor.cluster.topic_decisions import owned_by_broker
from conveyor.kernel.access.caller import AUDIT, Caller, PrincipalType
from conveyor.kernel.attempts import attempt
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.ids import ProducerIdentity, TopicPartition
from conveyor.kernel.ports import Bytes
from conveyor.kernel.state_change import StateChange
from conveyor.records.checked_batch import CheckedBatch, check_batch, check_size, check_transactional_batch
from conveyor.records.timestamps import is_too_new
from conveyor.records.transaction_marker import TransactionMarker
from conveyor.replication.partition import Partition
from conveyor.replication.transactions import append_marker

__all__ = ["ACKS_ALL", "ACKS_LEADER", "ACKS_NONE", "Published", "Publisher"]

log = logging.getLogger(__name__)

APPENDING = StateChange("a batch may be appended in part")


class Publisher:
    """Appends batches and markers to the partitions that this broker leads."""

    def __init__(self, services: Services, partitions: PartitionTable, verifications: Verifications) -> None:
        self._partitions = partitions
        self._clock = services.clock
        self._tasks = services.tasks
        self._verifications = verifications
        self._dedup_indexes = DedupIndexes(services)
        self._early_batches = EarlyBatches(services)
        self._inspected_appends = InspectedAppends(services, partitions, self._dedup_indexes, self._early_batches)

    def closed(self, partition: Partition) -> None:
        """If the log of a partition has been opened again, what waits for the former one is refused."""
        if self._partitions.get(*partition.identity) is not None:
            self._early_batches.may_come_again(partition.identity)

    async def drain(self) -> None:
        """Wait until every published batch is appended."""
        await self._inspected_appends.drain()

    def publish(
        self,
        caller: Caller,
        batches: Sequence[tuple[str, int, Bytes | CheckedBatch | None]],
        acks: int,
        finished: Finished,
        *,
        deduplicates: bool = False,
        transactional_id: str | None = None,
        adds: bool = False,
        appended: Callable[[], None] | None = None,
    ) -> None:
        """Append batches of (topic, partition, batch). `finished` gets one result for each batch, in order, now or
        later: TRANSACTION_ABORTABLE if the partition takes no part in the transaction.

        deduplicates: drop records with a known `conveyor-dedup-id`, even if the topic's `dedup.enable` is off.
        transactional_id: of the producer, if the batches are transactional; only acks=all lets a commit include all
        records. adds: let the partitions take part in the transaction, as of transaction version 2.
        appended: called once all batches are appended or refused, and their content is no longer needed.
        Raises RequestError (INVALID_REQUIRED_ACKS).
        """
        if acks not in (ACKS_NONE, ACKS_LEADER, ACKS_ALL):
            raise RequestError(ErrorKind.INVALID_REQUIRED_ACKS, f"acks is 0, 1 or all (-1), not {acks}")
        if transactional_id is not None and acks != ACKS_ALL:
            raise RequestError(ErrorKind.INVALID_REQUIRED_ACKS, f"acks is all (-1) in a transaction, not {acks}")
        now_ms = self._clock.now_ms()
        request = PendingRequest(caller, len(batches), acks, deduplicates, finished, self._early_batches.refused)
        request.appended = appended
        begun: dict[ProducerIdentity, list[Verification]] = {}
        with APPENDING:
            for index, (topic, number, content) in enumerate(batches):
                result = request.results[index]
                try:
                    partition = self._writable(caller, topic, number)
                    result.log_start_offset = partition.log.start.offset
                    if content is None:
                        raise RequestError(ErrorKind.INVALID_RECORD, "no records")
                    if acks == ACKS_ALL:
                        partition.term.check_replicas()
                    if transactional_id is None:
                        self._publish_one(partition, content, now_ms, request, result)
                    else:
                        self._publish_transactional(partition, content, request, result, begun)
                except RequestError as error:
                    request.settle(result, TopicPartition(topic, number), error)
        for producer, verifications in begun.items():
            self._tasks.start(self._verify(caller, transactional_id or "", producer, verifications, adds=adds))
        request.settle_one()

    def publish_marker(self, partition: Partition, marker: TransactionMarker, transaction_version: int) -> None:
        """Append the marker that ends a transaction, unless the log has it. Raises RequestError: see
        `replication.transactions.append_marker`.
        """
        is_open = marker.producer_id in partition.log.producers.transactions.opened
        info = append_marker(partition, marker, transaction_version, self._clock.now_ms())
        if is_open and info is not None:
            self._dedup_indexes.ended(partition, marker.producer_id, commits=marker.commits)

    def _publish_one(
        self,
        partition: Partition,
        content: Bytes | CheckedBatch,
        now_ms: int,
        request: PendingRequest,
        result: Published,
    ) -> None:
        is_plain = not self._inspected_appends.is_needed(partition, request.deduplicates)
        if is_plain:
            partition.term.check_writable()
        batch = _checked(content, check_batch, partition.log.topic.max_message_bytes)
        if is_plain:
            if batch.header.producer_id >= 0:
                self._early_batches.check(partition, batch.header)
            if not is_too_new(batch.header.max_timestamp, partition.log.topic, now_ms):
                return request.settle_when_safe(result, partition, partition.append(batch, now_ms))
            partition.log.producers.check(batch.header)  # A wrong sequence is refused before a too new timestamp.
        self._inspected_appends.append(ProducedBatch(partition, batch, request, result))

    def _publish_transactional(
        self,
        partition: Partition,
        content: Bytes | CheckedBatch,
        request: PendingRequest,
        result: Published,
        begun: dict[ProducerIdentity, list[Verification]],
    ) -> None:
        partition.term.check_writable()
        checked = _checked(content, check_transactional_batch, partition.log.topic.max_message_bytes)
        batch = TransactionalBatch(partition, checked, request, result, self._verifications)
        if self._verifications.try_join(batch):
            return
        if batch.needs_verification():
            begun.setdefault(batch.producer, []).append(self._verifications.begin_for(batch))
        else:
            self._append_transactional(batch)

    async def _verify(
        self,
        caller: Caller,
        transactional_id: str,
        producer: ProducerIdentity,
        verifications: Sequence[Verification],
        *,
        adds: bool,
    ) -> None:
        partitions = [verification.partition.identity for verification in verifications]
        repeats = ErrorKind.NOT_ENOUGH_REPLICAS
        errors = await self._verifications.ask(
            caller, transactional_id, producer, partitions, adds=adds, repeats=repeats
        )
        for verification, error in zip(verifications, errors, strict=True):
            for batch in self._verifications.answered(verification, error):
                self._append_transactional(batch)

    def _append_transactional(self, batch: TransactionalBatch) -> None:
        partition, header, now_ms = batch.partition, batch.batch.header, self._clock.now_ms()
        batch.remember_opened()
        if self._inspected_appends.is_needed(partition, batch.request.deduplicates) or is_too_new(
            header.max_timestamp, partition.log.topic, now_ms
        ):
            return self._inspected_appends.append(batch)
        try:
            batch.recheck()
            info = self._early_batches.append(partition, batch.batch, now_ms)
        except RequestError as error:
            return batch.refused(error)
        batch.appended(Appended(info, {}))

    def _writable(self, caller: Caller, topic: str, number: int) -> Partition:
        """Return a partition for producers. Raises RequestError: also if the topic is the broker's own; the audit alone
        writes to `__audit`, whatever else brokers publish on their own account, and machines to the others.
        """
        is_audit = caller.listener == AUDIT and caller.principal.type is PrincipalType.BROKER
        if is_internal(topic) and not (topic == AUDIT_TOPIC and is_audit):
            raise owned_by_broker(topic)
        return self._partitions.find_for_producer(topic, number)


def _checked(
    content: Bytes | CheckedBatch, check: Callable[[Bytes, int], CheckedBatch], max_bytes: int
) -> CheckedBatch:
    """Check a client's bytes. A batch that a broker has made only has to be small enough. Raises RequestError."""
    if isinstance(content, CheckedBatch):
        return check_size(content, max_bytes)
    return attempt(_refuse_unchecked, check, content, max_bytes)


def _refuse_unchecked(error: Exception) -> NoReturn:
    """Raise RequestError for a batch whose check has failed: also for a bug, which has changed nothing."""
    if isinstance(error, RequestError):
        raise error
    log.error("batch not checked", exc_info=error)
    raise RequestError(ErrorKind.UNKNOWN_SERVER_ERROR, "the batch could not be checked: a bug, see the log") from error
