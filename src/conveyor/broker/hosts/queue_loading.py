"""Loads the machine of a queue: reads its state, scans the topic's backlog, and begins new subscriptions."""

import asyncio
import logging
from collections.abc import Callable
from itertools import count
from typing import TypeVar
from uuid import UUID

from conveyor.broker.answers import ignored
from conveyor.broker.hosts.queue_partition import QueuePartition, QueueServices
from conveyor.broker.metadata.subscriptions import Subscriptions
from conveyor.broker.partitions.partition_table import PartitionTable
from conveyor.broker.topics.topics import Topics
from conveyor.cluster.image import QUEUE_STATE, companion
from conveyor.kernel.errors import StorageFailure
from conveyor.log.record_source import MessageSource
from conveyor.queues.delivery.memory_budget import MemoryBudget
from conveyor.queues.queue_commands import CutBack, ForgetSubscription, PutSubscription, QueueProbe
from conveyor.queues.queue_machine import QueueMachine
from conveyor.queues.subscription.policy import StartPosition, Subscription
from conveyor.queues.subscription.queue_records import cut
from conveyor.replication.machine_runner import replay_transactions
from conveyor.replication.partition import Partition
from conveyor.replication.transactions import last_stable_offset

log = logging.getLogger(__name__)

Result = TypeVar("Result")


class QueueKind:
    """See the module's docstring. For the contract: `host.MachineKind`."""

    name = "queue"

    def __init__(
        self,
        *,
        topics: Topics,
        partitions: PartitionTable,
        subscriptions: Subscriptions,
        services: QueueServices,
        acks: MemoryBudget,
        new_id: Callable[[], UUID],
        probe: Callable[[UUID], QueueProbe],
    ) -> None:
        self._topics = topics
        self._partitions = partitions
        self._subscriptions = subscriptions
        self._services = services
        self._acks = acks
        self._new_id = new_id
        self._probe = probe
        self._incarnations = count(new_id().int & 0x7FFF_FFFF)

    def logs(self, partition: Partition) -> tuple[Partition, Partition]:
        return partition, self.state_of(partition)

    async def load(self, partition: Partition, check_wanted: Callable[[], None]) -> QueuePartition:
        topic_id, state = self._topics.existing(partition.identity.topic).topic_id, self.state_of(partition)
        _check_online(partition, state)
        source = MessageSource(*partition.identity, partition.log)
        machine = QueueMachine(source, self._next_incarnation(partition), self._fraction, self._probe, self._acks)
        cut_offset = await self._read(state, _replay, state, machine, partition.leading().recovered_end_offset)
        subscriptions, limit = self._subscriptions.by_id(topic_id), last_stable_offset(partition)
        await self._read(partition, _scan, machine, subscriptions, limit, self._services.clock.now_ms())
        _check_online(partition, state)
        check_wanted()
        queue = QueuePartition(topic_id, partition, state, source, machine, self._services)
        try:
            await self._bring_up_to_date(queue, cut_offset)
        except BaseException:
            queue.stop()
            raise
        term = partition.leader_term
        if term is not None:
            term.queue_recovered()  # From here on the queue learns only of messages that the log has.
        queue.start()
        return queue

    def try_continue(self, machine: QueuePartition, partition: Partition) -> bool:
        state = self._partitions.get(companion(QUEUE_STATE, partition.identity.topic), partition.identity.partition)
        return state is not None and machine.use(partition, state)

    def state_of(self, partition: Partition) -> Partition:
        """Return the companion partition that holds the queue's state. Raises RequestError."""
        return self._partitions.find(companion(QUEUE_STATE, partition.identity.topic), partition.identity.partition)

    async def begin_subscriptions(self, queue: QueuePartition) -> None:
        """Begin the topic's subscriptions that the machine has no start offset for. Raises RequestError."""
        for subscription in self._subscriptions.by_id(queue.topic_id).values():
            if queue.machine.queue(subscription.id) is None:
                await self.notify(queue, subscription)
                is_older = queue.number < subscription.partition_count
                start = subscription.start if is_older else StartPosition(kind="earliest")
                await queue.begin(subscription.id, start)

    async def notify(self, queue: QueuePartition, subscription: Subscription) -> None:
        """Let a machine know the current state of a subscription: its policy, or its deletion. Raises RequestError."""
        if self._subscriptions.exists(subscription):
            await queue.ask(PutSubscription(subscription=self._subscriptions.current(subscription)))
        else:
            await queue.ask(ForgetSubscription(subscription=subscription.id))

    async def _bring_up_to_date(self, queue: QueuePartition, cut_offset: int | None) -> None:
        if cut_offset is not None:
            log.warning(
                "queue cut back partition=%s offset=%d: the log has lost messages", queue.messages.identity, cut_offset
            )
            await queue.ask(CutBack(offset=cut_offset))
        for stray in queue.machine.unknown_subscriptions(self._subscriptions.by_id(queue.topic_id)):
            queue.submit(ForgetSubscription(subscription=stray), ignored)
        await self.begin_subscriptions(queue)
        for subscription in self._subscriptions.by_id(queue.topic_id).values():
            state = queue.machine.queue(subscription.id)
            if state is not None and state.selection.fault is not None:
                log.error("subscription not served name=%s reason=%s", subscription.name, state.selection.fault)

    async def _read(self, partition: Partition, work: Callable[..., Result], *arguments: object) -> Result:
        """Run a function that reads a partition on a thread. Raises RequestError."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._services.threads, work, *arguments)
        except StorageFailure as failure:
            raise partition.failed_read(failure) from failure

    def _next_incarnation(self, partition: Partition) -> int:
        """Return the incarnation of a machine: the leader epoch in the upper half, so that no other broker's leases
        count as its own, and a number that differs for each machine of this broker in the lower half.
        """
        return partition.term.epoch << 32 | next(self._incarnations) & 0xFFFF_FFFF

    def _fraction(self) -> float:
        """Entropy, in [0, 1)."""
        return (self._new_id().int & 0xFFFF_FFFF) / 2**32


def _check_online(*partitions: Partition) -> None:
    for partition in partitions:
        partition.leading()


def _replay(state: Partition, machine: QueueMachine, recovered_end_offset: int | None) -> int | None:
    """Replay the state. Blocks. Raises StorageFailure.

    recovered_end_offset: see `Partition`. Returns it if the state mentions messages beyond it, which the log has lost;
    the machine has then forgotten them.
    """
    replay_transactions(state.log, machine)
    if recovered_end_offset is None or not machine.reaches_beyond(recovered_end_offset):
        return None
    machine.apply(cut(recovered_end_offset))
    return recovered_end_offset


def _scan(machine: QueueMachine, subscriptions: dict[UUID, Subscription], limit: int, now_ms: int) -> None:
    """Scan the whole backlog for the given subscriptions. Blocks. Raises StorageFailure."""
    machine.set_subscriptions(subscriptions)
    while not machine.advance(limit, now_ms):
        pass
