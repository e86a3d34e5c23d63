"""The queue partitions of this broker that serve a subscription: loaded, with the subscription begun in each of them.

Other brokers have the queues of the partitions that they lead: see `queue_calls`.
"""

from collections.abc import Callable

from conveyor.broker.answers import Answer, Submit, answered
from conveyor.broker.coordinators.queue_partition import QueuePartition
from conveyor.broker.coordinators.queue_partitions import QueuePartitions
from conveyor.broker.metadata.subscriptions import Subscriptions
from conveyor.broker.partitions.own_writes import wait_for_commits
from conveyor.broker.services import Services
from conveyor.broker.topics.topics import Topics
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.queues.subscription.policy import Subscription


class SubscribedPartitions:
    """Finds the queue partitions for the other modules of this room."""

    def __init__(
        self, services: Services, topics: Topics, subscriptions: Subscriptions, partitions: QueuePartitions
    ) -> None:
        self._tasks = services.tasks
        self._topics = topics
        self._subscriptions = subscriptions
        self._partitions = partitions
        self._clock = services.clock

    def when_ready(
        self,
        subscription: Subscription,
        submit: Submit[Answer],
        reply: Callable[[Answer | RequestError], None],
    ) -> None:
        """Submit a request for a subscription: at once, unless its partitions are not ready. Raises RequestError."""
        if self._is_ready(subscription):
            submit(reply)
        else:
            self._tasks.answer(self._submit_when_ready(subscription, submit), reply)

    async def ready(self, subscription: Subscription) -> list[QueuePartition]:
        """Return the queues of the partitions that this broker leads, in order. Raises RequestError."""
        if not self._partitions.is_loaded(self._topics.existing(subscription.topic)):
            await self._partitions.load_topic(subscription.topic)
            self._subscriptions.current(subscription)
        partitions = self._partitions.of(subscription.topic_id)
        for partition in partitions:
            if partition.machine.queue(subscription.id) is None:  # The request that created it was cancelled.
                await self._partitions.begin_subscriptions(partition)
        return partitions

    def count(self, subscription: Subscription) -> int:
        """Return the number of the topic's partitions, on all brokers. Raises RequestError (UNKNOWN_TOPIC)."""
        return len(self._topics.existing(subscription.topic).partitions)

    async def committed(self, subscription: Subscription) -> list[QueuePartition]:
        """Return the same once every record acknowledged before this call is committed. Raises RequestError."""
        partitions = await self.ready(subscription)
        await wait_for_commits([partition.messages for partition in partitions], self._clock)
        return partitions

    def check_served(self, subscription: Subscription) -> None:
        """Raise RequestError if no partition can lease to the subscription."""
        fault = self._fault(subscription)
        if fault is not None:
            raise RequestError(ErrorKind.INVALID_FILTER, fault)
        partitions = self._partitions.of(subscription.topic_id)
        errors = [error for partition in partitions if (error := partition.offline_error()) is not None]
        if errors and len(errors) == self.count(subscription):
            raise errors[0]

    def faults(self) -> dict[str, str]:
        """Return by name why a subscription is not served although its topic's queues are loaded. Looks only at those
        that have not been served.
        """
        faults = {}
        for subscription in list(self._partitions.faulty.values()):
            fault = self._fault(subscription)
            if fault is None:
                del self._partitions.faulty[subscription.id]
            else:
                faults[subscription.name] = fault
        return faults

    def _is_ready(self, subscription: Subscription) -> bool:
        """Return whether `ready` returns at once. Raises RequestError (UNKNOWN_TOPIC)."""
        if not self._partitions.is_loaded(self._topics.existing(subscription.topic)):
            return False
        partitions = self._partitions.of(subscription.topic_id)
        return None not in [partition.machine.queue(subscription.id) for partition in partitions]

    async def _submit_when_ready(self, subscription: Subscription, submit: Submit[Answer]) -> Answer:
        await self.ready(subscription)
        return await answered(submit)

    def _fault(self, subscription: Subscription) -> str | None:
        for partition in self._partitions.of(subscription.topic_id):
            queue = partition.machine.queue(subscription.id)
            if queue is not None and queue.selection.fault is not None:
                return queue.selection.fault
        return None
