"""Offsets of consumer groups that a producer commits in its transaction. For each request, in this order:

    older epoch than the partition knows         -> INVALID_PRODUCER_EPOCH
    its transaction is open in the partition     -> commit
    otherwise                                    -> ask the coordinator whether the partition takes part, then commit

The check is repeated in the tick of the append; see `verifications`. The partition is that of the group's coordinator,
and takes part in the transaction like any other. Sources: KIP-98, KIP-447, KIP-890.
"""

from conveyor.broker.hosts.group_coordinators import Coordinator, Groups
from conveyor.broker.hosts.transaction_coordinators import Transactions
from conveyor.broker.transactions.verifications import Verifications
from conveyor.groups.group_commands import CommitOffsets
from conveyor.groups.replies import Committed
from conveyor.kernel.errors import ERRORS, ErrorKind, RequestError
from conveyor.kernel.ids import ProducerIdentity
from conveyor.transactions.transaction_commands import AddPartitions


class TransactionalOffsets:
    """See the module's docstring."""

    def __init__(self, groups: Groups, transactions: Transactions, verifications: Verifications) -> None:
        self._groups = groups
        self._transactions = transactions
        self._verifications = verifications

    async def add_group(
        self, transactional_id: str, producer: ProducerIdentity, group_id: str, connection: int
    ) -> None:
        """Add the partition of a group's offsets to a producer's transaction. Raises RequestError."""
        await self._transactions.ask(
            AddPartitions(
                transactional_id=transactional_id,
                producer=producer,
                partitions=(await self._groups.offsets_partition(group_id),),
                transaction_version=0,
                connection=connection,
            )
        )

    async def commit(
        self, transactional_id: str, producer: ProducerIdentity, command: CommitOffsets, *, adds: bool
    ) -> Committed:
        """Commit offsets in the transaction of a producer, as the coordinator of the group.

        adds: let the group take part, as of transaction version 2.
        Raises RequestError: TRANSACTION_ABORTABLE if the group takes no part in the transaction; COORDINATOR_LOADING if
        the request is to be repeated.
        """
        coordinator = await self._groups.coordinator(command.group_id)
        if coordinator.partition.log.producers.has_open(*producer):
            return await coordinator.ask(command)
        verification = self._verifications.begin(coordinator.partition, producer.producer_id)
        try:
            await self._check_takes_part(transactional_id, producer, coordinator, adds)
            if not verification.is_valid or not self._groups.is_running(coordinator):
                raise _to_repeat("the transaction may have ended meanwhile")
            return await coordinator.ask(command)
        finally:
            self._verifications.end(verification)

    async def _check_takes_part(
        self, transactional_id: str, producer: ProducerIdentity, coordinator: Coordinator, adds: bool
    ) -> None:
        partition = coordinator.partition
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
    """Return the error for the client of a group's coordinator. Source: Kafka's GroupCoordinatorService."""
    if error.kind is ErrorKind.PRODUCER_FENCED:
        return RequestError(ErrorKind.INVALID_PRODUCER_EPOCH, error.message)
    if ERRORS[error.kind].retriable:
        return _to_repeat(f"the transaction cannot be verified: {error.message}")
    return error


def _to_repeat(reason: str) -> RequestError:
    return RequestError(ErrorKind.COORDINATOR_LOADING, f"{reason}: send the offsets again")
