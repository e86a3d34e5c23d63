"""Publishes the batches of transactional producers. For each batch, in this order:

    older epoch than the partition knows       -> INVALID_PRODUCER_EPOCH
    repeats an earlier batch                   -> the offset of that batch
    its transaction is open in the partition   -> append
    otherwise                                  -> ask the coordinator whether the partition takes part, then append

So the coordinator is asked once per partition and transaction. From transaction version 2 on, the question itself lets
the partition take part. Batches of the same producer and partition that arrive meanwhile wait for the same answer, and
keep their order. The check is repeated in the tick of the append; see `verifications`. A client repeats a batch that is
refused with NOT_ENOUGH_REPLICAS; older clients do not do so after all errors of a coordinator (KAFKA-15459). Source:
KIP-890.
"""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import msgspec

from conveyor.broker.produce.acknowledgement import ACKS_ALL, Finished, PendingRequest, Published
from conveyor.broker.produce.inspected_appends import Appended, InspectedAppends
from conveyor.broker.produce.publish import APPENDING, Publisher
from conveyor.broker.tasks import Tasks
from conveyor.broker.transactions.verifications import Verification, Verifications
from conveyor.kernel.errors import ERRORS, ErrorKind, RequestError
from conveyor.kernel.ids import ProducerEpoch, ProducerId, ProducerIdentity, TopicPartition
from conveyor.kernel.ports import Bytes, Clock
from conveyor.log.transactions.open_transactions import OpenTransaction
from conveyor.records.checked_batch import CheckedBatch, check_size, check_transactional_batch
from conveyor.records.timestamps import is_too_new
from conveyor.replication.partition import Partition

_Place = tuple[Partition, ProducerIdentity]

Verify = Callable[[str, ProducerIdentity, list[TopicPartition], bool], Awaitable[list[RequestError | None]]]
"""Asks the coordinator of a transactional id which partitions take part; see `Transactions.verify`."""


class _Produced(msgspec.Struct, frozen=True):
    """One batch, and where its result goes."""

    partition: Partition
    batch: CheckedBatch
    request: PendingRequest
    result: Published


class TransactionalPublisher:
    """See the module's docstring."""

    def __init__(
        self,
        *,
        publisher: Publisher,
        inspected_appends: InspectedAppends,
        verify: Verify,
        verifications: Verifications,
        clock: Clock,
        tasks: Tasks,
    ) -> None:
        self._publisher = publisher
        self._inspected_appends = inspected_appends
        self._ask_coordinator = verify
        self._verifications = verifications
        self._clock = clock
        self._tasks = tasks
        self._waiting: dict[_Place, list[_Produced]] = {}

    def publish(
        self,
        batches: Sequence[tuple[str, int, Bytes | CheckedBatch | None]],
        transactional_id: str,
        acks: int,
        finished: Finished,
        *,
        adds: bool,
        deduplicates: bool = False,
    ) -> None:
        """Append batches of (topic, partition, batch). `finished` gets one result for each batch, in order, now or
        later: TRANSACTION_ABORTABLE if the partition takes no part in the transaction.

        adds: let the partitions take part, as of transaction version 2. deduplicates: see `Publisher.publish`.
        Raises RequestError (INVALID_REQUIRED_ACKS): only acks=all lets a commit include all records.
        """
        if acks != ACKS_ALL:
            raise RequestError(ErrorKind.INVALID_REQUIRED_ACKS, f"acks is all (-1) in a transaction, not {acks}")
        request = PendingRequest(len(batches), acks, deduplicates, finished)
        begun: dict[ProducerIdentity, list[Verification]] = {}
        with APPENDING:
            for index, (topic, number, content) in enumerate(batches):
                result = request.results[index]
                try:
                    self._publish_one(topic, number, content, request, result, begun)
                except RequestError as error:
                    request.settle(result, error)
        for producer, verifications in begun.items():
            self._tasks.start(self._verify(transactional_id, producer, verifications, adds))
        request.settle_one()

    def _publish_one(
        self,
        topic: str,
        number: int,
        content: Bytes | CheckedBatch | None,
        request: PendingRequest,
        result: Published,
        begun: dict[ProducerIdentity, list[Verification]],
    ) -> None:
        partition = self._publisher.writable(topic, number)
        result.log_start_offset = partition.log.log_start_offset
        if content is None:
            raise RequestError(ErrorKind.INVALID_RECORD, "no records")
        partition.term.check_writable()
        partition.term.check_replicas()
        batch = _checked(content, partition.log.topic.max_message_bytes)
        produced = _Produced(partition, batch, request, result)
        producer = _producer(batch)
        waiting = self._waiting.get((partition, producer))
        if waiting is not None:
            return waiting.append(produced)
        partition.log.producers.check_epoch(batch.header)
        if _belongs(partition, batch):
            return self._append(produced, None)
        self._waiting[partition, producer] = [produced]
        begun.setdefault(producer, []).append(self._verifications.begin(partition, producer.producer_id))

    async def _verify(
        self, transactional_id: str, producer: ProducerIdentity, verifications: Sequence[Verification], adds: bool
    ) -> None:
        partitions = [verification.partition.identity for verification in verifications]
        errors: Sequence[RequestError | None]
        try:
            errors = await self._ask_coordinator(transactional_id, producer, partitions, adds)
            _check_answer(errors, partitions)
        except RequestError as error:
            errors = [error] * len(partitions)
        for verification, refusal in zip(verifications, errors, strict=True):
            self._verified(producer, verification, refusal)

    def _verified(self, producer: ProducerIdentity, verification: Verification, error: RequestError | None) -> None:
        waiting = self._waiting.pop((verification.partition, producer))
        if error is not None:
            self._verifications.end(verification)
            for produced in waiting:
                produced.request.settle(produced.result, _refusal(error))
            return
        verification.uses_count = len(waiting)
        for produced in waiting:
            self._append(produced, verification)

    def _append(self, produced: _Produced, verification: Verification | None) -> None:
        partition, batch, now_ms = produced.partition, produced.batch, self._clock.now_ms()
        appended = partial(self._appended, produced, verification)
        try:
            opened = partition.log.producers.transactions.opened.get(batch.header.producer_id)
            recheck = partial(_recheck, produced, verification, opened)
            deduplicates = produced.request.deduplicates
            is_inspected = self._inspected_appends.is_needed(partition, deduplicates)
            if is_inspected or is_too_new(batch.header.max_timestamp, partition.log.topic, now_ms):
                return self._inspected_appends.append(partition, batch, deduplicates, appended, recheck)
            recheck()
            info = partition.append(batch, now_ms)
        except RequestError as error:
            return appended(error)
        appended(Appended(info, {}))

    def _appended(
        self, produced: _Produced, verification: Verification | None, appended: Appended | RequestError
    ) -> None:
        if verification is not None:
            verification.uses_count -= 1
            if verification.uses_count == 0:
                self._verifications.end(verification)
        if isinstance(appended, RequestError):
            return produced.request.settle(produced.result, _refusal_of_partition(appended))
        produced.result.duplicates = appended.duplicates
        produced.request.settle_when_safe(produced.result, produced.partition, appended.info)


def _producer(batch: CheckedBatch) -> ProducerIdentity:
    header = batch.header
    return ProducerIdentity(ProducerId(header.producer_id), ProducerEpoch(header.producer_epoch))


def _checked(content: Bytes | CheckedBatch, max_bytes: int) -> CheckedBatch:
    """Return a client's bytes, or a batch that a broker has made. Raises RequestError."""
    if isinstance(content, CheckedBatch):
        return check_size(content, max_bytes)
    return check_transactional_batch(content, max_bytes)


def _check_answer(errors: Sequence[RequestError | None], partitions: Sequence[TopicPartition]) -> None:
    """Raise RequestError if a coordinator has answered for other partitions."""
    if len(errors) != len(partitions):
        raise RequestError(ErrorKind.UNSUPPORTED_VERSION, "the coordinator has answered for other partitions")


def _belongs(partition: Partition, batch: CheckedBatch) -> bool:
    """Return whether a batch repeats an earlier one, or its transaction is open in the partition."""
    producers, header = partition.log.producers, batch.header
    return producers.find(header) is not None or producers.has_open(header.producer_id, header.producer_epoch)


def _recheck(produced: _Produced, verification: Verification | None, opened: OpenTransaction | None) -> None:
    """Raise RequestError if the batch's transaction may have ended while the batch waited. opened: the producer's open
    transaction when the wait began; the next one may have the same epoch.
    """
    producers, header = produced.partition.log.producers, produced.batch.header
    is_same = opened is not None and producers.transactions.opened.get(header.producer_id) == opened
    if is_same and producers.has_open(header.producer_id, header.producer_epoch):
        return
    if producers.find(header) is not None or (verification is not None and verification.is_valid):
        return
    raise RequestError(ErrorKind.NOT_ENOUGH_REPLICAS, "the transaction may have ended meanwhile: send the batch again")


def _refusal(error: RequestError) -> RequestError:
    """Return the error for a producer whose coordinator refused its batch, or did not answer."""
    if error.kind is ErrorKind.PRODUCER_FENCED:
        return RequestError(ErrorKind.INVALID_PRODUCER_EPOCH, error.message)
    if ERRORS[error.kind].retriable:
        return RequestError(ErrorKind.NOT_ENOUGH_REPLICAS, f"the transaction cannot be verified: {error.message}")
    return error


def _refusal_of_partition(error: RequestError) -> RequestError:
    """Return the error for a producer whose batch a partition refused. An earlier transaction will soon have ended."""
    if error.kind is ErrorKind.CONCURRENT_TRANSACTIONS:
        return RequestError(ErrorKind.NOT_ENOUGH_REPLICAS, error.message)
    return error
