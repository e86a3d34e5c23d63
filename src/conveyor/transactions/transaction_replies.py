"""The replies of a transaction coordinator. A refusal is a `RequestError` instead."""

import msgspec

from conveyor.kernel.errors import RequestError
from conveyor.kernel.ids import ProducerIdentity, TopicPartition
from conveyor.transactions.stored_answer import StoredAnswer
from conveyor.transactions.transaction_value import TransactionState


class ProducerIdNeeded(msgspec.Struct, frozen=True, kw_only=True):
    """Nothing was decided, because the decision needs a new producer id. Repeat the command with one."""


class ProducerInitialized(msgspec.Struct, frozen=True, kw_only=True):
    """The identity of the client. ongoing: the identity of the transaction that was kept, if any."""

    producer: ProducerIdentity
    ongoing: ProducerIdentity | None = None


class PartitionsAdded(msgspec.Struct, frozen=True, kw_only=True):
    """For each partition in the request, in order: None, or why it does not take part (TRANSACTION_ABORTABLE)."""

    errors: tuple[RequestError | None, ...]


class TransactionEnded(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome is decided. producer: the identity for the next transaction."""

    producer: ProducerIdentity


class AnswerFound(msgspec.Struct, frozen=True, kw_only=True):
    """The kept answer to a request; None if there is none."""

    answer: StoredAnswer | None


class TransactionDescription(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a transactional id. start_ms: -1 outside a transaction. partitions: sorted."""

    state: TransactionState
    timeout_ms: int
    start_ms: int
    producer: ProducerIdentity
    partitions: tuple[TopicPartition, ...]


class ListedTransaction(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of a list of transactions."""

    transactional_id: str
    producer: ProducerIdentity
    state: TransactionState


class ListedTransactions(msgspec.Struct, frozen=True, kw_only=True):
    """The transactional ids that a coordinator partition has listed."""

    transactions: tuple[ListedTransaction, ...]


class TransactionMarkers(msgspec.Struct, frozen=True, kw_only=True):
    """The markers of one transaction, which each of the partitions must get.

    serial: identifies these markers to this coordinator, also if a later transaction has the same producer epoch.
    coordinator_epoch: the leader epoch of the coordinator's partition of `__transaction_state`.
    """

    transactional_id: str
    serial: int
    producer: ProducerIdentity
    commit: bool
    partitions: tuple[TopicPartition, ...]
    transaction_version: int
    coordinator_epoch: int


class MarkersToSend(msgspec.Struct, frozen=True, kw_only=True):
    """Markers of transactions whose outcome is committed. Empty if the sender has asked again meanwhile."""

    markers: tuple[TransactionMarkers, ...]


class MarkersRecorded(msgspec.Struct, frozen=True, kw_only=True):
    """The answers are recorded. Answers to markers that are no longer missing have no effect."""
