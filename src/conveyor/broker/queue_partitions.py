"""The partitions that are queues as well: loaded when their topic has a subscription, and kept until it has none."""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor
from itertools import count
from uuid import UUID

from conveyor.broker.partitions import PartitionTable
from conveyor.broker.queue_calls import ask
from conveyor.broker.queue_partition import QueuePartition
from conveyor.broker.retention import Retention
from conveyor.broker.subscriptions import Subscriptions
from conveyor.broker.tasks import Tasks
from conveyor.broker.topics import Topics
from conveyor.cluster.image import QUEUE_STATE, companion
from conveyor.kernel.errors import ErrorKind, RequestError, StorageFailure
from conveyor.kernel.ports import Clock
from conveyor.queues.commands import CutBack, QueueProbe
from conveyor.queues.machine import QueueMachine
from conveyor.queues.memory_budget import MemoryBudget
from conveyor.queues.policy import Subscription
from conveyor.queues.records import cut
from conveyor.queues.source import MessageSource
from conveyor.replication.partition import Partition
from conveyor.replication.runner import replay

log = logging.getLogger(__name__)


class QueuePartitions:
    """See the module's docstring. changed: told whenever a partition may have something new for somebody."""

    def __init__(
        self,
        *,
        topics: Topics,
        partitions: PartitionTable,
        subscriptions: Subscriptions,
        clock: Clock,
        threads: Executor,
        retention: Retention,
        tasks: Tasks,
        acks: MemoryBudget,
        new_id: Callable[[], UUID],
        changed: Callable[[QueuePartition], None],
    ) -> None:
        self._topics = topics
        self._partitions = partitions
        self._subscriptions = subscriptions
        self._clock = clock
        self._threads = threads
        self._retention = retention
        self._tasks = tasks
        self._acks = acks
        self._new_id = new_id
        self._changed = changed
        self._loaded: dict[str, list[QueuePartition]] = {}
        self._loading: dict[str, asyncio.Lock] = {}
        self._incarnations = count(new_id().int & 0x7FFF_FFFF)
        self.probes: dict[UUID, QueueProbe] = {}

    def of(self, topic: str) -> list[QueuePartition]:
        """Those of a topic that are loaded, in their order."""
        return self._loaded.get(topic, [])

    async def load(self, topic: str) -> list[QueuePartition]:
        """All of a topic, loaded if they are not. Raises RequestError."""
        wanted = len(self._topics.existing(topic).partitions)
        if len(self.of(topic)) == wanted:
            return self.of(topic)
        async with self._loading.setdefault(topic, asyncio.Lock()):
            await self._topics.ensure_companion(QUEUE_STATE, topic)
            loaded = self._loaded.setdefault(topic, [])
            for number in range(len(loaded), len(self._topics.existing(topic).partitions)):
                loaded.append(await self._load(topic, number))
        return self.of(topic)

    def unload(self, topic: str) -> None:
        """Its topic is gone, or has no subscription any more."""
        for each in self._loaded.pop(topic, []):
            each.stop()

    def stop(self) -> None:
        for topic in list(self._loaded):
            self.unload(topic)

    def probe(self, subscription: UUID) -> QueueProbe:
        """The counters of a subscription, since this broker has started."""
        return self.probes.setdefault(subscription, QueueProbe())

    async def _load(self, topic: str, number: int) -> QueuePartition:
        messages = self._partitions.find(topic, number)
        state = self._partitions.find(companion(QUEUE_STATE, topic), number)
        source = MessageSource(topic, number, messages.log)
        machine = QueueMachine(source, next(self._incarnations), self._fraction, self.probe, self._acks)
        known = self._subscriptions.by_id(topic)
        limit, now_ms = int(messages.high_watermark), self._clock.now_ms()
        loop = asyncio.get_running_loop()
        opened = int(messages.opened_offset)
        has_lost = await loop.run_in_executor(
            self._threads, _load_machine, state, machine, known, limit, opened, now_ms
        )
        partition = QueuePartition(
            messages=messages,
            state=state,
            source=source,
            machine=machine,
            clock=self._clock,
            retention=self._retention,
            tasks=self._tasks,
            call_soon=loop.call_soon,
            changed=self._changed,
        )
        if has_lost:
            log.warning("queue cut back partition=%s offset=%d: the log has lost messages", messages.identity, opened)
            await ask(partition, CutBack(offset=opened))
        return partition

    def _fraction(self) -> float:
        """Entropy, in [0, 1)."""
        return (self._new_id().int & 0xFFFF_FFFF) / 2**32


def _load_machine(
    state: Partition, machine: QueueMachine, known: dict[UUID, Subscription], limit: int, opened: int, now_ms: int
) -> bool:
    """Replay, and look through the whole backlog. Blocks: the machine is nobody's yet.

    Returns whether the machine knew of messages that the log does not have; it has forgotten them then.
    """
    try:
        replay(state.log, machine)
        has_lost = machine.reaches_beyond(opened)
        if has_lost:
            machine.apply(cut(opened))
        machine.know(known)
        while not machine.advance(limit, now_ms):
            pass
        return has_lost
    except StorageFailure as failure:
        raise RequestError(ErrorKind.PARTITION_OFFLINE, f"{state.identity} cannot be read: {failure}") from failure
