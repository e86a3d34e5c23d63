"""Offsets of consumer groups that a producer commits in its transaction, at the coordinator of the group.

The partition of the group's coordinator takes part in the transaction like any other; see `participants`. Sources:
KIP-98, KIP-447.
"""

from conveyor.broker.coordinators.group_coordinators import GroupCoordinators
from conveyor.broker.coordinators.participants import Participants
from conveyor.broker.coordinators.transaction_coordinators import TransactionCoordinators
from conveyor.broker.produce.outgoing_message import Transaction
from conveyor.groups.group_commands import CommitOffsets
from conveyor.groups.replies import Committed
from conveyor.kernel.access.caller import Caller
from conveyor.kernel.ids import ProducerIdentity
from conveyor.transactions.transaction_commands import AddPartitions


class TransactionalOffsets:
    def __init__(
        self, groups: GroupCoordinators, transactions: TransactionCoordinators, participants: Participants
    ) -> None:
        self._groups = groups
        self._transactions = transactions
        self._participants = participants

    async def add_group(self, caller: Caller, transactional_id: str, producer: ProducerIdentity, group_id: str) -> None:
        """Add the partition of a group's offsets to a producer's transaction. Raises RequestError."""
        await self._transactions.ask(
            caller,
            AddPartitions(
                transactional_id=transactional_id,
                producer=producer,
                partitions=(await self._groups.ensured_partition(group_id),),
                transaction_version=0,
                connection=caller.connection_id,
            ),
        )

    async def commit(
        self, caller: Caller, transactional_id: str, producer: ProducerIdentity, command: CommitOffsets, *, adds: bool
    ) -> Committed:
        """Commit offsets in the transaction of a producer, as the coordinator of the group. adds, errors: see
        `Participants.ask`.
        """
        coordinator = await self._groups.of_group(command.group_id)
        return await self._participants.ask(
            caller, coordinator, command, Transaction(transactional_id, producer), adds=adds
        )
