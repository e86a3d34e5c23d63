"""Coordinators of transactions: a partition of `__transaction_state` and its state machine coordinate a transactional
id.

A coordinator is loaded as soon as this broker leads its partition: transactions time out, and the markers of prepared
transactions must be sent, whether or not a client asks. Each term of leadership has a coordinator of its own, because
the leader epoch is the coordinator's epoch, which fences earlier coordinators.
"""

from collections import Counter
from typing import cast

import msgspec

from conveyor.broker.answers import Answer, emitted
from conveyor.broker.coordinators.hosted_machine import HostedMachine
from conveyor.broker.coordinators.keyed_coordinators import KeyedCoordinators, as_coordinator
from conveyor.broker.markers.marker_sender import MarkerSender
from conveyor.broker.markers.marker_writer import WRITE_MARKERS, MarkerResults, WriteMarkers
from conveyor.broker.metadata.producer_ids import ProducerIds
from conveyor.broker.partitions.partition_table import PartitionTable
from conveyor.broker.produce.verification import VERIFY, VerifyPartitions
from conveyor.broker.remote.leader_calls import LeaderCalls
from conveyor.broker.services import Services
from conveyor.broker.topics.topics import Topics
from conveyor.cluster.image import TRANSACTIONS_TOPIC
from conveyor.kernel.access.caller import Caller
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.ids import ProducerEpoch, ProducerId, ProducerIdentity
from conveyor.kernel.signal import Signal
from conveyor.kernel.state_machine import Command
from conveyor.replication.machine_runner import Respond, Withdraw, replay
from conveyor.replication.partition import Partition
from conveyor.transactions.transaction_commands import (
    AddPartitions,
    EndTransaction,
    InitializeProducer,
    ListTransactions,
    OneTransactionCommand,
    RecordMarkers,
    TransactionCommand,
    TransactionLimits,
)
from conveyor.transactions.transaction_machine import TransactionMachine
from conveyor.transactions.transaction_replies import ListedTransaction, ProducerIdNeeded
from conveyor.transactions.transaction_value import EPOCH_BUMPING_VERSION, TransactionState

_LONGEST_END_MS = 100
"""A new transaction waits at most this long for the markers of the previous transaction."""


class TransactionCoordinator(HostedMachine):
    """The machine of one partition in one term of leadership, with the sender of its markers.

    A producer that begins its next transaction right after EndTxn finds the markers of the previous one on their way.
    Its request waits for them a little, because clients that get CONCURRENT_TRANSACTIONS pause for 20 ms or more.
    """

    def __init__(
        self,
        partition: Partition,
        machine: TransactionMachine,
        services: Services,
        leaders: LeaderCalls,
        ids: ProducerIds,
    ) -> None:
        super().__init__(partition, machine, services.clock)
        self.epoch = partition.term.epoch
        self.machine = machine
        self._sender = MarkerSender(self, leaders, services)
        self._ids = ids
        self._ends: dict[str, Signal[None]] = {}
        """Emitted when a transaction has ended, by transactional id."""

    def start(self) -> None:
        """Send the markers of prepared transactions."""
        self._sender.start()

    async def ask(self, command: Command[Answer]) -> Answer:
        """Return the machine's reply, once it is durable. Raises RequestError."""
        if isinstance(command, AddPartitions):
            await self.until_ended(command.transactional_id, _LONGEST_END_MS)
        reply = await super().ask(command)
        if isinstance(reply, ProducerIdNeeded):
            assert isinstance(command, InitializeProducer | EndTransaction), command
            spare = await self._ids.allocate()
            with_spare = msgspec.structs.replace(command, spare_producer_id=spare)
            reply = await super().ask(cast("Command[Answer]", with_spare))
        return reply

    def submit(self, command: TransactionCommand[Answer], respond: Respond[Answer]) -> Withdraw:
        """See `MachineRunner.submit`."""
        withdraw = super().submit(command, respond)
        if isinstance(command, RecordMarkers) and not self.machine.is_ending(command.transactional_id):
            ended = self._ends.pop(command.transactional_id, None)
            if ended is not None:
                ended.emit(None)
        return withdraw

    async def until_ended(self, transactional_id: str, longest_ms: int) -> None:
        """Wait until the coordinator has recorded the last marker of a transaction that is being ended, if one is."""
        if self.machine.is_ending(transactional_id):
            await emitted(self._ends.setdefault(transactional_id, Signal()), self._clock, longest_ms)

    def stop(self) -> None:
        self._sender.stop()
        super().stop()


class TransactionCoordinators(KeyedCoordinators[TransactionCoordinator]):
    """See the module's docstring. Every method that asks a coordinator raises RequestError."""

    name = "transaction coordinator"
    retry_ms = 1_000
    topic = TRANSACTIONS_TOPIC
    factor_setting = "transactions.state_replication_factor"

    def __init__(
        self, services: Services, table: PartitionTable, topics: Topics, leaders: LeaderCalls, ids: ProducerIds
    ) -> None:
        super().__init__(services, table, topics)
        self._leaders = leaders
        self._ids = ids
        settings = services.settings.transactions
        self._limits = TransactionLimits(
            max_timeout_ms=settings.max_timeout_ms,
            id_expiration_ms=settings.id_expiration_ms,
            two_phase_commit_enable=settings.two_phase_commit_enable,
            answer_retention_ms=settings.answer_retention_ms,
        )
        leaders.handlers.register(VERIFY, self._verify_here)

    async def load(self, partition: Partition) -> TransactionCoordinator:
        epoch = partition.term.epoch
        machine = TransactionMachine(self._limits, epoch)
        await self._read(partition, replay, partition.log, machine)
        if partition.term.epoch != epoch:
            raise RequestError(ErrorKind.COORDINATOR_NOT_AVAILABLE, f"{partition.identity} has a newer leader epoch")
        machine.loaded(self._services.clock.now_ms())
        return TransactionCoordinator(partition, machine, self._services, self._leaders, self._ids)

    def try_continue(self, runner: TransactionCoordinator, partition: Partition) -> bool:
        return runner.partition is partition and runner.epoch == partition.term.epoch

    async def ask(self, caller: Caller, command: OneTransactionCommand[Answer]) -> Answer:
        """Return the reply of the coordinator of a transactional id, which must be this broker (NOT_COORDINATOR)."""
        with as_coordinator():
            return await self.ask_here(command)

    async def ask_here(self, command: OneTransactionCommand[Answer]) -> Answer:
        """As `ask`, for a broker that asks. Raises NotLeader."""
        partition = self.partition_of(command.transactional_id)
        if partition is None:
            raise RequestError(ErrorKind.NOT_COORDINATOR, f"{self.topic} does not exist: find the coordinator")
        return await (await self.coordinator(partition.partition)).ask(command)

    async def list_transactions(self, caller: Caller, command: ListTransactions) -> list[ListedTransaction]:
        """Return the transactional ids that this broker coordinates and that match the command."""
        replies = await self.list_keys(
            lambda coordinator: coordinator.machine.transactional_ids(),
            lambda names: msgspec.structs.replace(command, transactional_ids=names),
        )
        return [transaction for reply in replies for transaction in reply.transactions]

    async def write_markers(self, caller: Caller, request: WriteMarkers) -> MarkerResults:
        """Append markers to partitions that this broker leads, for an administrator who ends a hanging transaction."""
        return await self._leaders.handlers.answer(caller, WRITE_MARKERS, request)

    def state_counts(self) -> Counter[TransactionState]:
        """Return how many of the transactional ids that this broker coordinates are in each state."""
        return sum((coordinator.machine.state_counts for coordinator in self.list()), Counter())

    def answers_bytes(self) -> int:
        """Return the memory for the answers to requests that this broker coordinates."""
        return sum(coordinator.machine.answers.size_bytes for coordinator in self.list())

    def gained(self, partition: Partition) -> None:
        """Load the coordinator of a partition; see `LeadershipListener`."""
        if partition.identity.topic == self.topic:
            super().gained(partition)

    async def _verify_here(self, caller: Caller, request: VerifyPartitions) -> list[RequestError | None]:
        command = AddPartitions(
            transactional_id=request.transactional_id,
            producer=ProducerIdentity(ProducerId(request.producer_id), ProducerEpoch(request.producer_epoch)),
            partitions=tuple(request.partitions),
            verify_only=not request.adds,
            transaction_version=EPOCH_BUMPING_VERSION if request.adds else 0,
        )
        return list((await self.ask_here(command)).errors)
