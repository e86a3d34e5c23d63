"""The stage `verify the transaction`: whether the transaction of a batch is open, before it begins in a partition.

    older epoch than the partition knows       -> INVALID_PRODUCER_EPOCH
    repeats an earlier batch                   -> no question: the append returns the offset of that batch
    its transaction is open in the partition   -> no question
    otherwise                                  -> ask the coordinator whether the partition takes part

So the coordinator is asked once per partition and transaction. From transaction version 2 on, the question itself lets
the partition take part. Batches of the same producer and partition that arrive meanwhile wait for the same answer, and
keep their order.

The answer may be old when it arrives: the transaction may have ended, and the partition may have its marker already. A
batch appended then would belong to no transaction, or stay open forever (KAFKA-14884). A marker therefore voids the
verifications of its producer in its partition, and so does a change of the leader: another leader may have appended
markers. `TransactionalBatch.recheck` looks at this in the tick of the append.

A client repeats a batch that is refused with NOT_ENOUGH_REPLICAS; older clients do not do so after all errors of a
coordinator (KAFKA-15459). Source: KIP-890.
"""

import asyncio

import msgspec

from conveyor.broker.produce.acknowledgement import Appended, PendingRequest, ProducedBatch, Published
from conveyor.broker.remote.calls import Call
from conveyor.broker.remote.leader_calls import LeaderCalls
from conveyor.broker.services import Services
from conveyor.cluster.image import TRANSACTIONS_TOPIC
from conveyor.kernel.access.caller import Caller
from conveyor.kernel.coordinator_partition import partition_for_key
from conveyor.kernel.errors import ERRORS, ErrorKind, RequestError
from conveyor.kernel.ids import ProducerEpoch, ProducerId, ProducerIdentity, TopicPartition
from conveyor.log.transactions.open_transactions import OpenTransaction
from conveyor.records.checked_batch import CheckedBatch
from conveyor.replication.partition import Partition

_TIMEOUT_MS = 10_000
_REPETITIONS, _PAUSE_S = 5, 0.02
"""While the markers of the producer's earlier transaction are being written. Its client may wait for seconds instead.
Source: add.partitions.to.txn.retry.backoff.ms and .max.ms.
"""


class VerifyPartitions(msgspec.Struct, frozen=True, array_like=True):
    """Check which partitions take part in the open transaction of a producer: for each None, or why it does not.

    adds: let them take part, as of transaction version 2; the transaction begins with the first.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: list[TopicPartition]
    adds: bool = False


VERIFY: Call[VerifyPartitions, list[RequestError | None]] = Call(
    "transactions.verify", VerifyPartitions, list[RequestError | None], is_repeatable=True
)


class Verification:
    """One question. The answer permits an append only while the verification is valid.

    batches: wait for the answer. uses_count: how many of them are to be appended because of the answer.
    """

    def __init__(self, partition: Partition, producer: ProducerIdentity) -> None:
        self.partition = partition
        self.producer = producer
        self.batches: list[TransactionalBatch] = []
        self.uses_count = 0
        self.is_void = False
        self._leader_epoch = partition.term.epoch

    @property
    def is_valid(self) -> bool:
        return not self.is_void and self.partition.term.epoch == self._leader_epoch


class TransactionalBatch(ProducedBatch):
    """A batch of a transaction. verification: that permits its append, if the coordinator had to be asked."""

    __slots__ = ("_opened", "_verifications", "producer", "verification")

    def __init__(
        self, partition: Partition, batch: CheckedBatch, request: PendingRequest, result: Published,
        verifications: "Verifications",
    ) -> None:  # fmt: skip
        super().__init__(partition, batch, request, result)
        header = batch.header
        self.producer = ProducerIdentity(ProducerId(header.producer_id), ProducerEpoch(header.producer_epoch))
        self.verification: Verification | None = None
        self._verifications = verifications
        self._opened: OpenTransaction | None = None

    def needs_verification(self) -> bool:
        """Return whether the coordinator must be asked; see the module's docstring. Raises RequestError."""
        producers, header = self.partition.log.producers, self.batch.header
        producers.check_epoch(header)
        return producers.find(header) is None and not producers.has_open(header.producer_id, header.producer_epoch)

    def remember_opened(self) -> None:
        """Remember the transaction that the append belongs to: it may follow later, and the next transaction may have
        the same epoch.
        """
        self._opened = self.partition.log.producers.transactions.opened.get(self.batch.header.producer_id)

    def recheck(self) -> None:
        producers, header = self.partition.log.producers, self.batch.header
        opened = self._opened
        is_same = opened is not None and producers.transactions.opened.get(header.producer_id) == opened
        if is_same and producers.has_open(header.producer_id, header.producer_epoch):
            return
        if producers.find(header) is not None or (self.verification is not None and self.verification.is_valid):
            return
        raise RequestError(
            ErrorKind.NOT_ENOUGH_REPLICAS, "the transaction may have ended meanwhile: send the batch again"
        )

    def appended(self, appended: Appended) -> None:
        self._end_use()
        super().appended(appended)

    def refused(self, error: RequestError) -> None:
        self._end_use()
        if error.kind is ErrorKind.CONCURRENT_TRANSACTIONS:  # The earlier transaction will soon have ended.
            error = RequestError(ErrorKind.NOT_ENOUGH_REPLICAS, error.message)
        super().refused(error)

    def _end_use(self) -> None:
        if self.verification is not None:
            self.verification.uses_count -= 1
            if self.verification.uses_count == 0:
                self._verifications.end(self.verification)


class Verifications:
    """The verifications of this broker that were begun and not ended."""

    def __init__(self, services: Services, leaders: LeaderCalls) -> None:
        self._metadata = services.metadata
        self._leaders = leaders
        self._begun: dict[tuple[TopicPartition, int], set[Verification]] = {}
        self._waiting: dict[tuple[Partition, ProducerIdentity], Verification] = {}

    def begin(self, partition: Partition, producer: ProducerIdentity) -> Verification:
        verification = Verification(partition, producer)
        self._begun.setdefault((partition.identity, producer.producer_id), set()).add(verification)
        return verification

    def end(self, verification: Verification) -> None:
        """Forget a verification; it is void from now on."""
        verification.is_void = True
        place = verification.partition.identity, verification.producer.producer_id
        others = self._begun.get(place, set())
        others.discard(verification)
        if not others:
            self._begun.pop(place, None)

    def transaction_ended(self, partition: TopicPartition, producer_id: int) -> None:
        """Void the verifications of a producer whose transaction ends in a partition."""
        for verification in self._begun.pop((partition, producer_id), ()):
            verification.is_void = True

    def try_join(self, batch: TransactionalBatch) -> bool:
        """Let a batch wait with earlier ones of the same producer and partition. Returns False if none waits."""
        begun = self._waiting.get((batch.partition, batch.producer))
        if begun is None:
            return False
        begun.batches.append(batch)
        return True

    def begin_for(self, batch: TransactionalBatch) -> Verification:
        """Begin a verification that a batch, and all that join it, wait for."""
        place = batch.partition, batch.producer
        verification = self._waiting[place] = self.begin(*place)
        verification.batches.append(batch)
        return verification

    def answered(self, verification: Verification, error: RequestError | None) -> list[TransactionalBatch]:
        """Return the batches that have waited for a verification and may be appended; refuse them if there is an error.

        Later batches begin another verification, if they need it.
        """
        del self._waiting[verification.partition, verification.producer]
        batches, verification.batches = verification.batches, []
        if error is None:
            verification.uses_count = len(batches)
            for batch in batches:
                batch.verification = verification
            return batches
        self.end(verification)
        for batch in batches:
            batch.refused(error)
        return []

    async def ask(
        self, caller: Caller, transactional_id: str, producer: ProducerIdentity, partitions: list[TopicPartition], *,
        adds: bool, repeats: ErrorKind,
    ) -> list[RequestError | None]:  # fmt: skip
        """Ask the coordinator which partitions take part in a transaction. adds: let them take part.

        Returns the errors for the producer. repeats: the kind of those after which it repeats the request.
        """
        request = VerifyPartitions(transactional_id, *producer, partitions, adds)
        errors = await self._answers(caller, request)
        for _ in range(_REPETITIONS if adds else 0):
            if not any(error is not None and error.kind is ErrorKind.CONCURRENT_TRANSACTIONS for error in errors):
                break
            await asyncio.sleep(_PAUSE_S)
            errors = await self._answers(caller, request)
        return [None if error is None else refusal(error, repeats) for error in errors]

    async def _answers(self, caller: Caller, request: VerifyPartitions) -> list[RequestError | None]:
        """Ask once. Returns an error for each partition, or None."""
        count = len(request.partitions)
        try:
            errors = await self._verify(caller, request)
            if len(errors) != count:
                reason = "the coordinator has answered for other partitions"
                raise RequestError(ErrorKind.UNSUPPORTED_VERSION, reason)
        except RequestError as error:
            return [error.detached()] * count
        return errors

    async def _verify(self, caller: Caller, request: VerifyPartitions) -> list[RequestError | None]:
        """Ask the coordinator, on whichever broker it is. Raises RequestError."""
        topic = self._metadata.image.topics.get(TRANSACTIONS_TOPIC)
        if topic is None:
            raise RequestError(ErrorKind.INVALID_PRODUCER_ID_MAPPING, "no producer has a transactional id yet")
        number = partition_for_key(request.transactional_id, len(topic.partitions))
        return await self._leaders.ask(caller, VERIFY, TRANSACTIONS_TOPIC, number, request, _TIMEOUT_MS)


def refusal(error: RequestError, repeats: ErrorKind) -> RequestError:
    """Return the error for a producer whose coordinator refused, or did not answer. repeats: see `Verifications.ask`.

    Source: Kafka's ReplicaManager and GroupCoordinatorService.
    """
    if error.kind is ErrorKind.PRODUCER_FENCED:
        return RequestError(ErrorKind.INVALID_PRODUCER_EPOCH, error.message)
    if ERRORS[error.kind].retriable:
        return RequestError(repeats, f"the transaction cannot be verified: {error.message}: repeat the request")
    return error
