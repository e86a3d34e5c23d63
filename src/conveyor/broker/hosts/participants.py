"""Lets the machines of partitions take part in transactions. For each command, in this order:

    older epoch than the partition knows         -> INVALID_PRODUCER_EPOCH
    its transaction is open in the partition     -> ask the machine
    otherwise                                    -> ask the coordinator whether the partition takes part, then as above

The check is repeated in the tick of the append; see `verifications`. Sources: KIP-98, KIP-890.
"""

from collections.abc import Awaitable, Callable

from conveyor.broker.answers import Answer
from conveyor.broker.hosts.transaction_coordinators import Transactions
from conveyor.broker.transactions.verifications import Verifications
from conveyor.kernel.errors import ERRORS, ErrorKind, RequestError
from conveyor.kernel.ids import ProducerIdentity
from conveyor.replication.partition import Partition


class Participants:
    """See the module's docstring."""

    def __init__(self, transactions: Transactions, verifications: Verifications) -> None:
        self._transactions = transactions
        self._verifications = verifications

    async def ask(
        self,
        partition: Partition,
        transactional_id: str,
        producer: ProducerIdentity,
        ask: Callable[[], Awaitable[Answer]],
        is_running: Callable[[], bool],
        *,
        adds: bool,
    ) -> Answer:
        """Ask the machine of a partition in the transaction of a producer.

        is_running: whether `ask` still asks the machine that runs. adds: let the partition take part, as of transaction
        version 2.
        Raises RequestError: TRANSACTION_ABORTABLE if the partition takes no part in the transaction;
        COORDINATOR_LOADING if the request is to be repeated.
        """
        if partition.log.producers.has_open(*producer):
            return await ask()
        verification = self._verifications.begin(partition, producer.producer_id)
        try:
            await self._check_takes_part(partition, transactional_id, producer, adds)
            if not verification.is_valid or not is_running():
                raise _to_repeat("the transaction may have ended meanwhile")
            return await ask()
        finally:
            self._verifications.end(verification)

    async def _check_takes_part(
        self, partition: Partition, transactional_id: str, producer: ProducerIdentity, adds: bool
    ) -> None:
        partition.log.producers.check_epoch(producer)
        try:
            [refusal] = await self._transactions.verify(transactional_id, producer, [partition.identity], adds)
        except RequestError as error:
            refusal = error
        if refusal is not None:
            raise _refusal(refusal)
        try:
            partition.log.producers.check_participant(producer)
        except RequestError as error:
            raise _refusal(error) from error


def _refusal(error: RequestError) -> RequestError:
    """Return the error for the client of a machine. Source: Kafka's GroupCoordinatorService."""
    if error.kind is ErrorKind.PRODUCER_FENCED:
        return RequestError(ErrorKind.INVALID_PRODUCER_EPOCH, error.message)
    if ERRORS[error.kind].retriable:
        return _to_repeat(f"the transaction cannot be verified: {error.message}")
    return error


def _to_repeat(reason: str) -> RequestError:
    return RequestError(ErrorKind.COORDINATOR_LOADING, f"{reason}: repeat the request")
