"""The transitions of one transactional id. Pure functions from a value and a command to the next value.

| state           | InitProducerId         | partitions | EndTxn                              | time         |
|-----------------|------------------------|------------|-------------------------------------|--------------|
| Empty, Complete | Empty, next epoch      | Ongoing    | version 2: an abort is PrepareAbort | tombstone    |
| Ongoing         | PrepareAbort, or kept  | Ongoing    | PrepareCommit, PrepareAbort         | PrepareAbort |
| Prepare         | CONCURRENT             | CONCURRENT | a retry is CONCURRENT               |              |

Prepare becomes Complete when the last marker is written. InitProducerId is answered CONCURRENT_TRANSACTIONS when it
aborts: the client asks again.

Version 2 raises the epoch with the end of each transaction, so that late requests of the transaction are refused
(KIP-890); the coordinator's own aborts do so always. After epoch 32766 the client gets a new producer id: the markers
carry epoch 32767, and `next_producer_id` takes over when the transaction is complete (KAFKA-18660). A client may repeat
its last request with the identity that it had before, as long as no other client took over and it began no transaction.

All functions raise RequestError for a refusal, and SpareIdMissing if the decision needs a new producer id.
"""

from collections.abc import Collection

from msgspec.structs import replace

from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.ids import NO_PRODUCER_ID, ProducerEpoch, ProducerId, ProducerIdentity, TopicPartition
from conveyor.transactions.transaction_value import (
    EPOCH_BUMPING_VERSION,
    LAST_EPOCH,
    LAST_USABLE_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_START,
    NO_TIMEOUT_MS,
    TransactionState,
    TransactionValue,
    client_identity,
    identity_in_log,
    replaced_identity,
)


class SpareIdMissing(Exception):  # noqa: N818 - named for what it is
    """The decision needs a producer id that was never used, and the command has none."""


def create(timeout_ms: int, spare: ProducerId | None, now_ms: int) -> TransactionValue:
    """Return the first value of a transactional id."""
    identity = _first_epoch(spare)
    return TransactionValue(
        producer_id=identity.producer_id,
        producer_epoch=identity.producer_epoch,
        timeout_ms=timeout_ms,
        state=TransactionState.EMPTY,
        last_update_ms=now_ms,
    )


def reinitialize(
    value: TransactionValue, expected: ProducerIdentity | None, timeout_ms: int, spare: ProducerId | None, now_ms: int
) -> TransactionValue:
    """Return the value after InitProducerId outside a transaction. expected: see `InitializeProducer`."""
    check_not_prepared(value)
    current, is_retry = client_identity(value), False
    if expected is not None and expected != current:
        is_retry = expected == replaced_identity(value)
        if not is_retry:
            raise fenced(value, expected)
    repeats_reply = is_retry and current.producer_epoch <= LAST_USABLE_EPOCH
    identity = current if repeats_reply else _next_identity(current, spare)
    empty = replace(
        value, state=TransactionState.EMPTY, timeout_ms=timeout_ms, last_update_ms=now_ms, transaction_version=0
    )
    return _with_identity(empty, identity, expected)


def keep(
    value: TransactionValue, expected: ProducerIdentity | None, spare: ProducerId | None, now_ms: int
) -> TransactionValue:
    """Return an ongoing transaction that its client continues with a new identity. Source: KIP-939."""
    current = client_identity(value)
    if expected is not None:
        _check_producer(value, expected)
    identity = _next_identity(current, spare)
    return replace(
        value,
        next_producer_id=identity.producer_id,
        next_producer_epoch=identity.producer_epoch,
        timeout_ms=NO_TIMEOUT_MS,
        last_update_ms=now_ms,
    )


def fence(value: TransactionValue, expected: ProducerIdentity | None, now_ms: int) -> TransactionValue:
    """Return an ongoing transaction that InitProducerId aborts. No client gets the raised epoch as it is, unless it is
    the client that had the transaction (`expected`).
    """
    if expected is not None:
        _check_producer(value, expected)
    return _abort(value, expected, now_ms)


def time_out(value: TransactionValue, now_ms: int) -> TransactionValue:
    """Return an ongoing transaction that is aborted because it takes too long. Its client can recover by KIP-360."""
    return _abort(value, client_identity(value), now_ms)


def add(
    value: TransactionValue, producer: ProducerIdentity, partitions: Collection[TopicPartition], version: int,
    now_ms: int,
) -> TransactionValue:  # fmt: skip
    """Return the value with more partitions: the same object if all take part already."""
    check_may_append(value, producer)
    if value.state is TransactionState.ONGOING:
        if value.partitions >= set(partitions):
            return value
        return replace(value, partitions=value.partitions | frozenset(partitions), last_update_ms=now_ms)
    begun = replace(
        value,
        state=TransactionState.ONGOING,
        partitions=frozenset(partitions),
        start_ms=now_ms,
        last_update_ms=now_ms,
        transaction_version=version,
    )
    return _with_identity(begun, producer, None)


def check_may_append(value: TransactionValue, producer: ProducerIdentity) -> None:
    """Raise RequestError unless this producer may append in the present transaction, or begin one."""
    _check_producer(value, producer)
    if value.state is TransactionState.ONGOING and value.next_producer_id != NO_PRODUCER_ID:
        raise _invalid_state("the transaction was kept after it was prepared: it can only be ended")
    check_not_prepared(value)


def end(
    value: TransactionValue, producer: ProducerIdentity, commit: bool, version: int, spare: ProducerId | None,
    now_ms: int,
) -> TransactionValue:  # fmt: skip
    """Return the value after EndTxn: the same object if the request is a retry and the transaction is complete.

    Raises RequestError for a retry that asks for the other outcome.
    """
    if value.state is not TransactionState.ONGOING and _ended_it(value, producer, version):
        return _repeated_end(value, commit)
    _check_producer(value, producer)
    check_not_prepared(value)
    if value.state is not TransactionState.ONGOING and (version < EPOCH_BUMPING_VERSION or commit):
        raise _invalid_state("no transaction is open")
    return _prepare(value, producer, commit, version, spare, now_ms)


def complete(value: TransactionValue, now_ms: int) -> TransactionValue:
    """Return a prepared transaction whose markers are all written."""
    assert value.state.is_prepared, value
    state = TransactionState.COMPLETE_COMMIT if value.state.is_commit else TransactionState.COMPLETE_ABORT
    identity = client_identity(value)
    return replace(
        value,
        producer_id=identity.producer_id,
        producer_epoch=identity.producer_epoch,
        next_producer_id=NO_PRODUCER_ID,
        next_producer_epoch=NO_PRODUCER_EPOCH,
        state=state,
        partitions=frozenset(),
        start_ms=NO_START,
        last_update_ms=now_ms,
    )


def check_not_prepared(value: TransactionValue) -> None:
    """Raise RequestError (CONCURRENT_TRANSACTIONS) while markers are missing."""
    if value.state.is_prepared:
        raise concurrent()


def fenced(value: TransactionValue, producer: ProducerIdentity | None) -> RequestError:
    """Return the refusal of a producer that is not the one that has the transactional id."""
    if producer is not None and producer.producer_id not in (value.producer_id, value.next_producer_id):
        return RequestError(ErrorKind.INVALID_PRODUCER_ID_MAPPING, "the transactional id has another producer id")
    return RequestError(ErrorKind.PRODUCER_FENCED, "a newer producer has this transactional id, or it was timed out")


def concurrent() -> RequestError:
    return RequestError(ErrorKind.CONCURRENT_TRANSACTIONS, "the previous transaction is being ended: ask again")


def _check_producer(value: TransactionValue, producer: ProducerIdentity) -> None:
    """Raise RequestError unless this producer has the transactional id. No client has the last epoch: see `fence`."""
    if producer.producer_epoch > LAST_USABLE_EPOCH or producer != client_identity(value):
        raise fenced(value, producer)


def _prepare(
    value: TransactionValue, producer: ProducerIdentity, commit: bool, version: int, spare: ProducerId | None,
    now_ms: int,
) -> TransactionValue:  # fmt: skip
    state = TransactionState.PREPARE_COMMIT if commit else TransactionState.PREPARE_ABORT
    if version >= EPOCH_BUMPING_VERSION:
        return _decided(value, state, _next_identity(producer, spare), producer, version, now_ms)
    if value.next_producer_id != NO_PRODUCER_ID:
        raise RequestError(
            ErrorKind.UNSUPPORTED_VERSION, "a transaction that was kept can only be ended with EndTxn v5 or newer"
        )
    return replace(value, state=state, transaction_version=version, last_update_ms=now_ms)


def _abort(value: TransactionValue, repeatable: ProducerIdentity | None, now_ms: int) -> TransactionValue:
    """Abort without a client's request. The epoch may become 32767; InitProducerId then gives a new producer id."""
    current = client_identity(value)
    raised = ProducerIdentity(current.producer_id, ProducerEpoch(min(current.producer_epoch + 1, LAST_EPOCH)))
    return _decided(value, TransactionState.PREPARE_ABORT, raised, repeatable, EPOCH_BUMPING_VERSION, now_ms)


def _decided(
    value: TransactionValue, state: TransactionState, identity: ProducerIdentity, repeatable: ProducerIdentity | None,
    version: int, now_ms: int,
) -> TransactionValue:  # fmt: skip
    """Return the value with a decided outcome. identity: of the client from now on; the markers fence all before it."""
    prepared = replace(value, state=state, transaction_version=version, last_update_ms=now_ms)
    if identity.producer_id == value.producer_id:
        return _with_identity(prepared, identity, repeatable)
    in_markers = ProducerIdentity(value.producer_id, LAST_EPOCH)
    return replace(
        _with_identity(prepared, in_markers, repeatable),
        next_producer_id=identity.producer_id,
        next_producer_epoch=identity.producer_epoch,
    )


def _ended_it(value: TransactionValue, producer: ProducerIdentity, version: int) -> bool:
    """Return whether this producer ended the last transaction, so that its request is a retry."""
    if not (value.state.is_prepared or value.state.is_complete):
        return False
    if value.transaction_version >= EPOCH_BUMPING_VERSION:
        return version >= EPOCH_BUMPING_VERSION and producer == replaced_identity(value)
    return version < EPOCH_BUMPING_VERSION and producer == identity_in_log(value)


def _repeated_end(value: TransactionValue, commit: bool) -> TransactionValue:
    if commit == value.state.is_commit:
        check_not_prepared(value)
        return value
    if commit and (value.state.is_prepared or value.transaction_version >= EPOCH_BUMPING_VERSION):
        raise RequestError(ErrorKind.PRODUCER_FENCED, "the transaction was aborted, for example because it timed out")
    raise RequestError(ErrorKind.INVALID_TXN_STATE, "the transaction has the other outcome")


def _next_identity(identity: ProducerIdentity, spare: ProducerId | None) -> ProducerIdentity:
    if identity.producer_epoch >= LAST_USABLE_EPOCH:
        return _first_epoch(spare)
    return ProducerIdentity(identity.producer_id, ProducerEpoch(identity.producer_epoch + 1))


def _first_epoch(spare: ProducerId | None) -> ProducerIdentity:
    if spare is None:
        raise SpareIdMissing
    return ProducerIdentity(spare, ProducerEpoch(0))


def _with_identity(
    value: TransactionValue, identity: ProducerIdentity, repeatable: ProducerIdentity | None
) -> TransactionValue:
    """Return the value with this identity alone. repeatable: the client's identity before, if it may use it again."""
    before = repeatable or ProducerIdentity(NO_PRODUCER_ID, NO_PRODUCER_EPOCH)
    return replace(
        value,
        producer_id=identity.producer_id,
        producer_epoch=identity.producer_epoch,
        next_producer_id=NO_PRODUCER_ID,
        next_producer_epoch=NO_PRODUCER_EPOCH,
        previous_producer_id=before.producer_id,
        last_producer_epoch=before.producer_epoch,
    )


def _invalid_state(reason: str) -> RequestError:
    return RequestError(ErrorKind.INVALID_TXN_STATE, reason)
