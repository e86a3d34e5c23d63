"""The partitions that are queues as well: loaded when their topic has a subscription, and kept until it has none.

They are kept by the id of their topic: a topic that takes the name of a deleted one has none of its queues.
"""

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
from conveyor.cluster.image import QUEUE_STATE, TopicImage, companion
from conveyor.kernel.errors import ErrorKind, RequestError, StorageFailure
from conveyor.kernel.ports import Clock
from conveyor.queues.cache_share import CacheShare
from conveyor.queues.commands import CutBack, ForgetSubscription, QueueProbe
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
        """Those of a topic that are loaded, in their order."""
        return self._loaded.get(topic_id, [])

    async def load(self, topic: str) -> list[QueuePartition]:
        """All of a topic, loaded if they are not. Raises RequestError, also if the topic is deleted meanwhile."""
        image = self._topics.existing(topic)
        if len(self.of(image.topic_id)) == len(image.partitions):
            return self.of(image.topic_id)
        async with self._loading.setdefault(image.topic_id, asyncio.Lock()):
            self._still(image)
            await self._topics.ensure_companion(QUEUE_STATE, topic)
            while len(self.of(image.topic_id)) < len(self._still(image).partitions):
                loaded = self._loaded.setdefault(image.topic_id, [])
                partition = await self._load(image, len(loaded))
                if self._loaded.get(image.topic_id) is loaded:
                    loaded.append(partition)
                    partition.source.join(self._cache)
                    self._forget_strays(image.topic_id, partition)
                else:  # All were unloaded meanwhile.
                    partition.stop()
        return self.of(image.topic_id)

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

    async def _load(self, image: TopicImage, number: int) -> QueuePartition:
        topic = image.name
        messages = self._partitions.find(topic, number)
        state = self._partitions.find(companion(QUEUE_STATE, topic), number)
        source = MessageSource(topic, number, messages.log)
        machine = QueueMachine(source, next(self._incarnations), self._fraction, self.probe, self._acks)
        known = self._subscriptions.by_id(image.topic_id)
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
            threads=self._threads,
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
