"""The persistent state of one transactional id. Each transition replaces it as a whole."""

from collections.abc import Set as AbstractSet
from enum import IntEnum

import msgspec

from conveyor.kernel.ids import NO_PRODUCER_ID, ProducerEpoch, ProducerId, ProducerIdentity, TopicPartition

NO_PRODUCER_EPOCH = ProducerEpoch(-1)
LAST_USABLE_EPOCH = ProducerEpoch(32766)
"""The highest epoch that a producer gets. 32767 is only for markers, which must be above the producer's epoch."""
LAST_EPOCH = ProducerEpoch(32767)
NO_TIMEOUT_MS = (1 << 31) - 1
"""The stored timeout of a transactional id with two-phase commit, whose transactions do not time out. Source:
KIP-939.
"""
NO_START = -1
RESERVED_PREFIX = "__rest."
"""Of the transactional ids of the broker's own producers."""

EPOCH_BUMPING_VERSION = 2
"""The first transaction version in which the end of a transaction raises the epoch. Source: KIP-890."""


class TransactionState(IntEnum):
    """The state of a transactional id. The numbers are Kafka's."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5

    @property
    def is_prepared(self) -> bool:
        """Return whether the outcome is decided and some markers may be missing."""
        return self in (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)

    @property
    def is_complete(self) -> bool:
        return self in (TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT)

    @property
    def is_commit(self) -> bool:
        return self in (TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT)

    @property
    def kafka_name(self) -> str:
        """The name as in DescribeTransactions, for example `PrepareCommit`."""
        return self.name.title().replace("_", "")


class TransactionValue(msgspec.Struct, frozen=True, kw_only=True):
    """The value of a record of `__transaction_state`.

    producer_id, producer_epoch: of the transaction's batches; once it is prepared, of its markers.
    next_producer_id, next_producer_epoch: the identity that the client has or will have, if it differs. An ongoing
    transaction has one after `keep_prepared`; a prepared one has one if the producer id is exhausted.
    previous_producer_id, last_producer_epoch: the identity that the same client had before, which it may repeat; -1
    after another client has taken over, and in a transaction.
    last_update_ms, start_ms: milliseconds since the epoch; `start_ms` is -1 outside a transaction.
    transaction_version: of the client, 0 to 2 (KIP-890).
    """

    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    timeout_ms: int
    state: TransactionState
    partitions: AbstractSet[TopicPartition] = frozenset()
    last_update_ms: int
    start_ms: int = NO_START
    previous_producer_id: ProducerId = NO_PRODUCER_ID
    next_producer_id: ProducerId = NO_PRODUCER_ID
    transaction_version: int = 0
    next_producer_epoch: ProducerEpoch = NO_PRODUCER_EPOCH
    last_producer_epoch: ProducerEpoch = NO_PRODUCER_EPOCH


def identity_in_log(value: TransactionValue) -> ProducerIdentity:
    """Return the identity that the batches or markers of the transaction carry."""
    return ProducerIdentity(value.producer_id, value.producer_epoch)


def client_identity(value: TransactionValue) -> ProducerIdentity:
    """Return the newest identity that the client got, or gets with the reply to its request."""
    if value.next_producer_id == NO_PRODUCER_ID:
        return identity_in_log(value)
    return ProducerIdentity(value.next_producer_id, value.next_producer_epoch)


def replaced_identity(value: TransactionValue) -> ProducerIdentity | None:
    """Return the identity that the same client had before, if it may repeat a request with it."""
    if value.last_producer_epoch == NO_PRODUCER_EPOCH:
        return None
    return ProducerIdentity(value.previous_producer_id, value.last_producer_epoch)
