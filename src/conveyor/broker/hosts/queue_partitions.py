"""The queues of this broker's partitions: loaded when their topic has a subscription, unloaded when it has none.

A queue belongs to a topic by the topic's id: a topic that takes the name of a deleted one inherits none of its queues.
"""

import asyncio
import logging
from collections.abc import Callable
from uuid import UUID

from conveyor.broker.answers import all_answered, pause
from conveyor.broker.hosts.host import MARKER_PATIENCE_MS, Host
from conveyor.broker.hosts.queue_loading import QueueKind
from conveyor.broker.hosts.queue_partition import QueuePartition, QueueServices
from conveyor.broker.metadata.metadata import Metadata
from conveyor.broker.metadata.subscriptions import Subscriptions
from conveyor.broker.partitions.partition_table import PartitionTable
from conveyor.broker.topics.topics import Topics
from conveyor.cluster.image import QUEUE_STATE, TopicImage, companion, companion_of
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.ids import NodeId, TopicPartition
from conveyor.queues.delivery.memory_budget import MemoryBudget
from conveyor.queues.queue_commands import PutSubscription, QueueProbe
from conveyor.queues.subscription.policy import Subscription
from conveyor.records.transaction_marker import TransactionMarker
from conveyor.replication.partition import Partition

log = logging.getLogger(__name__)

_RETRY_MS = 5_000


class QueuePartitions:
    """See the module's docstring."""

    def __init__(
        self,
        *,
        metadata: Metadata,
        topics: Topics,
        partitions: PartitionTable,
        subscriptions: Subscriptions,
        services: QueueServices,
        acks: MemoryBudget,
        new_id: Callable[[], UUID],
        node_id: NodeId,
    ) -> None:
        self._node_id = node_id
        self._tasks = services.tasks
        self._clock = services.clock
        self._metadata = metadata
        self._topics = topics
        self._partitions = partitions
        self._subscriptions = subscriptions
        self._probes: dict[UUID, QueueProbe] = {}
        self._kind = QueueKind(
            topics=topics,
            partitions=partitions,
            subscriptions=subscriptions,
            services=services,
            acks=acks,
            new_id=new_id,
            probe=self.probe,
        )
        self._host: Host[QueuePartition] = Host(self._kind, services.clock, services.tasks, _RETRY_MS)
        self._running: tuple[int, dict[UUID, list[QueuePartition]]] = (-1, {})
        """The running queues by topic, and the host's `changes_count` at which they were listed."""
        self._led: dict[UUID, tuple[TopicImage, frozenset[int]]] = {}
        self._forgetting: dict[UUID, asyncio.Task[None]] = {}
        subscriptions.when_changed(self._policy_changed)
        subscriptions.when_removed(self._removed)

    def of(self, topic_id: UUID) -> list[QueuePartition]:
        """Return a topic's queues that run on this broker, in partition order."""
        if self._running[0] != self._host.changes_count:
            queues_by_topic: dict[UUID, list[QueuePartition]] = {}
            for queue in sorted(self._host.all_running(), key=lambda queue: queue.number):
                queues_by_topic.setdefault(queue.topic_id, []).append(queue)
            self._running = (self._host.changes_count, queues_by_topic)
        return self._running[1].get(topic_id, [])

    def is_loaded(self, topic: TopicImage) -> bool:
        """Return whether the queues of all partitions of a topic run that this broker leads."""
        queues, led = self.of(topic.topic_id), self._led_here(topic)
        return len(queues) >= len(led) and led <= {queue.number for queue in queues}

    def running(self, topic: str, number: int) -> QueuePartition | None:
        """Return the queue of a partition, if it runs on this broker."""
        return self._host.running(TopicPartition(topic, number))

    async def load(self, topic: str) -> list[QueuePartition]:
        """Return the queues of the partitions that this broker leads, loaded first if necessary.

        Raises RequestError.
        """
        image = self._topics.existing(topic)
        try:
            while not self.is_loaded(image):
                await self._topics.ensure_companion(QUEUE_STATE, topic)
                image = self._still(image)
                for partition in [self._find(topic, number) for number in sorted(self._led_here(image))]:
                    await self._host.loaded(partition)
                image = self._still(image)
        except RequestError:
            self._still(image)  # A topic that is being deleted goes offline first: report the deletion.
            self.unload(topic)
            raise
        return self.of(image.topic_id)

    async def append_marker(self, state: Partition, marker: TransactionMarker, transaction_version: int) -> None:
        """End a producer's transaction in the queue whose state has this partition, which is loaded for it if the topic
        has no subscription any more; see `TransactionalRunner.append_marker`.
        """
        topic = companion_of(QUEUE_STATE, state.identity.topic)
        assert topic is not None
        queue = await self._host.loaded(self._find(topic, state.identity.partition), MARKER_PATIENCE_MS)
        queue.append_marker(marker, transaction_version)
        self.unload(topic)

    def start(self) -> None:
        """Begin to load the queues of every topic that has subscriptions; a failed load is repeated."""
        for topic in self._subscriptions.topics():
            self._begin(topic)

    def _begin(self, topic: str) -> None:
        for number in range(len(self._topics.existing(topic).partitions)):
            partition = self._partitions.get(topic, number)
            if partition is not None and partition.leader_term is not None and not self._host.has(partition):
                self._host.gained(partition)

    async def begin_subscriptions(self, queue: QueuePartition) -> None:
        """Begin the subscriptions that a queue does not know yet. Raises RequestError."""
        await self._kind.begin_subscriptions(queue)

    async def notify(self, queue: QueuePartition, subscription: Subscription) -> None:
        """Let a queue know that a subscription is new, changed, or deleted. Raises RequestError."""
        await self._kind.notify(queue, subscription)

    def unload(self, topic: str) -> None:
        """Unload the queues of a topic that has no subscription."""
        if not self._subscriptions.all(topic):
            for partition in self._host.partitions():
                if partition.identity.topic == topic:
                    self._host.lost(partition)

    def unloaded(self) -> dict[str, str]:
        """Return by topic why not all of its queues run although it has subscriptions."""
        images = self._metadata.image.topics
        topics = [images[name] for name in self._subscriptions.topics() & images.keys()]
        return {topic.name: self._why_unloaded(topic) for topic in topics if not self.is_loaded(topic)}

    def gained(self, partition: Partition) -> None:
        """Load the queue of a partition whose topic has subscriptions, unless it runs and can continue."""
        is_queue = self._host.running(partition.identity) is not None
        if is_queue or self._subscriptions.all(partition.identity.topic):
            self._host.gained(partition)

    def lost(self, partition: Partition) -> None:
        """Stop the queue of a partition."""
        self._host.lost(partition)

    def stop(self) -> None:
        """Stop all queues."""
        self._host.stop()

    def probe(self, subscription: UUID) -> QueueProbe:
        """Return the counters of a subscription since this broker started."""
        return self._probes.setdefault(subscription, QueueProbe())

    async def forgotten(self, subscription: Subscription) -> None:
        """Return once this broker's queues have forgotten a subscription that was deleted."""
        task = self._forgetting.get(subscription.id)
        if task is not None:
            await asyncio.shield(task)

    def _policy_changed(self, subscription: Subscription) -> None:
        """Apply a policy that any broker has changed."""
        for queue in self.of(subscription.topic_id):
            if queue.machine.queue(subscription.id) is not None:
                self._pass_policy(queue, subscription)

    def _pass_policy(self, queue: QueuePartition, subscription: Subscription) -> None:
        """Pass a policy to a queue. If the queue cannot take it now, pass it again later."""

        def taken(reply: object) -> None:
            if isinstance(reply, RequestError) and not queue.is_stopped:
                self._tasks.start(self._pass_policy_later(queue, subscription))

        queue.submit(PutSubscription(subscription=subscription), taken)

    async def _pass_policy_later(self, queue: QueuePartition, subscription: Subscription) -> None:
        await pause(self._clock, _RETRY_MS)
        exists = self._subscriptions.exists(subscription)
        if not queue.is_stopped and exists and self._subscriptions.current(subscription) == subscription:
            self._pass_policy(queue, subscription)

    def _removed(self, subscription: Subscription) -> None:
        """Forget a subscription that any broker has deleted, unless its topic was deleted with it."""
        self._probes.pop(subscription.id, None)
        if subscription.topic_id in self._metadata.image.names_by_id and self.of(subscription.topic_id):
            task = self._forgetting[subscription.id] = self._tasks.start(self._forget(subscription))
            task.add_done_callback(lambda _: self._forgetting.pop(subscription.id, None))

    async def _forget(self, subscription: Subscription) -> None:
        try:
            await all_answered([self.notify(queue, subscription) for queue in self.of(subscription.topic_id)])
        except RequestError as error:  # A queue that was not reached forgets the subscription when it is next loaded.
            log.warning("queues not notified of a deletion subscription=%s reason=%s", subscription.name, error)
        if not self._subscriptions.has_any(subscription.topic_id):
            self.unload(subscription.topic)

    def _led_here(self, topic: TopicImage) -> frozenset[int]:
        """Return the partitions of a topic that this broker leads by the image."""
        cached = self._led.get(topic.topic_id)
        if cached is None or cached[0] is not topic:
            numbers = enumerate(partition.leader for partition in topic.partitions)
            cached = topic, frozenset(number for number, leader in numbers if leader == self._node_id)
            self._led[topic.topic_id] = cached
        return cached[1]

    def _why_unloaded(self, topic: TopicImage) -> str:
        for number in sorted(self._led_here(topic)):
            failure = self._host.failure(TopicPartition(topic.name, number))
            if failure is not None:
                return failure.message
            reason = self._partitions.offline_reason(topic.name, number)
            if reason is not None:
                return f"{topic.name}-{number} is offline: {reason}"
        return "the state of its queues is being read"

    def _still(self, topic: TopicImage) -> TopicImage:
        """Return the topic as it is now.

        Raises RequestError (UNKNOWN_TOPIC) if it was deleted, even if it exists again.
        """
        present = self._topics.existing(topic.name)
        if present.topic_id != topic.topic_id:
            raise RequestError(ErrorKind.UNKNOWN_TOPIC, f"topic '{topic.name}' was deleted")
        return present

    def _find(self, topic: str, number: int) -> Partition:
        """Return the partition of the messages. Raises RequestError if it or its state's partition is offline."""
        messages = self._partitions.find(topic, number)
        messages.leading()
        self._partitions.find(companion(QUEUE_STATE, topic), number).leading()
        return messages
