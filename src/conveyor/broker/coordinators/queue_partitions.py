"""The queues of this broker's partitions: loaded when their topic has a subscription, unloaded when it has none.

To load a queue is to read its state, to scan the topic's backlog, and to begin new subscriptions. A queue belongs to a
topic by the topic's id: a topic that takes the name of a deleted one inherits none of its queues.
"""

import asyncio
import logging
from itertools import count
from uuid import UUID

from conveyor.broker.answers import ignored, pause
from conveyor.broker.coordinators.coordinators import Coordinators
from conveyor.broker.coordinators.machine_services import MachineServices
from conveyor.broker.coordinators.queue_partition import QueuePartition
from conveyor.broker.metadata.subscriptions import Subscriptions
from conveyor.broker.partitions.own_writes import wait_for_commits
from conveyor.broker.partitions.partition_table import PartitionTable
from conveyor.broker.slices import SLICE_ASKS, SLICE_ITEMS
from conveyor.broker.topics.topics import Topics
from conveyor.cluster.image import QUEUE_STATE, ClusterImage, TopicImage, companion, companion_of
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.ids import TopicPartition
from conveyor.kernel.signal import Signal
from conveyor.log.record_source import MessageSource
from conveyor.queues.delivery.memory_budget import MemoryBudget
from conveyor.queues.queue_commands import (
    ForgetSubscription,
    PutSubscription,
    SeekSubscription,
    SubscriptionProbe,
)
from conveyor.queues.queue_machine import QueueMachine
from conveyor.queues.subscription.policy import StartPosition, Subscription
from conveyor.queues.subscription.queue_records import cut
from conveyor.records.transaction_marker import TransactionMarker
from conveyor.replication.machine_runner import replay
from conveyor.replication.partition import Partition
from conveyor.replication.stated_epochs import stated_end
from conveyor.replication.transactions import last_stable_offset

log = logging.getLogger(__name__)

_POLICY_RETRY_MS = 5_000


class QueuePartitions(Coordinators[QueuePartition]):
    name = "queue"
    retry_ms = 5_000

    def __init__(
        self, services: MachineServices, table: PartitionTable, topics: Topics, subscriptions: Subscriptions
    ) -> None:
        super().__init__(services.common, table)
        self.changed: Signal[QueuePartition] = Signal()
        """A queue may have new messages for a lease request or for a dead-letter topic."""
        self._machine_services = services
        self._topics = topics
        self._subscriptions = subscriptions
        self._acks = MemoryBudget(services.common.settings.broker.remembered_acks)
        self._incarnations = count(services.common.new_id().int & 0x7FFF_FFFF)
        self._probes: dict[UUID, SubscriptionProbe] = {}
        self._running: tuple[int, dict[UUID, list[QueuePartition]]] = (-1, {})
        """The running queues by topic, and the `changes_count` at which they were listed."""
        self._all_loaded: tuple[int, ClusterImage | None] = (-1, None)
        """The `changes_count` and the image at which all queues were loaded."""
        self._led: dict[UUID, tuple[TopicImage, frozenset[int]]] = {}
        self._forgetting: dict[UUID, asyncio.Task[None]] = {}
        self.faulty: dict[UUID, Subscription] = {}
        """The subscriptions that a queue could not serve when it took their policy, by id."""
        subscriptions.changed.listen(self._policy_changed)
        subscriptions.removed.listen(self._removed)

    def logs(self, partition: Partition) -> tuple[Partition, Partition]:
        return partition, self._state_of(partition)

    async def load(self, partition: Partition) -> QueuePartition:
        state = self._state_of(partition)
        source = MessageSource(*partition.identity, partition.log)
        machine = QueueMachine(source, self._next_incarnation(partition), self._fraction, self.probe, self._acks)
        cut_offset = await self._read(state, _replay, state, machine, partition)
        subscriptions, limit = self._subscriptions.by_id(partition.log.place.topic_id), last_stable_offset(partition)
        await self._read(partition, _scan, machine, subscriptions, limit, self._services.clock.now_ms())
        state.leading()
        source.dispose = self._services.threads.submit  # From now on it is read on the event loop.
        queue = QueuePartition(partition, state, source, machine, self._machine_services, self.changed)
        queue.cut_offset = cut_offset
        return queue

    async def begin(self, runner: QueuePartition) -> None:
        """Bring a queue up to date with the metadata, and start it."""
        if runner.cut_offset is not None:
            runner.restate([cut(runner.cut_offset)])
        for stray in runner.machine.unknown_subscriptions(self._subscriptions.by_id(runner.topic_id)):
            runner.submit(ForgetSubscription(subscription=stray), ignored)
        await self.begin_subscriptions(runner)
        for subscription in self._subscriptions.by_id(runner.topic_id).values():
            fault = self._note_fault(runner, subscription)
            if fault is not None:
                log.error("subscription not served name=%s reason=%s", subscription.name, fault)
        if runner.is_stopped:  # The load was discarded.
            return
        runner.start()

    def try_continue(self, runner: QueuePartition, partition: Partition) -> bool:
        state = self._table.get(companion(QUEUE_STATE, partition.identity.topic), partition.identity.partition)
        return state is not None and runner.use(partition, state)

    def of(self, topic_id: UUID) -> list[QueuePartition]:
        """Return a topic's queues that run on this broker, in partition order."""
        if self._running[0] != self.changes_count:
            queues_by_topic: dict[UUID, list[QueuePartition]] = {}
            for queue in sorted(self.list(), key=lambda queue: queue.number):
                queues_by_topic.setdefault(queue.topic_id, []).append(queue)
            self._running = (self.changes_count, queues_by_topic)
        return self._running[1].get(topic_id, [])

    def is_loaded(self, topic: TopicImage) -> bool:
        """Return whether the queues of all partitions of a topic run that this broker leads."""
        queues, led = self.of(topic.topic_id), self._led_here(topic)
        return len(queues) >= len(led) and led <= {queue.number for queue in queues}

    async def load_topic(self, topic: str) -> list[QueuePartition]:
        """Return the queues of the partitions that this broker leads, loaded first if necessary.

        Raises RequestError.
        """
        image = self._topics.existing(topic)
        try:
            while not self.is_loaded(image):
                await self._topics.ensure_companion(QUEUE_STATE, topic)
                image = self._still(image)
                numbers = sorted(self._led_here(image))
                for number in numbers:
                    self._find(topic, number)
                for number in numbers:
                    await self.loaded(self._find(topic, number))  # It may have been reopened during an earlier load.
                image = self._still(image)
        except RequestError:
            self._still(image)  # A topic that is being deleted goes offline first: report the deletion.
            self.unload(topic)
            raise
        return self.of(image.topic_id)

    async def resolve_transaction(
        self, partition: Partition, marker: TransactionMarker, transaction_version: int
    ) -> None:
        """End a producer's transaction in the queue whose state has this partition, also if the topic has no
        subscription any more; see `Coordinators.resolve_transaction`.
        """
        topic = companion_of(QUEUE_STATE, partition.identity.topic)
        assert topic is not None
        messages = self._find(topic, partition.identity.partition)
        await super().resolve_transaction(messages, marker, transaction_version)
        self.unload(topic)

    def start(self) -> None:
        """Begin to load the queues of every topic that has subscriptions; a failed load is repeated."""
        for topic in self._subscriptions.topics():
            for number in range(len(self._topics.existing(topic).partitions)):
                partition = self._table.get(topic, number)
                if partition is not None and partition.leader_term is not None and not self.has(partition):
                    self.gained(partition)

    async def begin_subscriptions(self, queue: QueuePartition) -> None:
        """Begin the topic's subscriptions that the queue has no start offset for. Raises RequestError."""
        for subscription in self._subscriptions.by_id(queue.topic_id).values():
            await self.begin_subscription(queue, subscription)

    async def begin_subscription(self, queue: QueuePartition, subscription: Subscription) -> None:
        """Begin a subscription at its start position, unless it has begun. Raises RequestError."""
        if queue.machine.queue(subscription.id) is None:
            await self.notify(queue, subscription)
            is_older = queue.number < subscription.partition_count
            start = subscription.start if is_older else StartPosition(kind="earliest")
            offset = await self._offset_at(queue, start)
            await queue.ask(SeekSubscription(subscription=subscription.id, offset=offset, begins=True))

    async def seek(self, queue: QueuePartition, subscription: Subscription, to: StartPosition) -> int:
        """Move a subscription to a position. Returns the number of messages that this settles. Raises RequestError."""
        offset = await self._offset_at(queue, to)
        return await queue.ask(SeekSubscription(subscription=subscription.id, offset=offset))

    async def _offset_at(self, queue: QueuePartition, to: StartPosition) -> int:
        messages = queue.messages
        await wait_for_commits([messages], self._services.clock)
        end = queue.stable_offset
        if to.kind == "earliest":
            return int(messages.log.log_start_offset)
        if to.kind == "latest":
            return end
        own_caller = self._services.own_caller
        record = await self._services.lookups.first(own_caller, messages, to.timestamp_ms, end)
        return end if record is None else record.offset

    async def notify(self, queue: QueuePartition, subscription: Subscription) -> None:
        """Let a queue know the current state of a subscription: its policy, or its deletion. Raises RequestError."""
        if self._subscriptions.exists(subscription):
            await queue.ask(PutSubscription(subscription=self._subscriptions.current(subscription)))
            self._note_fault(queue, subscription)
        else:
            await queue.ask(ForgetSubscription(subscription=subscription.id))

    def unload(self, topic: str) -> None:
        """Unload the queues of a topic that has no subscription."""
        if not self._subscriptions.all(topic):
            for partition in self.partitions():
                if partition.identity.topic == topic:
                    self.lost(partition)

    def _note_fault(self, queue: QueuePartition, subscription: Subscription) -> str | None:
        """Return why a queue does not serve a subscription, and note that it does not."""
        state = queue.machine.queue(subscription.id)
        fault = None if state is None else state.selection.fault
        if fault is not None:
            self.faulty[subscription.id] = subscription
        return fault

    def unloaded(self) -> dict[str, str]:
        """Return by topic why not all of its queues run although it has subscriptions."""
        image = self._services.metadata.image
        changes_count, loaded_image = self._all_loaded
        if changes_count == self.changes_count and loaded_image is image:
            return {}
        topics = [image.topics[name] for name in self._subscriptions.topics() & image.topics.keys()]
        unloaded = [topic for topic in topics if not self.is_loaded(topic)]
        if not unloaded:
            self._all_loaded = self.changes_count, image
        return {topic.name: self._why_unloaded(topic) for topic in unloaded}

    def gained(self, partition: Partition) -> None:
        """Load the queue of a partition whose topic has subscriptions, unless it runs and can continue."""
        is_queue = self.find(partition.identity) is not None
        if is_queue or self._subscriptions.all(partition.identity.topic):
            super().gained(partition)

    def probe(self, subscription: UUID) -> SubscriptionProbe:
        """Return the counters of a subscription since this broker started."""
        return self._probes.setdefault(subscription, SubscriptionProbe())

    async def forgotten(self, subscription: Subscription) -> None:
        """Return once this broker's queues have forgotten a subscription that was deleted."""
        task = self._forgetting.get(subscription.id)
        if task is not None:
            await asyncio.shield(task)

    def _policy_changed(self, subscription: Subscription) -> None:
        """Apply a policy that any broker has changed."""
        self._services.tasks.start(self._pass_to_all(subscription))

    async def _pass_to_all(self, subscription: Subscription) -> None:
        weight = SLICE_ITEMS // SLICE_ASKS
        async for queue in self._services.slices.each(self.of(subscription.topic_id), lambda _: weight):
            if queue.machine.queue(subscription.id) is not None and self._is_current(subscription):
                self._pass_policy(queue, subscription)

    def _pass_policy(self, queue: QueuePartition, subscription: Subscription) -> None:
        """Pass a policy to a queue. If the queue cannot take it now, pass it again later."""

        def taken(reply: object) -> None:
            if isinstance(reply, RequestError) and not queue.is_stopped:
                self._services.tasks.start(self._pass_policy_later(queue, subscription))
            self._note_fault(queue, subscription)

        queue.submit(PutSubscription(subscription=subscription), taken)

    async def _pass_policy_later(self, queue: QueuePartition, subscription: Subscription) -> None:
        await pause(self._services.clock, _POLICY_RETRY_MS)
        if not queue.is_stopped and self._is_current(subscription):
            self._pass_policy(queue, subscription)

    def _is_current(self, subscription: Subscription) -> bool:
        """Return whether a subscription exists, with this policy."""
        return self._subscriptions.exists(subscription) and self._subscriptions.current(subscription) == subscription

    def _removed(self, subscription: Subscription) -> None:
        """Forget a subscription that any broker has deleted, unless its topic was deleted with it."""
        self._probes.pop(subscription.id, None)
        self.faulty.pop(subscription.id, None)
        if self._has_topic(subscription) and self.of(subscription.topic_id):
            task = self._forgetting[subscription.id] = self._services.tasks.start(self._forget(subscription))
            task.add_done_callback(lambda _: self._forgetting.pop(subscription.id, None))

    def _has_topic(self, subscription: Subscription) -> bool:
        """Return whether the topic of a subscription exists: it may have been deleted with it, or since."""
        return subscription.topic_id in self._services.metadata.image.names_by_id

    async def _forget(self, subscription: Subscription) -> None:
        await self._services.slices.turn()  # One change may remove many subscriptions.
        try:
            queues = self.of(subscription.topic_id)
            await self._services.slices.ask_each(lambda queue: self.notify(queue, subscription), queues)
        except RequestError as error:  # A queue that was not reached forgets the subscription when it is next loaded.
            if self._has_topic(subscription):
                log.warning("queues not notified of a deletion subscription=%s reason=%s", subscription.name, error)
        if not self._subscriptions.has_any(subscription.topic_id):
            self.unload(subscription.topic)
            self._led.pop(subscription.topic_id, None)
            self._running = (-1, {})

    def _led_here(self, topic: TopicImage) -> frozenset[int]:
        """Return the partitions of a topic that this broker leads by the image."""
        cached = self._led.get(topic.topic_id)
        if cached is None or cached[0] is not topic:
            numbers = enumerate(partition.leader for partition in topic.partitions)
            cached = topic, frozenset(number for number, leader in numbers if leader == self._services.me)
            self._led[topic.topic_id] = cached
        return cached[1]

    def _why_unloaded(self, topic: TopicImage) -> str:
        for number in sorted(self._led_here(topic)):
            failure = self.failure(TopicPartition(topic.name, number))
            if failure is not None:
                return failure.message
            reason = self._table.offline_reason(topic.name, number)
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
        messages = self._table.find(topic, number)
        messages.leading()
        self._table.find(companion(QUEUE_STATE, topic), number).leading()
        return messages

    def _state_of(self, partition: Partition) -> Partition:
        """Return the companion partition that holds the queue's state. Raises RequestError."""
        return self._table.find(companion(QUEUE_STATE, partition.identity.topic), partition.identity.partition)

    def _next_incarnation(self, partition: Partition) -> int:
        """Return the incarnation of a machine: the leader epoch in the upper half, so that no other broker's leases
        count as its own, and a number that differs for each machine of this broker in the lower half.
        """
        return partition.term.epoch << 32 | next(self._incarnations) & 0xFFFF_FFFF

    def _fraction(self) -> float:
        """Entropy, in [0, 1)."""
        return (self._services.new_id().int & 0xFFFF_FFFF) / 2**32


def _replay(state: Partition, machine: QueueMachine, messages: Partition) -> int | None:
    """Replay the state, and forget what it says of messages that the log does not have any more. Blocks. Raises
    StorageFailure.

    Returns the end of the messages that the state is about, if the state reaches beyond it.
    """
    known_end = stated_end(replay(state.log, machine), messages.log)
    if not machine.reaches_beyond(known_end):
        return None
    log.warning("queue cut back partition=%s offset=%d: the log has lost messages", messages.identity, known_end)
    machine.apply(cut(known_end))
    return known_end


def _scan(machine: QueueMachine, subscriptions: dict[UUID, Subscription], limit: int, now_ms: int) -> None:
    """Scan the whole backlog for the given subscriptions. Blocks. Raises StorageFailure."""
    machine.set_subscriptions(subscriptions)
    while not machine.advance(limit, now_ms):
        pass
