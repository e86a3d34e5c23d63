"""The commands of a transaction coordinator, each with the type of its reply.

A command may also be refused with a `RequestError`. Its kinds are Kafka's newest; the Kafka door sends clients of older
versions the codes that they know, such as INVALID_PRODUCER_EPOCH for PRODUCER_FENCED (KIP-588).
"""

from enum import Enum, auto
from typing import TypeVar

import msgspec

from conveyor.kernel.access.caller import NO_CONNECTION
from conveyor.kernel.ids import ProducerId, ProducerIdentity, TopicPartition
from conveyor.kernel.state_machine import Command
from conveyor.transactions.stored_answer import AnswerKey, NewAnswer
from conveyor.transactions.transaction_replies import (
    AnswerFound,
    ListedTransactions,
    MarkersRecorded,
    MarkersToSend,
    PartitionsAdded,
    ProducerInitialized,
    TransactionDescription,
    TransactionEnded,
)
from conveyor.transactions.transaction_value import TransactionState

Answer_co = TypeVar("Answer_co", covariant=True)


class TransactionCommand(Command[Answer_co], frozen=True):
    """A command to the coordinator of one partition of `__transaction_state`."""


class OneTransactionCommand(TransactionCommand[Answer_co], frozen=True, kw_only=True):
    """A command about one transactional id."""

    transactional_id: str


class InitializeProducer(OneTransactionCommand[ProducerInitialized], frozen=True, kw_only=True):
    """Give a client the transactional id, fence the client that had it, and abort its transaction (InitProducerId).

    timeout_ms: how long its transactions may take. Ignored with two-phase commit, where they do not time out.
    expected: the identity that the client has, if it only wants a higher epoch (KIP-360).
    keep_prepared: do not abort an ongoing transaction, but let the client end it (KIP-939).
    spare_producer_id: a producer id that was never used. Without one, the reply may be ProducerIdNeeded.
    """

    timeout_ms: int
    expected: ProducerIdentity | None = None
    enable_two_phase_commit: bool = False
    keep_prepared: bool = False
    spare_producer_id: ProducerId | None = None


class AddPartitions(OneTransactionCommand[PartitionsAdded], frozen=True, kw_only=True):
    """Add partitions to the transaction, which begins with the first. Also for the partition of a group or of a
    subscription whose offsets or acknowledgements take part (AddPartitionsToTxn, AddOffsetsToTxn).

    verify_only: only check which of the partitions take part.
    transaction_version: 2 if the client's end of the transaction raises its epoch, otherwise 0 or 1.
    connection: a number that rises with each connection that this broker accepts, or NO_CONNECTION.
    """

    producer: ProducerIdentity
    partitions: tuple[TopicPartition, ...]
    verify_only: bool = False
    transaction_version: int
    connection: int = NO_CONNECTION


class EndTransaction(OneTransactionCommand[TransactionEnded], frozen=True, kw_only=True):
    """Commit or abort the transaction (EndTxn). Answered once the outcome is decided; the markers follow.

    spare_producer_id: as in InitializeProducer.
    connection: as in AddPartitions. With transaction version 1, a connection older than one that spoke for the
    present producer cannot end a transaction: its request may have been meant for an earlier one (KAFKA-17754).
    answer: of the request that the transaction belongs to. It is kept if the transaction commits; if its request has an
    answer already, the commit is refused with AnsweredBefore.
    """

    producer: ProducerIdentity
    commit: bool
    transaction_version: int
    spare_producer_id: ProducerId | None = None
    connection: int = NO_CONNECTION
    answer: NewAnswer | None = None


class DescribeTransaction(OneTransactionCommand[TransactionDescription], frozen=True, kw_only=True):
    """Describe a transactional id (DescribeTransactions)."""


class ListTransactions(TransactionCommand[ListedTransactions], frozen=True, kw_only=True):
    """List those of a coordinator's transactional ids that match (ListTransactions). An empty set of states or producer
    ids matches all.

    min_duration_ms: list only transactions that began longer ago; negative lists all ids.
    """

    transactional_ids: tuple[str, ...] = ()
    states: frozenset[TransactionState] = frozenset()
    producer_ids: frozenset[ProducerId] = frozenset()
    min_duration_ms: int = -1


class FindAnswer(TransactionCommand[AnswerFound], frozen=True, kw_only=True):
    """Find the answer to an earlier request. Refused if there is none and a new one could not be kept.

    digest: see `NewAnswer`.
    """

    key: AnswerKey
    digest: bytes


class AwaitMarkers(TransactionCommand[MarkersToSend], frozen=True, kw_only=True):
    """Wait for markers that must be sent. Only the sender of markers asks, one request at a time.

    again: reply with all markers that are not done. For the first request, and after a request that failed.
    """

    again: bool = False


class MarkerAnswer(Enum):
    """The answer of a partition's leader to a marker.

    WRITTEN: committed, and applied by the state machine of the partition, if it has one.
    PARTITION_DELETED: the partition is gone, so nothing is left to end there.
    NEWER_EPOCH: the partition knows a newer epoch of the producer (INVALID_PRODUCER_EPOCH), so it has ended it there.
    NEWER_COORDINATOR: another coordinator has sent a marker (TRANSACTION_COORDINATOR_FENCED).
    """

    WRITTEN = auto()
    PARTITION_DELETED = auto()
    NEWER_EPOCH = auto()
    NEWER_COORDINATOR = auto()


class RecordMarkers(OneTransactionCommand[MarkersRecorded], frozen=True, kw_only=True):
    """Record the final answers to markers. Retries after other answers are the sender's.

    serial: of the `TransactionMarkers` that were sent.
    """

    serial: int
    answers: tuple[tuple[TopicPartition, MarkerAnswer], ...]


class TransactionLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of a coordinator. The defaults are Kafka's, except for the last five, which Kafka does not have.

    max_timeout_ms: the longest transaction timeout that a client can request.
    id_expiration_ms: how long a transactional id without a transaction is remembered.
    two_phase_commit_enable: whether transactions without a timeout are allowed.
    max_record_bytes: the size of the largest record, which limits the partitions of a transaction.
    max_expired_bytes: how many bytes of records one `expire` may return, at least one record.
    max_ids_count: the most transactional ids of one partition of `__transaction_state`.
    answer_retention_ms: how long the answer to a request is kept.
    max_answers_bytes: the memory for the answers of one partition of `__transaction_state`.
    """

    max_timeout_ms: int = 900_000
    id_expiration_ms: int = 604_800_000
    two_phase_commit_enable: bool = False
    max_record_bytes: int = 400_000
    max_expired_bytes: int = 400_000
    max_ids_count: int = 100_000
    answer_retention_ms: int = 300_000
    max_answers_bytes: int = 32 << 20
