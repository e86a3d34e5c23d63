"""Coordinators of transactions: a partition of `__transaction_state` and its state machine coordinate a transactional
id.

A coordinator is loaded as soon as this broker leads its partition: transactions time out, and the markers of prepared
transactions must be sent, whether or not a client asks. Each term of leadership has a coordinator of its own, because
the leader epoch is the coordinator's epoch, which fences earlier coordinators.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial

import msgspec

from conveyor.broker.answers import Answer, answered
from conveyor.broker.hosts.coordinator_topic import CoordinatorTopic, as_coordinator
from conveyor.broker.hosts.host import Host
from conveyor.broker.metadata.metadata import Metadata
from conveyor.broker.metadata.producer_ids import ProducerIds
from conveyor.broker.partitions.partition_table import PartitionTable
from conveyor.broker.remote.calls import Call
from conveyor.broker.remote.leader_calls import LeaderCalls
from conveyor.broker.tasks import Tasks
from conveyor.broker.topics.topics import Topics
from conveyor.broker.transactions.marker_sender import MarkerSender
from conveyor.broker.transactions.marker_writer import WRITE_MARKERS, MarkerResults, WriteMarkers
from conveyor.cluster.image import TRANSACTIONS_TOPIC, BrokerImage, TopicImage
from conveyor.kernel.errors import ErrorKind, RequestError, StorageFailure
from conveyor.kernel.ids import ProducerEpoch, ProducerId, ProducerIdentity, TopicPartition
from conveyor.kernel.ports import Clock
from conveyor.replication.machine_runner import MachineRunner, replay
from conveyor.replication.partition import Partition
from conveyor.settings.transactions_settings import TransactionsSettings
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
from conveyor.transactions.transaction_replies import (
    ListedTransaction,
    ProducerIdNeeded,
    ProducerInitialized,
    TransactionEnded,
)
from conveyor.transactions.transaction_value import EPOCH_BUMPING_VERSION, TransactionState

_RETRY_MS = 1_000
_VERIFY_TIMEOUT_MS = 10_000
_LONGEST_END_MS = 100
"""The longest wait of a new transaction for the markers of the one before."""


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


class TransactionCoordinator:
    """The machine of one partition in one term of leadership, with the sender of its markers.

    A producer that begins its next transaction right after EndTxn finds the markers of the previous one on their way.
    Its request waits for them a little, because clients that get CONCURRENT_TRANSACTIONS pause for 20 ms or more.
    """

    def __init__(
        self, partition: Partition, machine: TransactionMachine, epoch: int, clock: Clock, sender: MarkerSender
    ) -> None:
        self.partition = partition
        self.epoch = epoch
        self.state_counts = machine.state_counts
        self.answers = machine.answers
        self._machine = machine
        self._clock = clock
        self._ends: dict[str, list[Callable[[], None]]] = {}
        """Called when a transaction has ended, by transactional id."""
        self._runner: MachineRunner[TransactionCommand[object]] = MachineRunner(partition, machine, clock)
        self._sender = sender
        sender.start(self)

    async def ask(self, command: TransactionCommand[Answer]) -> Answer:
        """Return the machine's reply, once it is durable. Raises RequestError."""
        if isinstance(command, AddPartitions):
            await self.until_ended(command.transactional_id, _LONGEST_END_MS)

        def submit(respond: Callable[[Answer | RequestError], None]) -> Callable[[], None]:
            token = self._runner.submit(command, respond)
            if isinstance(command, RecordMarkers) and not self._machine.is_ending(command.transactional_id):
                for ended in self._ends.pop(command.transactional_id, ()):
                    ended()
            return lambda: self._runner.forget(token)

        return await answered(submit)

    def is_ending(self, transactional_id: str) -> bool:
        """Return whether the markers of a transaction are missing."""
        return self._machine.is_ending(transactional_id)

    async def until_ended(self, transactional_id: str, longest_ms: int) -> None:
        """Wait until the coordinator has recorded the last marker of a transaction that is being ended, if one is."""
        if not self._machine.is_ending(transactional_id):
            return

        def submit(over: Callable[[None], None]) -> Callable[[], None]:
            ended = partial(over, None)
            self._ends.setdefault(transactional_id, []).append(ended)
            cancel = self._clock.call_later(longest_ms, ended)

            def forget() -> None:
                cancel()
                waiting = self._ends.get(transactional_id, [])
                if ended in waiting:
                    waiting.remove(ended)
                if not waiting:
                    self._ends.pop(transactional_id, None)

            return forget

        await answered(submit)

    def stop(self) -> None:
        self._sender.stop()
        self._runner.stop()


class TransactionCoordinatorKind:
    """How coordinators are loaded. new_sender: returns a sender for the markers of one coordinator."""

    name = "transaction coordinator"

    def __init__(
        self, limits: TransactionLimits, clock: Clock, threads: Executor, new_sender: Callable[[], MarkerSender]
    ) -> None:
        self._limits = limits
        self._clock = clock
        self._threads = threads
        self._new_sender = new_sender

    def logs(self, partition: Partition) -> tuple[Partition]:
        return (partition,)

    async def load(self, partition: Partition, check_wanted: Callable[[], None]) -> TransactionCoordinator:
        partition.leading()
        epoch = partition.term.epoch
        machine = TransactionMachine(self._limits, epoch)
        await asyncio.get_running_loop().run_in_executor(self._threads, _replay, partition, machine)
        partition.leading()  # Another broker may lead it by now.
        if partition.term.epoch != epoch:
            raise RequestError(ErrorKind.COORDINATOR_NOT_AVAILABLE, f"{partition.identity} has a newer leader epoch")
        check_wanted()
        machine.loaded(self._clock.now_ms())
        return TransactionCoordinator(partition, machine, epoch, self._clock, self._new_sender())

    def try_continue(self, machine: TransactionCoordinator, partition: Partition) -> bool:
        return machine.partition is partition and machine.epoch == partition.term.epoch


class Transactions:
    """See the module's docstring. Every method that asks a coordinator raises RequestError."""

    def __init__(
        self, *, metadata: Metadata, topics: Topics, partitions: PartitionTable, settings: TransactionsSettings,
        leaders: LeaderCalls, producer_ids: ProducerIds, clock: Clock, threads: Executor, tasks: Tasks,
    ) -> None:  # fmt: skip
        self._topic = CoordinatorTopic(TRANSACTIONS_TOPIC, "transactions.state_replication_factor", metadata, topics)
        self._partitions = partitions
        self._leaders = leaders
        self._producer_ids = producer_ids
        limits = TransactionLimits(
            max_timeout_ms=settings.max_timeout_ms,
            id_expiration_ms=settings.id_expiration_ms,
            two_phase_commit_enable=settings.two_phase_commit_enable,
            answer_retention_ms=settings.answer_retention_ms,
        )
        kind = TransactionCoordinatorKind(limits, clock, threads, lambda: MarkerSender(leaders, metadata, clock, tasks))
        self._host: Host[TransactionCoordinator] = Host(kind, clock, tasks, retry_ms=_RETRY_MS)
        leaders.handlers.register(VERIFY, self._verify_here)

    async def find_coordinator(self, transactional_id: str) -> BrokerImage:
        """Return the coordinator of a transactional id. Creates the topic if it is missing."""
        return await self._topic.coordinator_of(transactional_id)

    def partition_count(self) -> int:
        """Return the number of partitions of `__transaction_state`; 0 if it does not exist."""
        return self._topic.partition_count()

    async def ensured(self) -> TopicImage:
        """Return `__transaction_state`, created if it is missing."""
        return await self._topic.ensured()

    async def initialize(self, command: InitializeProducer) -> ProducerInitialized:
        """Give a client a transactional id; see `InitializeProducer`."""
        with as_coordinator():
            return await self.initialize_here(command)

    async def initialize_here(self, command: InitializeProducer) -> ProducerInitialized:
        """As `initialize`, for a broker that asks. Raises NotLeader."""
        reply = await self._ask(command)
        if isinstance(reply, ProducerIdNeeded):
            spare = await self._producer_ids.allocate()
            reply = await self._ask(msgspec.structs.replace(command, spare_producer_id=spare))
        assert isinstance(reply, ProducerInitialized), reply
        return reply

    async def end(self, command: EndTransaction) -> TransactionEnded:
        """Commit or abort a transaction; see `EndTransaction`."""
        with as_coordinator():
            return await self.end_here(command)

    async def end_here(self, command: EndTransaction) -> TransactionEnded:
        """As `end`, for a broker that asks. Raises NotLeader."""
        reply = await self._ask(command)
        if isinstance(reply, ProducerIdNeeded):
            spare = await self._producer_ids.allocate()
            reply = await self._ask(msgspec.structs.replace(command, spare_producer_id=spare))
        assert isinstance(reply, TransactionEnded), reply
        return reply

    async def ask(self, command: OneTransactionCommand[Answer]) -> Answer:
        """Return the reply of the coordinator of a transactional id, which must be this broker (NOT_COORDINATOR)."""
        with as_coordinator():
            return await self._ask(command)

    async def verify(
        self, transactional_id: str, producer: ProducerIdentity, partitions: list[TopicPartition], adds: bool
    ) -> list[RequestError | None]:
        """Ask the coordinator, on whichever broker it is, which partitions take part; see `VerifyPartitions`."""
        number = self._topic.partition_number(transactional_id)
        if number < 0:
            raise RequestError(ErrorKind.INVALID_PRODUCER_ID_MAPPING, "no producer has a transactional id yet")
        request = VerifyPartitions(transactional_id, *producer, partitions, adds)
        return await self._leaders.ask(VERIFY, TRANSACTIONS_TOPIC, number, request, _VERIFY_TIMEOUT_MS)

    async def list_transactions(self, command: ListTransactions) -> list[ListedTransaction]:
        """Return the transactional ids that this broker coordinates, sorted."""
        listed: list[ListedTransaction] = []
        for number in range(self._topic.partition_count()):
            try:
                with as_coordinator():
                    coordinator = await self._host.loaded(self._partitions.find(TRANSACTIONS_TOPIC, number))
                    listed += (await coordinator.ask(command)).transactions
            except RequestError as error:
                if error.kind is not ErrorKind.NOT_COORDINATOR:
                    raise
        return sorted(listed, key=lambda transaction: transaction.transactional_id)

    async def write_markers(self, request: WriteMarkers) -> MarkerResults:
        """Append markers to partitions that this broker leads, for an administrator who ends a hanging transaction."""
        return await self._leaders.handlers.answer(WRITE_MARKERS, request)

    def state_counts(self) -> Counter[TransactionState]:
        """Return how many of the transactional ids that this broker coordinates are in each state."""
        return sum((coordinator.state_counts for coordinator in self._host.all_running()), Counter())

    def answers_bytes(self) -> int:
        """Return the memory for the answers to requests that this broker coordinates."""
        return sum(coordinator.answers.size_bytes for coordinator in self._host.all_running())

    def gained(self, partition: Partition) -> None:
        """Load the coordinator of a partition; see `LeadershipListener`."""
        if partition.identity.topic == TRANSACTIONS_TOPIC:
            self._host.gained(partition)

    def lost(self, partition: Partition) -> None:
        """Stop the coordinator of a partition; see `LeadershipListener`."""
        self._host.lost(partition)

    def stop(self) -> None:
        """Answer every waiting request."""
        self._host.stop()

    async def _ask(self, command: OneTransactionCommand[Answer]) -> Answer:
        return await (await self.loaded(command.transactional_id)).ask(command)

    async def loaded(self, transactional_id: str) -> TransactionCoordinator:
        """Return the coordinator of a transactional id, which must be this broker. Raises NotLeader."""
        number = self._topic.partition_number(transactional_id)
        if number < 0:
            raise RequestError(ErrorKind.NOT_COORDINATOR, f"{TRANSACTIONS_TOPIC} does not exist: find the coordinator")
        return await self.coordinator(number)

    async def coordinator(self, number: int) -> TransactionCoordinator:
        """Return the coordinator of a partition, which must be this broker. Raises NotLeader."""
        return await self._host.loaded(self._partitions.find(TRANSACTIONS_TOPIC, number))

    async def _verify_here(self, request: VerifyPartitions) -> list[RequestError | None]:
        command = AddPartitions(
            transactional_id=request.transactional_id,
            producer=ProducerIdentity(ProducerId(request.producer_id), ProducerEpoch(request.producer_epoch)),
            partitions=tuple(request.partitions),
            verify_only=not request.adds,
            transaction_version=EPOCH_BUMPING_VERSION if request.adds else 0,
        )
        coordinator = await self.loaded(request.transactional_id)
        return list((await coordinator.ask(command)).errors)


def _replay(partition: Partition, machine: TransactionMachine) -> None:
    try:
        replay(partition.log, machine)
    except StorageFailure as failure:
        raise RequestError(ErrorKind.COORDINATOR_NOT_AVAILABLE, f"the coordinator's log: {failure}") from failure
