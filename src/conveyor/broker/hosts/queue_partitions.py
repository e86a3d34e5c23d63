"""The partitions that are queues as well: loaded when their topic has a subscription, and kept until it has none.

They are kept by the id of their topic: a topic that takes the name of a deleted one has none of its queues.
"""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor
from itertools import count
from typing import TypeVar
from uuid import UUID

from conveyor.broker.hosts.queue_partition import QueuePartition
from conveyor.broker.metadata.subscriptions import Subscriptions
from conveyor.broker.partitions.partition_table import PartitionTable
from conveyor.broker.partitions.retention import Retention
from conveyor.broker.queues.queue_calls import ask
from conveyor.broker.tasks import Tasks
from conveyor.broker.topics.topics import Topics
from conveyor.cluster.image import QUEUE_STATE, TopicImage, companion
from conveyor.kernel.errors import ErrorKind, RequestError, StorageFailure
from conveyor.kernel.ports import Clock
from conveyor.log.cache_share import CacheShare
from conveyor.log.record_source import MessageSource
from conveyor.queues.delivery.memory_budget import MemoryBudget
from conveyor.queues.queue_commands import CutBack, ForgetSubscription, QueueProbe
from conveyor.queues.queue_machine import QueueMachine
from conveyor.queues.subscription.policy import Subscription
from conveyor.queues.subscription.queue_records import cut
from conveyor.replication.machine_runner import replay
from conveyor.replication.partition import Partition

log = logging.getLogger(__name__)

Result = TypeVar("Result")


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
        cache: CacheShare,
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
        self._cache = cache
        self._new_id = new_id
        self._changed = changed
        self._loaded: dict[UUID, list[QueuePartition]] = {}
        self._loading: dict[UUID, asyncio.Lock] = {}
        self._incarnations = count(new_id().int & 0x7FFF_FFFF)
        self._probes: dict[UUID, QueueProbe] = {}

    def of(self, topic_id: UUID) -> list[QueuePartition]:
        """Those of a topic, in their order; none until all of them are loaded for the first time."""
        return self._loaded.get(topic_id, [])

    def is_loaded(self, topic: TopicImage) -> bool:
        """Whether all partitions of a topic are."""
        return len(self.of(topic.topic_id)) == len(topic.partitions)

    async def load(self, topic: str) -> list[QueuePartition]:
        """All of a topic, loaded if they are not. Raises RequestError; then as many are loaded as before."""
        image = self._topics.existing(topic)
        if not self.is_loaded(image):
            async with self._loading.setdefault(image.topic_id, asyncio.Lock()):
                while len(self.of(image.topic_id)) < len(self._still(image).partitions):
                    await self._topics.ensure_companion(QUEUE_STATE, topic)
                    await self._load_missing(self._still(image))
        return self.of(image.topic_id)

    async def refresh(self, topic: str) -> None:
        """Load those again whose partition, or that of their state, is another one now. Raises RequestError."""
        image = self._topics.existing(topic)
        async with self._loading.setdefault(image.topic_id, asyncio.Lock()):
            loaded = self.of(image.topic_id)
            for number, before in enumerate(loaded):
                messages, state = self._present(topic, number)
                if before.is_of(messages, state) or before.use(messages, state):
                    continue
                made = await self._load(image, number)
                if self.of(image.topic_id) is not loaded:  # They were unloaded meanwhile.
                    return made.stop()
                before.stop()
                loaded[number] = made
                self._take(image.topic_id, made)

    def unload(self, topic_id: UUID) -> None:
        """Its topic has no subscription any more."""
        for each in self._loaded.pop(topic_id, []):
            each.stop()

    def topic_deleted(self, topic: TopicImage) -> None:
        """Keep nothing of a topic that was deleted."""
        self.unload(topic.topic_id)
        self._loading.pop(topic.topic_id, None)

    def stop(self) -> None:
        for topic_id in list(self._loaded):
            self.unload(topic_id)

    def forget(self, subscription: UUID) -> None:
        """A subscription is deleted: drop its counters."""
        self._probes.pop(subscription, None)

    def probe(self, subscription: UUID) -> QueueProbe:
        """The counters of a subscription, since this broker has started."""
        return self._probes.setdefault(subscription, QueueProbe())

    def _forget_strays(self, topic_id: UUID, partition: QueuePartition) -> None:
        """Subscriptions that were deleted before the partition was loaded, or meanwhile."""
        for subscription in partition.machine.strays(self._subscriptions.by_id(topic_id)):
            partition.submit(ForgetSubscription(subscription=subscription), lambda _: None)

    def _still(self, topic: TopicImage) -> TopicImage:
        """The topic as it is now. Raises RequestError (UNKNOWN_TOPIC) if it was deleted, and perhaps made again."""
        present = self._topics.existing(topic.name)
        if present.topic_id != topic.topic_id:
            raise RequestError(ErrorKind.UNKNOWN_TOPIC, f"topic '{topic.name}' was deleted")
        return present

    async def _load_missing(self, image: TopicImage) -> None:
        """All or none: who finds a topic's queues here finds one for each partition. Raises RequestError."""
        before = self._loaded.get(image.topic_id)
        numbers = range(len(before or ()), len(image.partitions))
        for number in numbers:  # Nothing is read in vain where one of them cannot be.
            self._find(image.name, number)
        made: list[QueuePartition] = []
        try:
            for number in numbers:
                loaded = await self._load(image, number)
                made.append(loaded)
            self._still(image)
            if self._loaded.get(image.topic_id) is before:
                self._loaded[image.topic_id] = [*(before or ()), *made]
                for each in made:
                    self._take(image.topic_id, each)
                made = []
        except RequestError:
            self._still(image)  # A topic that is deleted meanwhile is offline first.
            raise
        finally:  # The topic was deleted, its queues were unloaded, or one could not be loaded.
            for each in made:
                each.stop()

    def _take(self, topic_id: UUID, partition: QueuePartition) -> None:
        partition.source.join(self._cache)
        self._forget_strays(topic_id, partition)

    def _present(self, topic: str, number: int) -> tuple[Partition, Partition]:
        """The partition of the messages and that of the state. Raises RequestError."""
        return self._partitions.find(topic, number), self._partitions.find(companion(QUEUE_STATE, topic), number)

    def _find(self, topic: str, number: int) -> tuple[Partition, Partition]:
        """The same, both online. Raises RequestError."""
        messages, state = self._present(topic, number)
        messages.check_online()
        state.check_online()
        return messages, state

    async def _load(self, image: TopicImage, number: int) -> QueuePartition:
        messages, state = self._find(image.name, number)
        source = MessageSource(image.name, number, messages.log)
        machine = QueueMachine(source, next(self._incarnations), self._fraction, self.probe, self._acks)
        cut_offset = await self._read(state, _replay, state, machine, messages.opened_offset)
        known, limit = self._subscriptions.by_id(image.topic_id), int(messages.high_watermark)
        await self._read(messages, _look_through, machine, known, limit, self._clock.now_ms())
        messages.check_online()
        state.check_online()
        partition = QueuePartition(
            messages=messages,
            state=state,
            source=source,
            machine=machine,
            clock=self._clock,
            retention=self._retention,
            tasks=self._tasks,
            threads=self._threads,
            call_soon=asyncio.get_running_loop().call_soon,
            changed=self._changed,
        )
        if cut_offset is not None:
            log.warning(
                "queue cut back partition=%s offset=%d: the log has lost messages", messages.identity, cut_offset
            )
            try:
                await ask(partition, CutBack(offset=cut_offset))
            except (RequestError, asyncio.CancelledError):
                partition.stop()
                raise
        messages.opened_offset = None  # What its queue learns from now on is of messages that the log has.
        return partition

    async def _read(self, partition: Partition, work: Callable[..., Result], *arguments: object) -> Result:
        """Run what reads a partition off the loop. Raises RequestError."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work, *arguments)
        except StorageFailure as failure:
            raise partition.failed_read(failure) from failure

    def _fraction(self) -> float:
        """Entropy, in [0, 1)."""
        return (self._new_id().int & 0xFFFF_FFFF) / 2**32


def _replay(state: Partition, machine: QueueMachine, opened: int | None) -> int | None:
    """Blocks: the machine is nobody's yet. Raises StorageFailure.

    opened: see `Partition.opened_offset`. Returns it if the machine knew of messages beyond, which the log has lost;
    the machine has forgotten them then.
    """
    replay(state.log, machine)
    if opened is None or not machine.reaches_beyond(opened):
        return None
    machine.apply(cut(opened))
    return opened


def _look_through(machine: QueueMachine, known: dict[UUID, Subscription], limit: int, now_ms: int) -> None:
    """Look through the whole backlog of the subscriptions that there are. Blocks. Raises StorageFailure."""
    machine.know(known)
    while not machine.advance(limit, now_ms):
        pass
