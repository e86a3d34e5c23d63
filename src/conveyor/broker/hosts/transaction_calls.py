"""Begins and ends transactions at their coordinators, for brokers that serve the transactions of their own clients.

The coordinator is this broker or another one. A transaction has version 2: its end raises the producer's epoch. Both
calls can be repeated: only the newest identity of a producer counts, and a coordinator knows a repeated end.
"""

import msgspec

from conveyor.broker.hosts.transaction_coordinators import TransactionCoordinator, Transactions
from conveyor.broker.remote.calls import Call
from conveyor.broker.remote.leader_calls import LeaderCalls
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.ids import ProducerIdentity
from conveyor.transactions.transaction_commands import EndTransaction, InitializeProducer
from conveyor.transactions.transaction_value import EPOCH_BUMPING_VERSION
from conveyor.transactions.transitions import OtherOutcome

_LONGEST_END_MS = 1_000
"""The longest wait for the markers of a transaction. They are usually written within some milliseconds."""
_FENCED = (ErrorKind.PRODUCER_FENCED, ErrorKind.INVALID_PRODUCER_ID_MAPPING)


class BeginTransaction(msgspec.Struct, frozen=True, array_like=True):
    """Give a transactional id to a new producer. The transaction that it has is aborted."""

    transactional_id: str
    timeout_ms: int


class FinishTransaction(msgspec.Struct, frozen=True, array_like=True):
    """Commit or abort the transaction of a producer. Replies the identity for its next transaction."""

    transactional_id: str
    producer: ProducerIdentity
    commit: bool


BEGIN: Call[BeginTransaction, ProducerIdentity] = Call(
    "transactions.begin", BeginTransaction, ProducerIdentity, is_repeatable=True
)
FINISH: Call[FinishTransaction, ProducerIdentity] = Call(
    "transactions.finish", FinishTransaction, ProducerIdentity, is_repeatable=True
)


class TransactionCalls:
    """See the module's docstring. Every method raises RequestError."""

    def __init__(self, transactions: Transactions, leaders: LeaderCalls) -> None:
        self._transactions = transactions
        leaders.handlers.register(BEGIN, self._begin_here)
        leaders.handlers.register(FINISH, self._finish_here)

    async def begin(self, transactional_id: str, timeout_ms: int) -> ProducerIdentity:
        """Return the identity with which a new producer has the transactional id.

        Raises RequestError: also CONCURRENT_TRANSACTIONS if the transaction before cannot be ended at the moment.
        """
        await self._transactions.find_coordinator(transactional_id)
        return await self._transactions.ask_coordinator(
            BEGIN, transactional_id, BeginTransaction(transactional_id, timeout_ms)
        )

    async def finish(self, transactional_id: str, producer: ProducerIdentity, *, commit: bool) -> ProducerIdentity:
        """Commit or abort a transaction, also one without records. Returns the identity for the next transaction.

        Returns once the outcome is decided and, if that does not take long, in the log of all partitions.
        Raises RequestError: TRANSACTION_ABORTED if it was aborted; TRANSACTION_ENDED if it was committed and is to be
        aborted; UNKNOWN_TRANSACTION if the producer had the transactional id long ago, or never;
        CONCURRENT_TRANSACTIONS if the outcome is decided, and the request is to be repeated.
        """
        request = FinishTransaction(transactional_id, producer, commit)
        try:
            return await self._transactions.ask_coordinator(FINISH, transactional_id, request)
        except RequestError as error:
            if error.kind in _FENCED:
                raise RequestError(ErrorKind.UNKNOWN_TRANSACTION, "its outcome is no longer known") from error
            raise

    async def _begin_here(self, request: BeginTransaction) -> ProducerIdentity:
        command = InitializeProducer(transactional_id=request.transactional_id, timeout_ms=request.timeout_ms)
        coordinator = await self._ready(request.transactional_id)
        try:
            return (await self._transactions.initialize_here(command)).producer
        except RequestError as error:
            if error.kind is not ErrorKind.CONCURRENT_TRANSACTIONS:
                raise
        await coordinator.until_ended(request.transactional_id, _LONGEST_END_MS)  # The request has aborted it.
        return (await self._transactions.initialize_here(command)).producer

    async def _finish_here(self, request: FinishTransaction) -> ProducerIdentity:
        command = EndTransaction(
            transactional_id=request.transactional_id,
            producer=request.producer,
            commit=request.commit,
            transaction_version=EPOCH_BUMPING_VERSION,
            may_be_empty=True,
        )
        coordinator = await self._ready(request.transactional_id)
        try:
            ended = await self._transactions.end_here(command)
        except OtherOutcome as refusal:
            raise _other_outcome(request.commit) from refusal
        await coordinator.until_ended(request.transactional_id, _LONGEST_END_MS)
        return ended.producer

    async def _ready(self, transactional_id: str) -> TransactionCoordinator:
        """Return the coordinator of a transactional id, once the markers of an ended transaction are written."""
        coordinator = await self._transactions.loaded(transactional_id)
        await coordinator.until_ended(transactional_id, _LONGEST_END_MS)
        return coordinator


def _other_outcome(commit: bool) -> RequestError:
    if commit:
        return RequestError(ErrorKind.TRANSACTION_ABORTED, "the transaction was aborted, or has timed out")
    return RequestError(ErrorKind.TRANSACTION_ENDED, "the transaction was committed")
